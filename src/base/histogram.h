// Counts times by their order of magnitude: written by one thread, read by any; fixed size, nothing
// allocated.
#ifndef NETSUM_SRC_BASE_HISTOGRAM_H_
#define NETSUM_SRC_BASE_HISTOGRAM_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "netsum/time_histogram.h"
#include "src/base/counter.h"

namespace netsum {

class Histogram {
 public:
  // Bounds double from 8 us to 33.6 s: a LAN's round trip and the longest default deadline. Then one bucket
  // for all that took longer.
  static constexpr size_t kBounds = 23;
  static constexpr int64_t bound_us(size_t bucket) { return int64_t{8} << bucket; }

  // Owner thread only.
  void add(int64_t time_us) {
    const uint64_t eighths = time_us <= 0 ? 0 : static_cast<uint64_t>(time_us - 1) / 8;
    counts_[std::min<size_t>(static_cast<size_t>(std::bit_width(eighths)), kBounds)].add();
    if (time_us > 0) sum_us_.add(static_cast<uint64_t>(time_us));
  }

  // Any thread. Adds what has been counted here to `all`, which is empty or was filled by this function.
  void add_to(TimeHistogram* all) const {
    all->buckets.resize(kBounds + 1);
    for (size_t i = 0; i <= kBounds; ++i) {
      all->buckets[i].up_to_us = i < kBounds ? bound_us(i) : INT64_MAX;
      all->buckets[i].count += counts_[i].get();
    }
    all->sum_us += static_cast<int64_t>(sum_us_.get());
  }

 private:
  std::array<Counter, kBounds + 1> counts_;
  Counter sum_us_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_BASE_HISTOGRAM_H_
