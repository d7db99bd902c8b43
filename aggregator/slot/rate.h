/* How fast a job's members may send, all together: token buckets of one number each, the time until which
 * what has been taken would have been earned (GCRA, as in ATM Forum's TM 4.0). Freestanding C, for all
 * dataplanes.
 *
 * A packet that somebody has recorded and sends again passes the check, and its source address can be forged,
 * too. So a job has one bucket for each kind of packet, and a packet is charged to the bucket of what it is
 * to its slot: replayed packets cannot use up what contributions need. */
#ifndef NETSUM_AGGREGATOR_SLOT_RATE_H_
#define NETSUM_AGGREGATOR_SLOT_RATE_H_

#include "aggregator/slot/slot.h"

#define NETSUM_RATE_BURST_NS 100000000ull /* what a job that was silent may have saved up: 0.1 s ... */
#define NETSUM_RATE_BURST_PACKETS 64ull   /* ... or, of a low rate, so many packets */
#define NETSUM_RATE_MAX 100000000ull      /* packets per second */

/* The kinds of packets, each with a bucket of its own. */
#define NETSUM_RATE_PROGRESS 0 /* a contribution that its slot does not have yet */
#define NETSUM_RATE_ANSWERS 1  /* a packet that is answered: PROBE, HELLO, a repeated contribution */
#define NETSUM_RATE_REPEATS 2  /* one that is refused, or was answered a moment ago */
#define NETSUM_RATE_KINDS 3

struct netsum_job_rate {
  uint64_t spent_until_ns[NETSUM_RATE_KINDS]; /* all 0 at first */
};

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

/* A request that arrives again within 4 ms (at low rates: within the time of four packets) is a repeat. Members wait
 * longer before they repeat one, and a replayed request gets a quarter of the answers at most. */
#define NETSUM_RATE_REPEAT_NS (4ull << 20)
#define NETSUM_RATE_REPEAT_PACKETS 4ull

/* struct netsum_slot.answered: the latest request that was answered, and when. Never 0: types begin at 1. */
NETSUM_INLINE uint16_t netsum_rate_request(const struct netsum_fields* f) {
  return (uint16_t)((f->round & 63) << 10 | (uint32_t)(f->member & 63) << 4 | (f->type & 15));
}
NETSUM_INLINE uint16_t netsum_rate_ticks(uint64_t now_ns) {
  return (uint16_t)(now_ns >> 20);
}

/* Request `f` has passed its check and is about to be answered: the same request is a repeat for the next few
 * milliseconds. */
NETSUM_INLINE void netsum_rate_note_answer(struct netsum_slot* slot, const struct netsum_fields* f,
                                           uint64_t now_ns) {
  slot->answered = (uint32_t)netsum_rate_ticks(now_ns) << 16 | netsum_rate_request(f);
}

NETSUM_INLINE int netsum_rate_is_repeat(const struct netsum_rate* rate, uint32_t answered,
                                        const struct netsum_fields* f, uint64_t now_ns) {
  const uint64_t packets_ns = rate->interval_ns * NETSUM_RATE_REPEAT_PACKETS;
  const uint64_t span_ns = packets_ns > NETSUM_RATE_REPEAT_NS ? packets_ns : NETSUM_RATE_REPEAT_NS;
  const uint16_t age = (uint16_t)(netsum_rate_ticks(now_ns) - (answered >> 16));
  return (answered & 0xFFFF) == netsum_rate_request(f) && age < span_ns >> 20;
}

/* The kind of a packet from a member that has passed netsum_check_rules() and names `slot`. It only selects
 * the bucket, so its tag need not have been verified, and the slot may be read without its lock. */
NETSUM_INLINE int netsum_rate_kind(const struct netsum_rate* rate, const struct netsum_slot* slot,
                                   const struct netsum_fields* f, uint64_t now_ns) {
  const uint64_t bit = netsum_member_bit(f->member);
  const uint32_t ahead = f->round - slot->current;
  const struct netsum_round* round = &slot->rounds[f->round & 1];
  const int contributes = f->type == NETSUM_TYPE_CONTRIBUTION;
  if (f->type != NETSUM_TYPE_HELLO) {
    if (ahead == 1) {
      if (!netsum_current_is_over(slot)) return NETSUM_RATE_REPEATS;
      if (contributes) return NETSUM_RATE_PROGRESS;
    } else if (ahead == 0) {
      if (round->state == NETSUM_ROUND_EMPTY) return NETSUM_RATE_REPEATS;
      if (contributes && round->state == NETSUM_ROUND_OPEN) {
        return round->seen & bit ? NETSUM_RATE_REPEATS : NETSUM_RATE_PROGRESS;
      }
    } else if (ahead != 0xFFFFFFFFu || netsum_on_previous(slot, bit).action == NETSUM_ACT_DROP) {
      return NETSUM_RATE_REPEATS;
    }
  }
  return netsum_rate_is_repeat(rate, slot->answered, f, now_ns) ? NETSUM_RATE_REPEATS : NETSUM_RATE_ANSWERS;
}

#endif /* NETSUM_AGGREGATOR_SLOT_RATE_H_ */
