// Kernels of sparse tensors: which elements are not zero, and copying those that a bitmap names. A value is zero if all its
// bits but the sign are, so NaN, infinities and denormal numbers are not; integers have no sign in this sense.
//
// Each kernel has a plain reference (namespace kernels::plain) and a Highway version that is chosen at run time.
#ifndef NETSUM_SRC_KERNELS_BITS_H_
#define NETSUM_SRC_KERNELS_BITS_H_

#include <cstddef>
#include <cstdint>

#include "netsum/types.h"

namespace netsum::kernels {

// Writes a bit for each of `n` elements, set if it is not zero, to ceil(n / 64) words; the rest of the last word is 0. Returns
// whether any element is a negative zero.
bool nonzero_bits(DataType type, const void* in, size_t n, uint64_t* words);

// Whether all elements are zero. If so, sets *negative_zeros if any of them is a negative zero, and otherwise leaves it.
bool all_zero(DataType type, const void* in, size_t n, bool* negative_zeros);

// Copies those of `n` <= 64 elements of `element_bytes` (2, 4 or 8) whose bit in `word` is set, one behind the other. Returns
// how many they are. No bit at n or above is set. `out` has room for 64 bytes behind them, which may be overwritten.
size_t pack(size_t element_bytes, const uint8_t* in, size_t n, uint64_t word, uint8_t* out);
// The reverse: copies elements to the places whose bit is set, and leaves the others.
size_t unpack(size_t element_bytes, const uint8_t* in, uint64_t word, uint8_t* out);

namespace plain {
bool nonzero_bits(DataType type, const void* in, size_t n, uint64_t* words);
size_t pack(size_t element_bytes, const uint8_t* in, size_t n, uint64_t word, uint8_t* out);
size_t unpack(size_t element_bytes, const uint8_t* in, uint64_t word, uint8_t* out);
}  // namespace plain

}  // namespace netsum::kernels

#endif  // NETSUM_SRC_KERNELS_BITS_H_
