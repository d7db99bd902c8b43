/* Lane arithmetic, plainly: what BPF compiles, and the reference for the SIMD of user space. */
#ifndef NETSUM_AGGREGATOR_SLOT_LANES_H_
#define NETSUM_AGGREGATOR_SLOT_LANES_H_

#include "wire/packet.h"

/* acc = acc combined with in, `bytes` of payload in `format`. Returns 1 if a lane overflowed.
 * `bytes` is a multiple of 8, at most NETSUM_MAX_PAYLOAD. */
static inline int netsum_lanes_add(uint8_t format, void* acc, const void* in, uint32_t bytes) {
  uint8_t* a = (uint8_t*)acc;
  const uint8_t* b = (const uint8_t*)in;
  if (format == NETSUM_FORMAT_SUM_I32) {
    uint32_t overflow = 0;
    for (uint32_t i = 0; i < NETSUM_MAX_PAYLOAD / 4; ++i) {
      if (i >= bytes / 4) break;
      const uint32_t x = netsum_load32(a + 4 * i), y = netsum_load32(b + 4 * i), sum = x + y;
      overflow |= (x ^ sum) & (y ^ sum);
      netsum_store32(a + 4 * i, sum);
    }
    return (int)(overflow >> 31);
  }
  if (format == NETSUM_FORMAT_SUM_I64) {
    uint64_t overflow = 0;
    for (uint32_t i = 0; i < NETSUM_MAX_PAYLOAD / 8; ++i) {
      if (i >= bytes / 8) break;
      const uint64_t x = netsum_load64(a + 8 * i), y = netsum_load64(b + 8 * i), sum = x + y;
      overflow |= (x ^ sum) & (y ^ sum);
      netsum_store64(a + 8 * i, sum);
    }
    return (int)(overflow >> 63);
  }
  for (uint32_t i = 0; i < NETSUM_MAX_PAYLOAD; ++i) { /* NETSUM_FORMAT_MAX_U8 */
    if (i >= bytes) break;
    if (b[i] > a[i]) a[i] = b[i];
  }
  return 0;
}

#endif /* NETSUM_AGGREGATOR_SLOT_LANES_H_ */
