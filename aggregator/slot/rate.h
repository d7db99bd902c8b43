/* How fast a job's members may send, all together: a token bucket in one number, the time until which what
 * has been taken would have been earned (GCRA, as in ATM Forum's TM 4.0). Freestanding C, for all dataplanes.
 */
#ifndef NETSUM_AGGREGATOR_SLOT_RATE_H_
#define NETSUM_AGGREGATOR_SLOT_RATE_H_

#include "wire/packet.h"

#define NETSUM_RATE_BURST_NS 100000000ull /* what a job that was silent may have saved up: 0.1 s ... */
#define NETSUM_RATE_BURST_PACKETS 64ull   /* ... or, of a low rate, so many packets */
#define NETSUM_RATE_MAX 100000000ull      /* packets per second */

struct netsum_rate {
  uint64_t interval_ns; /* that a packet takes; 0: no limit */
  uint64_t burst_ns;
};

/* `packets_per_s`: 0 (no limit) to NETSUM_RATE_MAX. Whole nanoseconds: off by 10 % at the most, at 100 M. */
NETSUM_INLINE struct netsum_rate netsum_rate_of(uint64_t packets_per_s) {
  struct netsum_rate rate = {0, 0};
  if (packets_per_s == 0) return rate;
  rate.interval_ns = 1000000000ull / packets_per_s;
  rate.burst_ns = rate.interval_ns * NETSUM_RATE_BURST_PACKETS;
  if (rate.burst_ns < NETSUM_RATE_BURST_NS) rate.burst_ns = NETSUM_RATE_BURST_NS;
  return rate;
}

/* Whether the next packet is one too many. `spent_until_ns` is the bucket's state, 0 at first. */
NETSUM_INLINE int netsum_rate_is_spent(const struct netsum_rate* rate, uint64_t spent_until_ns,
                                       uint64_t now_ns) {
  return rate->interval_ns != 0 && spent_until_ns > now_ns + rate->burst_ns;
}

/* The state after one more packet. */
NETSUM_INLINE uint64_t netsum_rate_take(const struct netsum_rate* rate, uint64_t spent_until_ns,
                                        uint64_t now_ns) {
  return (spent_until_ns > now_ns ? spent_until_ns : now_ns) + rate->interval_ns;
}

#endif /* NETSUM_AGGREGATOR_SLOT_RATE_H_ */
