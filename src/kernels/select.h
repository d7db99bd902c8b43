// Kernels of compression: the largest elements of a tensor, what remains of it, and conversions to 16 bits. Magnitudes are
// compared as the bits of |x|, which order as the numbers do; infinities are above all numbers, and NaN above infinities.
//
// Where a kernel has a Highway version that is chosen at run time, it has a plain reference (namespace kernels::plain) with
// the same bits.
#ifndef NETSUM_SRC_KERNELS_SELECT_H_
#define NETSUM_SRC_KERNELS_SELECT_H_

#include <bit>
#include <cstddef>
#include <cstdint>

#include "netsum/types.h"

namespace netsum::kernels {

inline constexpr uint32_t kInfinityBits = 0x7F800000;

inline uint32_t magnitude_bits(float value) {
  return std::bit_cast<uint32_t>(value) & 0x7FFFFFFF;
}

// The k-th largest magnitude, how many are above it, and how many are equal.
struct KthMagnitude {
  uint32_t bits = 0;
  size_t above = 0;
  size_t equal = 0;
};
// 1 <= k <= n.
KthMagnitude kth_magnitude(const float* values, size_t n, size_t k);

// A magnitude, at least 1 and at most that of infinity, that about k of the n values reach: by a histogram, in which it
// interpolates, of the values in a random one of every `stride` lines of 64 bytes. The stride is at most 16, and such that 16 000 of the
// values that reach it are in the sample: the number is off by less than 5 %, also if the values of a line are alike. 0 where that
// would be all values.
uint32_t sampled_magnitude(const float* values, size_t n, size_t k);

// sent[i] = values[i] if its magnitude is `bits` (at least 1) or more, otherwise 0. rest[i] = values[i] if it is finite and was
// not sent, otherwise 0. `rest` may be null; `sent` or `rest` may be `values`. Returns how many were sent.
size_t select(const float* values, size_t n, uint32_t bits, float* sent, float* rest);

// The same of x[i] = decay * memory[i] + values[i], in one pass: sent[i] = x[i] or 0, and memory[i] is what rest[i] would be. The bits are those of
// accumulate() and then select().
size_t select_added(float decay, const float* values, size_t n, uint32_t bits, float* sent, float* memory);
uint32_t sampled_magnitude_added(float decay, const float* values, const float* memory, size_t n, size_t k);

// memory[i] = decay * memory[i] + values[i]. The compiler's vectors are as fast as memory, so there is no version by hand.
void accumulate(float decay, const float* values, size_t n, float* memory);

// To kFloat16 or kBFloat16 and back, with the bits of PyTorch's casts. Every NaN becomes the canonical one.
void to_halves(DataType type, const float* values, size_t n, uint16_t* halves);
void from_halves(DataType type, const uint16_t* halves, size_t n, float* values);

namespace plain {
size_t select(const float* values, size_t n, uint32_t bits, float* sent, float* rest);
size_t select_added(float decay, const float* values, size_t n, uint32_t bits, float* sent, float* memory);
void to_halves(DataType type, const float* values, size_t n, uint16_t* halves);
void from_halves(DataType type, const uint16_t* halves, size_t n, float* values);
}  // namespace plain

}  // namespace netsum::kernels

#endif  // NETSUM_SRC_KERNELS_SELECT_H_
