// Which elements of a short tensor are the k largest; of equal magnitudes, the first ones.
#ifndef NETSUM_SRC_COMPRESS_METHODS_LARGEST_H_
#define NETSUM_SRC_COMPRESS_METHODS_LARGEST_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <span>

#include "src/compress/methods/common_options.h"
#include "src/kernels/select.h"

namespace netsum::compress {

class Largest {
 public:
  // 1 <= k <= the number of values <= kMostBlock. What is not finite is larger than all numbers.
  Largest(std::span<const float> values, size_t k) {
    std::array<uint32_t, kMostBlock> magnitudes;
    magnitudes[k - 1] = 0;  // is overwritten, which gcc 12 does not see and warns of
    const auto end =
        std::transform(values.begin(), values.end(), magnitudes.begin(), kernels::magnitude_bits);
    const auto kth = magnitudes.begin() + static_cast<std::ptrdiff_t>(k - 1);
    std::nth_element(magnitudes.begin(), kth, end, std::greater<>());
    least_ = *kth;
    equal_ = std::count(magnitudes.begin(), kth + 1, least_);
  }

  // To be asked once for each of the values, in their order.
  bool takes(float value) {
    const uint32_t magnitude = kernels::magnitude_bits(value);
    return magnitude > least_ || (magnitude == least_ && equal_-- > 0);
  }

 private:
  uint32_t least_;
  std::ptrdiff_t equal_;  // to be taken
};

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_METHODS_LARGEST_H_
