/* Lane arithmetic, plainly: what BPF compiles, and the reference for the SIMD of user space.
 * Everywhere: `bytes` is a multiple of 8 and at most NETSUM_MAX_PAYLOAD; pointers need no alignment. */
#ifndef NETSUM_AGGREGATOR_SLOT_LANES_H_
#define NETSUM_AGGREGATOR_SLOT_LANES_H_

#include "wire/packet.h"

/* acc = in: the first contribution of a round. Word by word, because BPF has no memcpy of variable size. */
NETSUM_INLINE void netsum_lanes_store(void* acc, const void* in, uint32_t bytes) {
  for (size_t i = 0; i < bytes; i += 8) {
    netsum_store64((uint8_t*)acc + i, netsum_load64((const uint8_t*)in + i));
  }
}

/* Lanes are combined a 64-bit word at a time, whatever their width: BPF and the verifier pay per instruction,
 * and a loop over single bytes has more turns than the verifier follows. */

/* Sums of lanes whose top bits are `top`. The carry out of a lane's top bit must not reach the next lane, so
 * the top bits are added apart. Sets the top bits of lanes that overflowed in *overflow. */
NETSUM_INLINE uint64_t netsum_word_add(uint64_t x, uint64_t y, uint64_t top, uint64_t* overflow) {
  const uint64_t sum = ((x & ~top) + (y & ~top)) ^ ((x ^ y) & top);
  *overflow |= (x ^ sum) & (y ^ sum);
  return sum;
}
/* The same for lanes of 32 and 64 bits, in fewer instructions: two lanes have one carry between them, which is taken off again.
 * `carry`: the bit that it comes to, 1 << 32; 0 if the word is one lane. */
NETSUM_INLINE uint64_t netsum_word_add_wide(uint64_t x, uint64_t y, uint64_t carry, uint64_t* overflow) {
  uint64_t sum = x + y;
  sum -= (x ^ y ^ sum) & carry;
  *overflow |= (x ^ sum) & (y ^ sum);
  return sum;
}
/* The top bits of the lanes of a SUM format. */
NETSUM_INLINE uint64_t netsum_top_bits(uint8_t format) {
  if (format == NETSUM_FORMAT_SUM_I8) return 0x8080808080808080ull;
  if (format == NETSUM_FORMAT_SUM_I16) return 0x8000800080008000ull;
  return format == NETSUM_FORMAT_SUM_I32 ? 0x8000000080000000ull : 0x8000000000000000ull;
}

/* Maxima of unsigned lanes of `bits` bits, whose top bits are `top`. */
NETSUM_INLINE uint64_t netsum_word_max(uint64_t x, uint64_t y, uint64_t top, uint32_t bits) {
  const uint64_t low_ge = (x | top) - (y & ~top); /* top bit: the other bits of x are >= those of y */
  const uint64_t ge = ((x & ~y) | (~(x ^ y) & low_ge)) & top;
  const uint64_t take_x = ge | (ge - (ge >> (bits - 1)));
  return (x & take_x) | (y & ~take_x);
}
NETSUM_INLINE uint32_t netsum_max_bits(uint8_t format) {
  return 8 * netsum_lane_bytes(format);
}
/* The top bits of the lanes of a MAX format. */
NETSUM_INLINE uint64_t netsum_max_top_bits(uint8_t format) {
  if (format == NETSUM_FORMAT_MAX_U8) return 0x8080808080808080ull;
  if (format == NETSUM_FORMAT_MAX_U16) return 0x8000800080008000ull;
  return format == NETSUM_FORMAT_MAX_U32 ? 0x8000000080000000ull : 0x8000000000000000ull;
}

/* x OR y if `both` is all ones, x XOR y if it is 0. */
NETSUM_INLINE uint64_t netsum_word_or(uint64_t x, uint64_t y, uint64_t both) {
  return (x ^ y) | (x & y & both);
}
NETSUM_INLINE uint64_t netsum_or_both(uint8_t format) {
  return format == NETSUM_FORMAT_OR_U64 ? ~0ull : 0;
}

NETSUM_INLINE int netsum_lanes_sum(uint64_t top, uint8_t* acc, const uint8_t* in, uint32_t bytes) {
  uint64_t overflow = 0;
  for (size_t i = 0; i < bytes; i += 8) {
    netsum_store64(acc + i, netsum_word_add(netsum_load64(acc + i), netsum_load64(in + i), top, &overflow));
  }
  return (overflow & top) != 0;
}

/* acc = acc combined with in, in `format`. Returns 1 if a lane overflowed (sums wrap, two's complement). */
NETSUM_INLINE int netsum_lanes_add(uint8_t format, void* acc, const void* in, uint32_t bytes) {
  uint8_t* a = (uint8_t*)acc;
  const uint8_t* b = (const uint8_t*)in;
  const uint8_t op = format >> 4;
  if (op == NETSUM_OP_SUM) return netsum_lanes_sum(netsum_top_bits(format), a, b, bytes);
  for (size_t i = 0; i < bytes; i += 8) {
    const uint64_t x = netsum_load64(a + i), y = netsum_load64(b + i);
    netsum_store64(a + i, op == NETSUM_OP_MAX
                              ? netsum_word_max(x, y, netsum_max_top_bits(format), netsum_max_bits(format))
                              : netsum_word_or(x, y, netsum_or_both(format)));
  }
  return 0;
}

#endif /* NETSUM_AGGREGATOR_SLOT_LANES_H_ */
