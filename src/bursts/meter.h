// Meters a stream of packets while it runs: backlogs at 16 rates, and bytes in bins. Constant memory, nothing allocated, no
// clock: written by one thread, read by any.
#ifndef NETSUM_SRC_BURSTS_METER_H_
#define NETSUM_SRC_BURSTS_METER_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "netsum/communicator.h"
#include "src/base/counter.h"

namespace netsum::bursts {

class Meter {
 public:
  static constexpr size_t kRates = 16;
  // Counts bins by size: bucket k has those of up to bin_bound(k) bytes, the last bucket all larger ones.
  static constexpr size_t kBinBuckets = 24;
  static constexpr uint64_t bin_bound(size_t bucket) { return uint64_t{1024} << bucket; }

  static constexpr int64_t kLiveBinNs = 1'000'000;  // of what add_to() adds up
  static constexpr int64_t kLongBin = 10;           // bins
  // The rates are the multiples of a 16th of `bytes_per_s`; 0: it is not known, so there are no backlogs. `bin_ns` > 0.
  Meter(uint64_t bytes_per_s, int64_t bin_ns) : bytes_per_s_(bytes_per_s), bin_ns_(bin_ns) {}

  // Owner thread only. A time before the last one counts as the last one (time_steps_back()).
  void add(int64_t at_ns, uint64_t bytes) {
    if (!started_) last_ns_ = bin_from_ns_ = long_bin_from_ns_ = at_ns;
    started_ = true;
    if (at_ns < last_ns_) steps_back_.add();
    const int64_t passed = std::max<int64_t>(0, at_ns - last_ns_);
    last_ns_ += passed;
    if (bytes_per_s_ > 0) add_to_queues(passed, bytes);
    add_to_bin(bytes);
    bytes_.add(bytes);
  }

  // The same of those packets, of what came or left at once, for which counts(packet), with `overhead` bytes around each.
  template <typename Packets, typename Counts>
  void add_packets(int64_t at_us, const Packets& packets, uint64_t overhead, const Counts& counts) {
    uint64_t bytes = 0;
    for (const auto& packet : packets)
      if (counts(packet)) bytes += packet.size + overhead;
    if (bytes > 0) add(at_us * 1000, bytes);
  }
  template <typename Packets>
  void add_packets(int64_t at_us, const Packets& packets, uint64_t overhead) {
    add_packets(at_us, packets, overhead, [](const auto&) { return true; });
  }

  // Any thread. To what other meters have of the same link, with bins of kLiveBinNs: sums are upper bounds.
  void add_to(Bursts* all) const {
    if (bytes_per_s_ > 0) all->backlog_bytes.resize(kRates);
    for (size_t i = 0; i < all->backlog_bytes.size(); ++i) all->backlog_bytes[i] += backlog(i);
    all->bytes += bytes();
    all->largest_ms_bytes += largest_bin();
    all->largest_10ms_bytes += largest_long_bin();
    all->milliseconds.resize(kBinBuckets + 1);
    for (size_t i = 0; i < all->milliseconds.size(); ++i) all->milliseconds[i] += bins(i);
  }

  // Any thread.
  uint64_t rate(size_t i) const { return bytes_per_s_ * (i + 1) / kRates; }
  // The largest backlog so far of a server of rate(i), in bytes rounded up. Rounding in between makes it wrong by less than
  // a byte for backlogs of up to 100 MB and a million packets without a pause.
  uint64_t backlog(size_t i) const { return backlog_[i].get(); }
  uint64_t bytes() const { return bytes_.get(); }
  // The most bytes in a bin that is complete.
  uint64_t largest_bin() const { return largest_bin_.get(); }
  // The same of bins that are kLongBin times as long.
  uint64_t largest_long_bin() const { return largest_long_bin_.get(); }
  // The number of complete bins that are not empty.
  uint64_t bins(size_t bucket) const { return bins_[bucket].get(); }
  int64_t bin_ns() const { return bin_ns_; }
  uint64_t time_steps_back() const { return steps_back_.get(); }

 private:
  void add_to_queues(int64_t passed, uint64_t bytes) {
    const double drained = static_cast<double>(bytes_per_s_) / (1e9 * kRates) * static_cast<double>(passed);
    const auto arrived = static_cast<double>(bytes);
    bool more = false;
    for (size_t i = 0; i < kRates; ++i) {
      queue_[i] = std::max(0.0, queue_[i] - drained * static_cast<double>(i + 1)) + arrived;
      more |= queue_[i] > most_[i];
    }
    if (!more) return;
    for (size_t i = 0; i < kRates; ++i) {
      if (queue_[i] <= most_[i]) continue;
      most_[i] = queue_[i];
      backlog_[i].set(static_cast<uint64_t>(std::ceil(queue_[i])));
    }
  }

  void add_to_bin(uint64_t bytes) {
    if (last_ns_ - bin_from_ns_ >= bin_ns_) {
      largest_bin_.set(std::max(largest_bin_.get(), in_bin_));
      if (in_bin_ > 0) bins_[std::min<size_t>(std::bit_width((in_bin_ - 1) / 1024), kBinBuckets)].add();
      in_bin_ = 0;
      bin_from_ns_ += (last_ns_ - bin_from_ns_) / bin_ns_ * bin_ns_;
    }
    if (last_ns_ - long_bin_from_ns_ >= kLongBin * bin_ns_) {
      largest_long_bin_.set(std::max(largest_long_bin_.get(), in_long_bin_));
      in_long_bin_ = 0;
      long_bin_from_ns_ = bin_from_ns_;
    }
    in_bin_ += bytes;
    in_long_bin_ += bytes;
  }

  const uint64_t bytes_per_s_;
  const int64_t bin_ns_;
  bool started_ = false;
  int64_t last_ns_ = 0;
  std::array<double, kRates> queue_{};
  std::array<double, kRates> most_{};
  int64_t bin_from_ns_ = 0;
  uint64_t in_bin_ = 0;
  int64_t long_bin_from_ns_ = 0;
  uint64_t in_long_bin_ = 0;
  std::array<Counter, kRates> backlog_;
  std::array<Counter, kBinBuckets + 1> bins_;
  Counter largest_bin_, largest_long_bin_, bytes_, steps_back_;
};

}  // namespace netsum::bursts

#endif  // NETSUM_SRC_BURSTS_METER_H_
