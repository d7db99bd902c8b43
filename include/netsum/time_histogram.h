// How often something took how long.
#ifndef NETSUM_TIME_HISTOGRAM_H_
#define NETSUM_TIME_HISTOGRAM_H_

#include <cstdint>
#include <vector>

namespace netsum {

struct TimeHistogram {
  struct Bucket {
    int64_t up_to_us = 0;  // inclusive; INT64_MAX in the last bucket
    uint64_t count = 0;    // times above the bucket before, up to this one's bound
  };
  std::vector<Bucket> buckets;
  int64_t sum_us = 0;

  uint64_t count() const {
    uint64_t all = 0;
    for (const Bucket& bucket : buckets) all += bucket.count;
    return all;
  }
};

}  // namespace netsum

#endif  // NETSUM_TIME_HISTOGRAM_H_
