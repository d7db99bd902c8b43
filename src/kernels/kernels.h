// The arithmetic of the data path: scan, quantise, add, dequantise, check. Each kernel has a plain reference
// (namespace kernels::plain) and a Highway version chosen at run time; both give the same bits for every
// input on every machine (no fused multiply-add, IEEE round-to-nearest-even).
//
// Lanes are little-endian in the packet. Pointers into packets need no alignment; `n` counts elements.
// Background and error bound: docs/numerics.md.
#ifndef NETSUM_SRC_KERNELS_KERNELS_H_
#define NETSUM_SRC_KERNELS_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "netsum/types.h"

namespace netsum::kernels {

// What ranks must agree on before they can add a block: travels as two 8-bit MAX lanes.
struct BlockScale {
  // Floating point: biased binary32 exponent field of the largest finite magnitude, at least 1 unless all
  // finite elements are zero (then 0). So every finite |x| < 2^(exponent - 126). Integers: 1 unless all are zero.
  uint8_t exponent = 0;
  // 1 if the block needs wide lanes: it holds a NaN or an infinity (floating point), or n_members times its
  // largest magnitude might not fit the lane (integers).
  uint8_t wide = 0;
  bool operator==(const BlockScale&) const = default;
};

// The most significant bits that an element of lanes of this width has: float32's and float16's.
constexpr int significant_bits(int lane_bits) {
  return lane_bits == 16 ? 11 : 24;
}

// Elements are below 2^quantum_bits quanta, and `members` of them sum below 2^(lane_bits - 1). Where elements
// have more significant bits than that, rounding can lift them to 2^quantum_bits: a number of members that is
// a power of two then has one bit less. (With binary32: 256 and 512.) With 8 bits it has not, because lanes are
// limited to largest_lane8() instead: what half a quantum more costs the largest elements, all others gain twice.
constexpr int quantum_bits(int members, int lane_bits = 32) {
  int log2_members = 0;
  while ((1 << log2_members) < members) ++log2_members;
  const int bits = lane_bits - 1 - log2_members;
  if (lane_bits == 8) return bits;
  const bool rounds_up = bits < significant_bits(lane_bits);
  return rounds_up && (1 << log2_members) == members ? bits - 1 : bits;
}

// bfloat16 and float16 may travel in 16-bit lanes up to so many members: then quantum_bits is 11 at least,
// the significant bits of float16, and the largest elements of a block are exact.
inline constexpr int kMaxMembers16 = 16;
static_assert(quantum_bits(kMaxMembers16, 16) == 11);
constexpr bool fits_lanes16(DataType type, int members) {
  return size_of(type) == 2 && members <= kMaxMembers16;
}

// Floating-point types may travel in 8-bit lanes up to so many members: then quantum_bits is 1 at least, and no element
// that is a power of two and the largest of its block becomes 0.
inline constexpr int kMaxMembers8 = 64;
static_assert(quantum_bits(kMaxMembers8, 8) == 1);
constexpr bool fits_lanes8(DataType type, int members) {
  return is_floating(type) && members <= kMaxMembers8;
}
// `members` of this magnitude sum to at most 127.
constexpr int largest_lane8(int members) {
  return 127 / members;
}

// Width of the lanes in which blocks of `type` travel, but for wide ones. `wanted` as
// CommunicatorOptions::lane_bits.
constexpr int narrow_lane_bits(DataType type, int members, int wanted) {
  if (type == DataType::kInt64) return 64;
  if (wanted == 8 && fits_lanes8(type, members)) return 8;
  return wanted != 32 && fits_lanes16(type, members) ? 16 : 32;
}

// Reads `n` elements of `type` at `in`.
BlockScale scan(DataType type, const void* in, size_t n, int members);

// --- Narrow (32-bit) lanes: float32, bfloat16, float16, int32 ---------------------------------------------
// Floating point: lane = round_to_nearest_even(x * 2^(quantum_bits - (exponent - 126))); exponent 0 gives 0.
// The block must be finite, and |x| < 2^(exponent - 126) for all x. int32: copied.
void to_lanes32(DataType type, const void* in, size_t n, uint8_t exponent, int members, uint8_t* lanes);
// The reverse: exact sum x quantum, rounded once to binary32; with `average`, that divided by members in
// binary32; then, for the 16-bit types, rounded again to `type`.
void from_lanes32(DataType type, const uint8_t* lanes, size_t n, uint8_t exponent, int members, bool average,
                  void* out);

// --- Narrow (16-bit) lanes: bfloat16, float16; members <= kMaxMembers16
// As above, with quantum_bits of 16-bit lanes. Every sum is exact in binary32.
void to_lanes16(DataType type, const void* in, size_t n, uint8_t exponent, int members, uint8_t* lanes);
void from_lanes16(DataType type, const uint8_t* lanes, size_t n, uint8_t exponent, int members, bool average,
                  void* out);

// --- Narrow (8-bit) lanes: float32, bfloat16, float16; members <= kMaxMembers8
// As above, with quantum_bits of 8-bit lanes, and no further from 0 than largest_lane8(). Every sum is exact in binary32.
// Blocks with NaN or Inf travel in the same lanes, in which these have any value, and in marks.
void to_lanes8(DataType type, const void* in, size_t n, uint8_t exponent, int members, uint8_t* lanes);
void from_lanes8(DataType type, const uint8_t* lanes, size_t n, uint8_t exponent, int members, bool average,
                 void* out);
// The marks of elements that are not finite: element i has bits 2i and 2i + 1 of `marks`, set if some rank has +Inf and -Inf
// there. A NaN counts as both, whose sum it is. Adds those of `n` elements, the first of which is number `first`.
void mark_specials(DataType type, const void* in, size_t n, size_t first, uint8_t* marks);
// Writes the marked ones of `n` elements, the first of which is number `first`.
void put_specials(DataType type, const uint8_t* marks, size_t first, size_t n, void* out);

// --- Wide (64-bit) lanes: blocks whose narrow lanes would have 32 bits
// Floating point with NaN or Inf: bits 0-33 quantised value (signed; 0 for a non-finite element), then counts
// of +Inf (bits 34-43) and -Inf (44-53), all as one 64-bit integer, so lanes still simply add. A NaN counts
// as both infinities, whose sum it is. int32: sign-extended. int64: see below.
void to_lanes64(DataType type, const void* in, size_t n, uint8_t exponent, int members, uint8_t* lanes);
// Returns false if an integer sum does not fit `type` (the elements that fit are still written).
bool from_lanes64(DataType type, const uint8_t* lanes, size_t n, uint8_t exponent, int members, bool average,
                  void* out);

// --- Wide (32-bit) lanes: bfloat16, float16 blocks whose narrow lanes would have 16 bits
// With NaN or Inf: bits 0-15 quantised value (signed), then counts of +Inf (bits 16-20) and -Inf (21-25), all
// as one 32-bit integer.
void to_wide_lanes32(DataType type, const void* in, size_t n, uint8_t exponent, int members, uint8_t* lanes);
void from_wide_lanes32(DataType type, const uint8_t* lanes, size_t n, uint8_t exponent, int members,
                       bool average, void* out);

// int64 whose sum might pass 64 bits travels as two lanes: the low 32 bits (unsigned) and the high 32 bits
// (signed), each sign- or zero-extended to 64. `half` 0 is low, 1 is high.
void int64_to_half_lanes(const int64_t* in, size_t n, int half, uint8_t* lanes);
// out = high * 2^32 + low, both being summed lanes. Returns false if any does not fit. `low` and `out` may be
// the same memory.
bool int64_from_half_lanes(const uint8_t* low, const uint8_t* high, size_t n, int64_t* out);

// --- Narrow lanes of several inputs
// In one pass, the bits that the inputs' narrow lanes (of `lane_bits`; int64: 64) give when they are added and decoded. No
// input, of `n` elements each, needs wide lanes; `out` may be one of them. Only where can_sum_narrow(): not for the rare
// blocks whose quantum is not a normal binary32 number.
bool can_sum_narrow(DataType type, int lane_bits, uint8_t exponent, int members);
void sum_narrow(DataType type, int lane_bits, std::span<const uint8_t* const> inputs, size_t n,
                uint8_t exponent, int members, bool average, void* out);

// --- In the aggregator
// acc[i] += lanes[i], two's complement. Returns true if any lane overflowed.
bool add_lanes8(uint8_t* acc, const uint8_t* lanes, size_t n);
bool add_lanes16(uint8_t* acc, const uint8_t* lanes, size_t n);
bool add_lanes32(uint8_t* acc, const uint8_t* lanes, size_t n);
bool add_lanes64(uint8_t* acc, const uint8_t* lanes, size_t n);
// acc[i] = max(acc[i], lanes[i]), unsigned.
void max_lanes8(uint8_t* acc, const uint8_t* lanes, size_t n);
void max_lanes16(uint8_t* acc, const uint8_t* lanes, size_t n);
void max_lanes32(uint8_t* acc, const uint8_t* lanes, size_t n);
void max_lanes64(uint8_t* acc, const uint8_t* lanes, size_t n);
// acc[i] |= lanes[i], acc[i] ^= lanes[i]. Lanes of all widths are the same here.
void or_lanes(uint8_t* acc, const uint8_t* lanes, size_t bytes);
void xor_lanes(uint8_t* acc, const uint8_t* lanes, size_t bytes);
// As add_lanesN for lanes of `lane_bytes` (1, 2, 4 or 8), on `bytes` of them.
bool add_lanes(size_t lane_bytes, uint8_t* acc, const uint8_t* lanes, size_t bytes);
// What an aggregator does with lanes of `format` (NETSUM_FORMAT_* of wire/ids.h, no values): one of the above, on `bytes` of
// them. Returns true if a lane overflowed.
bool combine_lanes(uint8_t format, uint8_t* acc, const uint8_t* lanes, size_t bytes);

// --- Elements as unsigned words
// Unsigned words of the type's size, in the order of the elements: a < b if word(a) < word(b). Integers: by value. Floating
// point: by value, -0 before +0, and every NaN is the largest word. No element but the smallest integer has the word 0.
// `complement`: all bits of the word are inverted, so that the order is the reverse, and every NaN is again the largest word.
void to_ordered_words(DataType type, bool complement, const void* in, size_t n, uint8_t* words);
// The reverse. A NaN becomes the canonical one. The word 0 of a floating-point type, which no element has, becomes a NaN.
void from_ordered_words(DataType type, bool complement, const uint8_t* words, size_t n, void* out);
// out[i] = ~in[i], bytes.
void invert(const void* in, size_t bytes, void* out);

// --- Floating-point elements, added as such
// The sum of `inputs`, of n elements each, in float32 and in their order: ((input 0 + input 1) + input 2) and so on, divided by
// `divisor` in float32, and then rounded to the type `to`, once. NaN results are canonical, everything else is IEEE 754.
// `to` is `type`, or one of the two is float32. `out` may be one of the inputs, if its elements are not larger. `before`: a
// sum of earlier inputs in float32, which these are added to; it may be `out`.
void sum_in_order(DataType type, std::span<const uint8_t* const> inputs, size_t n, int divisor, DataType to,
                  void* out, const uint8_t* before = nullptr);

// --- In an aggregator that gets values
// One block of each member: member m's values begin at first + m * stride.
struct Values {
  const uint8_t* first = nullptr;
  size_t stride = 0;  // bytes
  int members = 0;
  size_t count = 0;  // elements of each

  const uint8_t* of(int member) const { return first + static_cast<size_t>(member) * stride; }
};
// Their sum or mean, in the order of the members. Returns false if an integer sum does not fit `type`. `out` may not overlap
// the values.
bool sum_values(DataType type, bool average, const Values& values, void* out);

// --- Copying
// memcpy for what this core will not read again soon: the stores of large copies go past the cache, so the
// destination's old lines are not fetched first. Other threads see them as soon as they see any later store.
void copy_out(void* to, const void* from, size_t bytes);

// --- Integrity
// NH (Black et al., UMAC, CRYPTO'99) over `bytes` (a multiple of 8) of payload as little-endian 32-bit words
// w: sum over i of (w[2i] + key[2i] mod 2^32) * (w[2i+1] + key[2i+1] mod 2^32), mod 2^64. `key` has bytes / 4
// words; the protocol's is derived from the job's secret (wire/packet.h).
uint64_t nh(const uint8_t* payload, size_t bytes, const uint32_t* key);

// The same functions, written plainly. Tests compare; no production code calls them.
namespace plain {
BlockScale scan(DataType type, const void* in, size_t n, int members);
void to_lanes32(DataType type, const void* in, size_t n, uint8_t exponent, int members, uint8_t* lanes);
void from_lanes32(DataType type, const uint8_t* lanes, size_t n, uint8_t exponent, int members, bool average,
                  void* out);
void to_lanes16(DataType type, const void* in, size_t n, uint8_t exponent, int members, uint8_t* lanes);
void from_lanes16(DataType type, const uint8_t* lanes, size_t n, uint8_t exponent, int members, bool average,
                  void* out);
void to_lanes8(DataType type, const void* in, size_t n, uint8_t exponent, int members, uint8_t* lanes);
void from_lanes8(DataType type, const uint8_t* lanes, size_t n, uint8_t exponent, int members, bool average,
                 void* out);
void to_lanes64(DataType type, const void* in, size_t n, uint8_t exponent, int members, uint8_t* lanes);
bool from_lanes64(DataType type, const uint8_t* lanes, size_t n, uint8_t exponent, int members, bool average,
                  void* out);
void to_wide_lanes32(DataType type, const void* in, size_t n, uint8_t exponent, int members, uint8_t* lanes);
void from_wide_lanes32(DataType type, const uint8_t* lanes, size_t n, uint8_t exponent, int members,
                       bool average, void* out);
bool add_lanes8(uint8_t* acc, const uint8_t* lanes, size_t n);
bool add_lanes16(uint8_t* acc, const uint8_t* lanes, size_t n);
bool add_lanes32(uint8_t* acc, const uint8_t* lanes, size_t n);
bool add_lanes64(uint8_t* acc, const uint8_t* lanes, size_t n);
void max_lanes8(uint8_t* acc, const uint8_t* lanes, size_t n);
void max_lanes16(uint8_t* acc, const uint8_t* lanes, size_t n);
void max_lanes32(uint8_t* acc, const uint8_t* lanes, size_t n);
void max_lanes64(uint8_t* acc, const uint8_t* lanes, size_t n);
void or_lanes(uint8_t* acc, const uint8_t* lanes, size_t bytes);
void xor_lanes(uint8_t* acc, const uint8_t* lanes, size_t bytes);
void sum_in_order(DataType type, std::span<const uint8_t* const> inputs, size_t n, int divisor, DataType to,
                  void* out, const uint8_t* before = nullptr);
uint64_t nh(const uint8_t* payload, size_t bytes, const uint32_t* key);
}  // namespace plain

}  // namespace netsum::kernels

#endif  // NETSUM_SRC_KERNELS_KERNELS_H_
