#include <cstring>

#include "src/base/assert.h"
#include "src/kernels/weighted.h"

namespace netsum::kernels::plain {
namespace {

template <typename T>
Uint128 sum(const uint8_t* lanes, size_t n, const int32_t* weights) {
  __int128 total = 0;
  for (size_t i = 0; i < n; ++i) {
    T lane;
    std::memcpy(&lane, lanes + i * sizeof lane, sizeof lane);
    total += static_cast<__int128>(lane) * weights[i];  // below 2^94; the sum of a payload's below 2^108
  }
  const Uint128 modulus = Uint128{1} << weighted_sum_bits(sizeof(T));
  return static_cast<Uint128>(total) & (modulus - 1);
}

}  // namespace

Uint128 weighted_sum(size_t lane_bytes, const uint8_t* lanes, size_t n, const int32_t* weights) {
  switch (lane_bytes) {
    case 1:
      return sum<int8_t>(lanes, n, weights);
    case 2:
      return sum<int16_t>(lanes, n, weights);
    case 4:
      return sum<int32_t>(lanes, n, weights);
    default:
      NETSUM_ASSERT(lane_bytes == 8);
      return sum<int64_t>(lanes, n, weights);
  }
}

}  // namespace netsum::kernels::plain
