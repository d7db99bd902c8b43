// How long a training step is predicted to be when its buckets are compressed in a certain way, and which way is best. Only
// integers are used, so all ranks compute the same, whatever their machines.
#ifndef NETSUM_SRC_COMPRESS_CONTROL_COST_MODEL_H_
#define NETSUM_SRC_COMPRESS_CONTROL_COST_MODEL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace netsum::compress {

// The median of the last three samples: follows a change after two, and no single one leads it astray.
class Median {
 public:
  static constexpr size_t kSize = 3;
  void add(int64_t sample) { samples_[added_++ % kSize] = sample; }
  bool empty() const { return added_ == 0; }
  bool full() const { return added_ >= kSize; }
  // Of two samples the smaller one; 0 of none.
  int64_t value() const;
  int64_t value_or(int64_t otherwise) const { return empty() ? otherwise : value(); }

  void save(std::vector<int64_t>* to) const;
  void restore(const int64_t** from);

 private:
  std::array<int64_t, kSize> samples_{};
  uint64_t added_ = 0;
};

// Per element, in picoseconds of processor time and in thousandths of a byte.
struct LevelCost {
  int64_t encode_ps = 0, decode_ps = 0;
  int64_t extra_ps = 0;  // of the sum, beyond the time of its bytes
  int64_t milli_bytes = 4000;
};

struct Costs {
  int64_t latency_ns = 0;  // of a sum of few bytes
  int64_t byte_ps = 0;     // of the network
  std::vector<LevelCost> levels;
};

struct BucketCost {
  int64_t compute_ns = 0;  // of the backward pass before the bucket is ready, after the bucket before it
  uint64_t elements = 0;
  uint64_t other_bytes = 0;
  uint8_t most = 0;  // the most lossy level that may be used
};

using Levels = std::vector<uint8_t>;  // of each bucket

// One thread computes and encodes, the network sums the buckets in their order, and another thread decodes. The step has ended
// when all three have.
int64_t step_ns(const Costs& costs, std::span<const BucketCost> buckets, const Levels& levels);

struct Choice {
  Levels levels;
  int64_t ns = 0;               // the step with them
  int64_t uncompressed_ns = 0;  // the step with level 0 everywhere
};

// Each bucket gets the least lossy level that is hidden, that is, does not make the step longer than the fastest one is;
// `slack_percent` longer counts as equal. If the fastest step is not shorter than the uncompressed one by `payoff_permille`: level 0.
Choice choose(const Costs& costs, std::span<const BucketCost> buckets, int64_t payoff_permille,
              int64_t slack_percent);

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_CONTROL_COST_MODEL_H_
