// The weighted sum of a payload's lanes: the linear part of the tag of verified sums (src/verify/verified_sums.h).
//
// The kernel has a plain reference (namespace kernels::plain) and a Highway version that is chosen at run time.
#ifndef NETSUM_SRC_KERNELS_WEIGHTED_H_
#define NETSUM_SRC_KERNELS_WEIGHTED_H_

#include <cstddef>
#include <cstdint>

namespace netsum::kernels {

using Uint128 = unsigned __int128;

// The bits of weighted_sum(): enough for weights of 32 bits to give different products with any difference of two lanes, which
// is below 2^(8 * lane_bytes) in magnitude.
constexpr int weighted_sum_bits(size_t lane_bytes) {
  return lane_bytes == 8 ? 96 : 64;
}

// The sum of lane i times weights[i] over `n` signed lanes of `lane_bytes` (1, 2, 4 or 8), modulo 2^weighted_sum_bits(). The
// lanes need no alignment; `n` is at most NETSUM_MAX_PAYLOAD.
Uint128 weighted_sum(size_t lane_bytes, const uint8_t* lanes, size_t n, const int32_t* weights);

namespace plain {
Uint128 weighted_sum(size_t lane_bytes, const uint8_t* lanes, size_t n, const int32_t* weights);
}  // namespace plain

}  // namespace netsum::kernels

#endif  // NETSUM_SRC_KERNELS_WEIGHTED_H_
