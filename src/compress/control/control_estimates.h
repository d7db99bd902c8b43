// What the ranks know of a job's costs from what they have agreed on: the network, the levels, the buckets.
#ifndef NETSUM_SRC_COMPRESS_CONTROL_CONTROL_ESTIMATES_H_
#define NETSUM_SRC_COMPRESS_CONTROL_CONTROL_ESTIMATES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "netsum/compression_control.h"
#include "src/compress/control/cost_model.h"

namespace netsum::compress {

// The numbers that ranks agree on by their maximum; of what should be the minimum, the negative. Times in microseconds.
struct BucketNumbers {
  int32_t compute, encode, negative_service, decode, queued, bytes64;
  int32_t gradient_log, residual_log;  // 256 times the binary logarithm of a norm
};
struct HeadNumbers {
  int32_t digest, negative_digest, negative_agreement, retransmitted_ppm;
};
constexpr size_t kHeadNumbers = sizeof(HeadNumbers) / sizeof(int32_t);
constexpr size_t kBucketNumbers = sizeof(BucketNumbers) / sizeof(int32_t);
constexpr int32_t kNoNorm = std::numeric_limits<int32_t>::min();

// What a rank has measured.
void to_numbers(const StepRecord& record, std::span<int32_t> numbers);
HeadNumbers head_of(std::span<const int32_t> numbers);
BucketNumbers bucket_of(std::span<const int32_t> numbers, size_t bucket);

// What was done in a step.
struct Past {
  Levels levels;
  uint64_t probe_bytes = 0;  // by which the agreement was longer; 0: it was no probe
};

class Estimates {
 public:
  explicit Estimates(const std::vector<ControlledLevel>& levels);

  void set_buckets(std::span<const ControlledBucket> buckets);
  // What all ranks have agreed on about the step `past`; `before`: the step before it.
  void learn(std::span<const int32_t> agreed, const Past& past, const Past& before);

  bool known() const;  // enough to predict a step
  Costs costs() const;
  // Without limits for levels.
  std::vector<BucketCost> bucket_costs() const;
  int64_t byte_ps() const { return byte_ps_.value(); }
  int64_t retransmitted_ppm() const { return retransmitted_ppm_.value(); }
  // The last sample of the network's rate was far from the estimate.
  bool surprised() const { return surprised_; }
  bool has_dense_traffic(const Levels& levels) const;
  // How much longer an agreement must be to tell the rate of the network. `has_traffic`: has_dense_traffic().
  uint64_t probe_bytes(bool has_traffic) const;
  // A probe beside uncompressed buckets is due, since it tells how much the network lets through at once.
  bool wants_burst() const { return wants_burst_; }
  const std::vector<ControlledBucket>& buckets() const { return buckets_; }

  // Numbers in the order of save(); the number depends on the counts of levels and buckets only.
  void save(std::vector<int64_t>* to) const;
  void restore(const int64_t** from);

 private:
  static constexpr int64_t kBurstPeriod = 8;  // steps between two measurements of the burst

  struct Level {
    LevelCost expected;
    Median encode_ps, decode_ps, extra_ps, milli_bytes;
  };
  struct Sums {
    int64_t elements = 0, other_bytes = 0, encode_us = 0, decode_us = 0, service_us = 0, bytes = 0, count = 0;
    bool bytes_known = true;
  };

  LevelCost cost_of(const Level& level) const;
  void learn_network(const HeadNumbers& head, const Sums& dense, uint64_t probe_bytes);
  void want_burst();
  void set_burst(int64_t length, int64_t beyond_latency, int64_t byte_ps);
  // A probe of so many bytes has taken `of_probe` picoseconds for each that was not let through at once.
  void compare_probe(int64_t length, int64_t of_probe, int64_t of_traffic);
  bool exceeds_latency(int64_t length, int64_t of_traffic) const;
  // A probe of so many bytes has taken this time beyond an empty operation, in picoseconds, where uncompressed buckets have taken
  // `of_traffic` picoseconds for a byte.
  void learn_burst(int64_t length, int64_t beyond_latency, int64_t of_traffic);
  void learn_level(size_t level, const Sums& sums);
  uint64_t dense_bytes(const ControlledBucket& bucket) const;
  uint64_t dense_bytes() const;
  int64_t least_bytes() const;
  uint64_t beyond_burst() const;
  uint64_t longest_probe() const;
  uint64_t burst_probe() const;
  bool exceeds_burst(int64_t length) const;

  std::vector<Level> levels_;
  std::vector<ControlledBucket> buckets_;
  std::vector<Median> compute_ns_;  // of each bucket
  Median latency_ns_, byte_ps_, retransmitted_ppm_;
  Median probe_permille_;  // what the traffic's time of a byte is to a probe's
  bool surprised_ = false;
  bool wants_burst_ = false;  // from a probe beside uncompressed buckets
  bool verifies_ = false;     // that the network is as fast as a small probe has said
  int64_t steps_since_burst_ = kBurstPeriod;
  // What the network lets through at once, at most the longest probe; and what was let through of a probe that was not longer.
  int64_t burst_bytes_ = 0, least_burst_ = 0;
};

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_CONTROL_CONTROL_ESTIMATES_H_
