// A histogram of durations.
#ifndef NETSUM_TIME_HISTOGRAM_H_
#define NETSUM_TIME_HISTOGRAM_H_

#include <cstdint>
#include <vector>

namespace netsum {

struct TimeHistogram {
  struct Bucket {
    int64_t up_to_us = 0;  // inclusive upper bound; INT64_MAX in the last bucket
    uint64_t count = 0;    // durations above the previous bound, up to this one
  };
  std::vector<Bucket> buckets;  // in ascending order
  int64_t sum_us = 0;           // of all durations

  // Number of durations in all buckets.
  uint64_t count() const {
    uint64_t all = 0;
    for (const Bucket& bucket : buckets) all += bucket.count;
    return all;
  }
};

}  // namespace netsum

#endif  // NETSUM_TIME_HISTOGRAM_H_
