// Numbers that are not finite, of which no memory may keep any.
#ifndef NETSUM_SRC_COMPRESS_FINITE_H_
#define NETSUM_SRC_COMPRESS_FINITE_H_

#include <cmath>
#include <span>

#include "src/kernels/kernels.h"

namespace netsum::compress {

inline bool all_finite(std::span<const float> values) {
  return kernels::scan(DataType::kFloat32, values.data(), values.size(), 1).wide == 0;
}
// Clears what is not finite; returns whether there was any such element.
inline bool clear_not_finite(float* values, size_t n) {
  if (all_finite({values, n})) return false;
  for (size_t i = 0; i < n; ++i)
    if (!std::isfinite(values[i])) values[i] = 0;
  return true;
}

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_FINITE_H_
