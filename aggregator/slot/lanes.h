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

/* Eight 8-bit maxima in one word. A loop over single bytes has more turns than the BPF verifier follows. */
NETSUM_INLINE uint64_t netsum_max_u8x8(uint64_t x, uint64_t y) {
  const uint64_t top = 0x8080808080808080ull;
  const uint64_t low_ge = (x | top) - (y & ~top); /* top bit: the low seven bits of x are >= those of y */
  const uint64_t ge = ((x & ~y) | (~(x ^ y) & low_ge)) & top;
  const uint64_t take_x = ge | (ge - (ge >> 7));
  return (x & take_x) | (y & ~take_x);
}

/* acc = acc combined with in, in `format`. Returns 1 if a lane overflowed (sums wrap, two's complement). */
NETSUM_INLINE int netsum_lanes_add(uint8_t format, void* acc, const void* in, uint32_t bytes) {
  uint8_t* a = (uint8_t*)acc;
  const uint8_t* b = (const uint8_t*)in;
  if (format == NETSUM_FORMAT_SUM_I32) {
    uint32_t overflow = 0;
    for (size_t i = 0; i < bytes; i += 4) {
      const uint32_t x = netsum_load32(a + i), y = netsum_load32(b + i), sum = x + y;
      overflow |= (x ^ sum) & (y ^ sum);
      netsum_store32(a + i, sum);
    }
    return (int)(overflow >> 31);
  }
  if (format == NETSUM_FORMAT_SUM_I64) {
    uint64_t overflow = 0;
    for (size_t i = 0; i < bytes; i += 8) {
      const uint64_t x = netsum_load64(a + i), y = netsum_load64(b + i), sum = x + y;
      overflow |= (x ^ sum) & (y ^ sum);
      netsum_store64(a + i, sum);
    }
    return (int)(overflow >> 63);
  }
  for (size_t i = 0; i < bytes; i += 8) { /* NETSUM_FORMAT_MAX_U8 */
    netsum_store64(a + i, netsum_max_u8x8(netsum_load64(a + i), netsum_load64(b + i)));
  }
  return 0;
}

#endif /* NETSUM_AGGREGATOR_SLOT_LANES_H_ */
