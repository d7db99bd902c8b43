// What keeps a bucket from being compressed more strongly than its training bears.
#ifndef NETSUM_SRC_COMPRESS_CONTROL_CONTROL_GUARDS_H_
#define NETSUM_SRC_COMPRESS_CONTROL_CONTROL_GUARDS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "netsum/compression_control.h"
#include "src/compress/control/control_estimates.h"

namespace netsum::compress {

// Of one bucket.
class Guards {
 public:
  static constexpr uint64_t kNormPeriod = 10;  // steps

  // After `step`, in which the bucket had this level.
  void learn(const BucketNumbers& numbers, const CompressionControlOptions& options, uint8_t level,
             uint64_t step);
  // The most lossy level for `step`.
  uint8_t most(const CompressionControlOptions& options, uint64_t step) const;
  // The norm of the gradient has changed by half, from the median of three samples to that of the next three.
  bool critical() const;

  void save(std::vector<int64_t>* to) const;
  void restore(const int64_t** from);

 private:
  static constexpr size_t kHalf = 3;
  std::array<int64_t, 2 * kHalf> logs_{};  // the last one first
  uint64_t norms_ = 0;
  uint8_t capped_level_ = 0;
  uint64_t capped_until_ = 0, capped_for_ = 0;
};

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_CONTROL_CONTROL_GUARDS_H_
