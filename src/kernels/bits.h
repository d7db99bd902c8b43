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

// Positions as the words of their bitmap that are not zero: word i has the positions 64 * numbers[i] to 64 * numbers[i] + 63.
struct SetWords {
  const uint64_t* numbers = nullptr;  // ascending
  const uint64_t* words = nullptr;    // none is zero
  size_t count = 0;
};

// Copies the elements of `element_bytes` (2, 4 or 8) at the positions of `set`, one behind the other. Returns how many they are. `in`
// has `elements` elements, and the set no position at or above that. `out` has room for 64 bytes behind them, which may be
// overwritten.
size_t pack(size_t element_bytes, const uint8_t* in, size_t elements, const SetWords& set, uint8_t* out);
// The reverse: copies elements to the positions of `set`, and leaves the others.
void unpack(size_t element_bytes, const uint8_t* in, const SetWords& set, uint8_t* out);
// As pack(), where `in` has the elements of `part` alone, one behind the other: the others are zeros. Returns false if `set` lacks a
// position of `part`.
bool spread(size_t element_bytes, const uint8_t* in, const SetWords& part, const SetWords& set, uint8_t* out);

// Bits that are set.
size_t count_bits(const uint64_t* words, size_t n);
// counts[s]: how many of the blocks of 2^s bits of `n` words have a set bit, for s = 0 to 5.
void count_blocks(const uint64_t* words, size_t n, uint64_t* counts);
// out[i]: a bit for each block of 2^shift bits of words[i], from bit 0 on, set if any of theirs is; 1 <= shift <= 5.
void block_bits(const uint64_t* words, size_t n, int shift, uint64_t* out);

namespace plain {
bool nonzero_bits(DataType type, const void* in, size_t n, uint64_t* words);
size_t pack(size_t element_bytes, const uint8_t* in, const SetWords& set, uint8_t* out);
void unpack(size_t element_bytes, const uint8_t* in, const SetWords& set, uint8_t* out);
bool spread(size_t element_bytes, const uint8_t* in, const SetWords& part, const SetWords& set, uint8_t* out);
void count_blocks(const uint64_t* words, size_t n, uint64_t* counts);
void block_bits(const uint64_t* words, size_t n, int shift, uint64_t* out);
}  // namespace plain

}  // namespace netsum::kernels

#endif  // NETSUM_SRC_KERNELS_BITS_H_
