/* The slot machine: what an aggregator does with one packet. Freestanding C: the user-space server, the
 * simulator and BPF compile this same file. Rules and their reasons: wire/PROTOCOL.md.
 *
 * A slot holds two rounds: `current`, and the finished one before it, whose result stays until every member
 * has moved on. Round r lives in rounds[r & 1]. A member sends round r + 1 only after it has the result of r,
 * so the first packet of r + 1 proves that somebody has r, and the completion of r + 1 proves that everybody
 * has: only then may r + 2 overwrite r. Rounds start at 1.
 *
 * An aggregator may itself be a member of a parent's job (hierarchy). Then the sum of a round that all
 * members have contributed to goes up, and the round is complete when the parent's result has come down. The
 * parent's rules are the same: between them, this slot is a member that keeps one step outstanding. It has no
 * timer: what was lost on the way up or down is found by the members' probes.
 *
 * Thread rule: one thread at a time per slot. */
#ifndef NETSUM_AGGREGATOR_SLOT_SLOT_H_
#define NETSUM_AGGREGATOR_SLOT_SLOT_H_

#include "wire/parse.h"

#define NETSUM_ROUND_EMPTY 0 /* before the first use */
#define NETSUM_ROUND_OPEN 1
#define NETSUM_ROUND_COMPLETE 2
#define NETSUM_ROUND_FAILED 3 /* members disagree on what is being summed: stays so until the job ends */
#define NETSUM_ROUND_SUMMED 4 /* all have contributed; the sum is with the parent */

struct netsum_round {
  uint64_t seen;      /* bitmap of the members that have contributed */
  uint64_t no_result; /* of those that need no lanes of the result */
  uint32_t chunk;
  uint32_t signature;
  uint32_t payload_bytes; /* of the lanes */
  uint16_t blamed;        /* FAILED: the member that differs */
  uint8_t format;
  uint8_t flags; /* PART, as contributed */
  uint8_t state;
  uint8_t overflow; /* 1 if a lane passed its range: the result says so */
  uint16_t filled;  /* the last member that contributed lanes; ALL: none has, so all lanes are 0 */
  uint8_t unsent;   /* 1: COMPLETE, but no packet with room for the result has come since */
  uint8_t reserved[3];
};

struct netsum_slot {
  uint32_t current;
  uint32_t answered; /* for rate.h */
  struct netsum_round rounds[2];
};
NETSUM_STATIC_ASSERT(sizeof(struct netsum_slot) == 8 + 2 * 40, "slots have no hidden padding");

/* What a job may do on this aggregator. Installed by the control plane. */
struct netsum_job_rules {
  uint16_t epoch;
  uint16_t members; /* 1 to NETSUM_MAX_MEMBERS; 0: no such job */
  uint32_t slots;
  uint32_t payload_bytes; /* largest payload */
  uint8_t has_parent;     /* sums go up, results come down */
  uint8_t adds_floats;    /* all slots take floats, too; 0 if the dataplane cannot add them */
  uint16_t value_slots;   /* the last slots, which take values, too; 0 if the dataplane cannot sum them */
};

/* What to do with a packet. */
#define NETSUM_ACT_DROP 0         /* count it under `drop` */
#define NETSUM_ACT_STORE 1        /* first contribution: copy the lanes into rounds[bank] */
#define NETSUM_ACT_ADD 2          /* combine the lanes with those of rounds[bank] */
#define NETSUM_ACT_REPLY_RESULT 3 /* send the result of rounds[bank] to the sender */
#define NETSUM_ACT_REPLY_STATUS 4 /* tell the sender `seen` and `flags` */
#define NETSUM_ACT_REPLY_ERROR 5  /* tell the sender that rounds[bank] has failed */
#define NETSUM_ACT_ERROR_ALL 6    /* tell everybody that rounds[bank] has failed */
#define NETSUM_ACT_SEND_UP \
  7 /* contribute the sum in rounds[bank] to the parent, again; without lanes if the packet has none */
#define NETSUM_ACT_PROBE_UP 8 /* ask the parent about the round, in the sender's name */
#define NETSUM_ACT_TAKE_RESULT \
  9 /* the parent's result: move the lanes into rounds[bank], send it to everybody */
#define NETSUM_ACT_PASS_STATUS 10 /* tell member `addressee` `seen` and `flags`: the parent's answer */
#define NETSUM_ACT_CLEAR 11       /* first contribution, without lanes: those of rounds[bank] are 0 */
#define NETSUM_ACT_COUNT 12       /* contribution without lanes: those of rounds[bank] stay */
#define NETSUM_ACT_RESULT_ALL 13  /* send the result of rounds[bank] to everybody */

struct netsum_verdict {
  uint8_t action;
  uint8_t drop;
  uint8_t bank;
  uint8_t flags; /* of a STATUS */
  uint16_t addressee;
  uint64_t seen;
};

NETSUM_INLINE uint64_t netsum_member_bit(uint16_t member) {
  return 1ull << member;
}
NETSUM_INLINE uint64_t netsum_all_members(uint16_t members) {
  return members >= 64 ? ~0ull : (1ull << members) - 1;
}

NETSUM_INLINE struct netsum_verdict netsum_dropped(uint8_t reason) {
  struct netsum_verdict v = {NETSUM_ACT_DROP, reason, 0, 0, 0, 0};
  return v;
}
NETSUM_INLINE struct netsum_verdict netsum_act(uint8_t action, uint32_t bank, uint64_t seen) {
  struct netsum_verdict v = {action, NETSUM_DROP_NONE, (uint8_t)bank, 0, 0, seen};
  return v;
}
/* The answer to a probe: `seen` have contributed. A member contributes (again) if its contribution is missing
 * or if the round is complete: the answer to a contribution has room for the result. */
NETSUM_INLINE struct netsum_verdict netsum_tell(uint32_t bank, uint64_t seen, int again) {
  const uint8_t flags = again ? NETSUM_FLAG_AGAIN : 0;
  struct netsum_verdict v = {NETSUM_ACT_REPLY_STATUS, NETSUM_DROP_NONE, (uint8_t)bank, flags, 0, seen};
  return v;
}

/* Whether the lanes that the packet has, or stands for, fit the job. */
NETSUM_INLINE int netsum_length_fits_job(const struct netsum_fields* f,
                                         const struct netsum_job_rules* rules) {
  if (f->payload_bytes > rules->payload_bytes) return 0;
  if (!(f->flags & NETSUM_FLAG_EMPTY)) return 1;
  return f->absent_bytes > 0 && f->absent_bytes <= rules->payload_bytes &&
         f->absent_bytes % NETSUM_PAYLOAD_MULTIPLE == 0;
}

/* Bounds and identity against the job, for packets that name a slot. The caller has looked up `rules` by
 * fields->job, and still has to verify the check. */
NETSUM_INLINE int netsum_check_rules(const struct netsum_fields* f, const struct netsum_job_rules* rules) {
  if (rules->members == 0) return NETSUM_DROP_UNKNOWN_JOB;
  if (f->epoch != rules->epoch) return NETSUM_DROP_STALE_EPOCH;
  if (f->member >= rules->members) return NETSUM_DROP_BAD_MEMBER;
  if (f->slot >= rules->slots) return NETSUM_DROP_BAD_SLOT;
  if (!netsum_length_fits_job(f, rules)) return NETSUM_DROP_BAD_LENGTH;
  if (netsum_is_values(f->format) && f->slot + rules->value_slots < rules->slots &&
      !(rules->adds_floats && netsum_is_floats(f->format)))
    return NETSUM_DROP_BAD_FORMAT;
  return NETSUM_DROP_NONE;
}

/* A job as its parent knows it. */
struct netsum_parent_job {
  uint16_t job;
  uint16_t epoch;
  uint16_t member; /* ours */
  uint16_t reserved;
};

/* The same for what comes from the parent. `rules` are the job's own. */
NETSUM_INLINE int netsum_check_parent(const struct netsum_fields* f, const struct netsum_parent_job* parent,
                                      const struct netsum_job_rules* rules) {
  if (f->epoch != parent->epoch) return NETSUM_DROP_STALE_EPOCH;
  if (f->slot >= rules->slots) return NETSUM_DROP_BAD_SLOT;
  if (!netsum_length_fits_job(f, rules)) return NETSUM_DROP_BAD_LENGTH;
  return NETSUM_DROP_NONE;
}

/* Whether the type comes from a parent; all other types come from members. */
NETSUM_INLINE int netsum_is_parents(uint8_t type) {
  return type == NETSUM_TYPE_RESULT || type == NETSUM_TYPE_STATUS || type == NETSUM_TYPE_ERROR ||
         type == NETSUM_TYPE_WELCOME;
}

/* Rounds that are neither open nor next: names the reason. Distances are modulo 2^32. */
NETSUM_INLINE struct netsum_verdict netsum_not_live(uint32_t ahead) {
  return netsum_dropped(ahead < 0x80000000u ? NETSUM_DROP_FUTURE_ROUND : NETSUM_DROP_STALE_ROUND);
}

/* True if the current round is over, so that the next may open. */
NETSUM_INLINE int netsum_current_is_over(const struct netsum_slot* slot) {
  const uint8_t state = slot->rounds[slot->current & 1].state;
  return state == NETSUM_ROUND_COMPLETE || (state == NETSUM_ROUND_EMPTY && slot->current == 0);
}

/* Whether the packet is of what the round is summing. */
NETSUM_INLINE int netsum_agrees(const struct netsum_round* round, const struct netsum_fields* f) {
  return f->chunk == round->chunk && f->signature == round->signature && f->format == round->format &&
         netsum_full_bytes(f) == round->payload_bytes && (f->flags & NETSUM_FLAG_PART) == round->flags;
}

/* The round before the current one: complete by construction. Its result is owed only to members that have
 * not yet contributed to the current round; from others the packet is an old copy. */
NETSUM_INLINE struct netsum_verdict netsum_on_previous(const struct netsum_slot* slot, uint64_t bit) {
  const struct netsum_round* current = &slot->rounds[slot->current & 1];
  const uint32_t bank = (slot->current & 1) ^ 1;
  if (slot->rounds[bank].state != NETSUM_ROUND_COMPLETE || (current->seen & bit)) {
    return netsum_dropped(NETSUM_DROP_STALE_ROUND);
  }
  return netsum_act(NETSUM_ACT_REPLY_RESULT, bank, 0);
}

/* The members whose copy of the result has no lanes. */
NETSUM_INLINE uint64_t netsum_without_lanes(const struct netsum_round* round) {
  return round->filled == NETSUM_MEMBER_ALL ? ~0ull : round->no_result;
}

/* A contribution may itself be a sum that overflowed: an aggregator passes on to its parent what it saw. */
NETSUM_INLINE uint8_t netsum_says_overflow(const struct netsum_fields* f) {
  return (f->flags & NETSUM_FLAG_OVERFLOW) != 0;
}

NETSUM_INLINE int netsum_is_empty(const struct netsum_fields* f) {
  return (f->flags & NETSUM_FLAG_EMPTY) != 0;
}

NETSUM_INLINE int netsum_wants_no_result(const struct netsum_fields* f) {
  return (f->flags & NETSUM_FLAG_NO_RESULT) != 0;
}

/* A contribution of a member that has contributed to the round. The answer is not longer than the request. A request of
 * another length is not the member's, whose contribution agreed. */
NETSUM_INLINE struct netsum_verdict netsum_on_repeated(struct netsum_round* round,
                                                       const struct netsum_fields* f, uint32_t bank) {
  const int has_room = !netsum_is_empty(f);
  const int short_result = (netsum_without_lanes(round) & netsum_member_bit(f->member)) != 0;
  const int short_sum = round->filled == NETSUM_MEMBER_ALL && round->no_result == round->seen;
  if (!netsum_agrees(round, f)) return netsum_dropped(NETSUM_DROP_DUPLICATE);
  if (round->state == NETSUM_ROUND_COMPLETE && has_room && round->unsent) {
    round->unsent = 0;
    return netsum_act(NETSUM_ACT_RESULT_ALL, bank, 0);
  }
  if (round->state == NETSUM_ROUND_COMPLETE && (has_room || short_result))
    return netsum_act(NETSUM_ACT_REPLY_RESULT, bank, 0);
  if (round->state == NETSUM_ROUND_SUMMED && (has_room || short_sum))
    return netsum_act(NETSUM_ACT_SEND_UP, bank, 0);
  return netsum_dropped(NETSUM_DROP_DUPLICATE);
}

/* A CONTRIBUTION that has passed netsum_check_rules() and its integrity check. After STORE, ADD, CLEAR or COUNT the
 * caller moves the lanes and then calls netsum_slot_added(). A contribution without lanes never is answered with a
 * result with lanes, which would be longer: members that contribute again do so with lanes, unless they need none. */
NETSUM_INLINE struct netsum_verdict netsum_slot_contribute(struct netsum_slot* slot,
                                                           const struct netsum_fields* f) {
  const uint64_t bit = netsum_member_bit(f->member);
  const uint32_t ahead = f->round - slot->current;
  const uint32_t bank = f->round & 1;
  struct netsum_round* round = &slot->rounds[bank];

  if (ahead == 1) { /* opens the next round */
    if (!netsum_current_is_over(slot)) return netsum_dropped(NETSUM_DROP_FUTURE_ROUND);
    slot->current = f->round;
    round->seen = bit;
    round->chunk = f->chunk;
    round->signature = f->signature;
    round->payload_bytes = netsum_full_bytes(f);
    round->format = f->format;
    round->flags = f->flags & NETSUM_FLAG_PART;
    round->overflow = netsum_says_overflow(f);
    round->state = NETSUM_ROUND_OPEN;
    round->filled = netsum_is_empty(f) ? NETSUM_MEMBER_ALL : f->member;
    round->unsent = 0;
    round->no_result = netsum_wants_no_result(f) ? bit : 0;
    return netsum_act(netsum_is_empty(f) ? NETSUM_ACT_CLEAR : NETSUM_ACT_STORE, bank, bit);
  }
  if (ahead == 0xFFFFFFFFu) {
    const struct netsum_verdict previous = netsum_on_previous(slot, bit);
    const int has_room = !netsum_is_empty(f) || (netsum_without_lanes(round) & bit);
    return netsum_agrees(round, f) && has_room ? previous : netsum_dropped(NETSUM_DROP_STALE_ROUND);
  }
  if (ahead != 0 || round->state == NETSUM_ROUND_EMPTY) return netsum_not_live(ahead);

  if (round->state == NETSUM_ROUND_FAILED) return netsum_act(NETSUM_ACT_REPLY_ERROR, bank, 0);
  if (round->seen & bit) return netsum_on_repeated(round, f, bank);
  if (!netsum_agrees(round, f)) {
    round->state = NETSUM_ROUND_FAILED;
    round->blamed = f->member;
    return netsum_act(NETSUM_ACT_ERROR_ALL, bank, 0);
  }
  round->seen |= bit;
  round->overflow |= netsum_says_overflow(f);
  if (netsum_wants_no_result(f)) round->no_result |= bit;
  if (netsum_is_empty(f)) return netsum_act(NETSUM_ACT_COUNT, bank, round->seen);
  round->filled = f->member;
  return netsum_act(NETSUM_ACT_ADD, bank, round->seen);
}

/* The lanes of the last STORE, ADD, CLEAR or COUNT are in place. Returns 1 if all members have contributed: the result is
 * now due to every member or, with a parent, the sum to the parent. */
NETSUM_INLINE int netsum_slot_added(struct netsum_slot* slot, uint32_t bank, int overflow,
                                    const struct netsum_job_rules* rules) {
  struct netsum_round* round = &slot->rounds[bank & 1];
  if (overflow) round->overflow = 1;
  if (round->seen != netsum_all_members(rules->members)) return 0;
  round->state = rules->has_parent ? NETSUM_ROUND_SUMMED : NETSUM_ROUND_COMPLETE;
  return 1;
}

/* For dataplanes that cannot lengthen a packet: netsum_slot_added() has returned 1 for `f`. ALL: the packet has room for what
 * is due. Otherwise a member to be asked, by a STATUS with AGAIN and chunk 0, to contribute again: its contribution will have
 * room, and its answer is RESULT_ALL or SEND_UP. If that is lost, the members' probes have the same effect. */
NETSUM_INLINE uint16_t netsum_slot_asks(struct netsum_slot* slot, const struct netsum_fields* f) {
  struct netsum_round* round = &slot->rounds[f->round & 1];
  const int complete = round->state == NETSUM_ROUND_COMPLETE;
  if (!netsum_is_empty(f) || round->filled == NETSUM_MEMBER_ALL) return NETSUM_MEMBER_ALL;
  if (complete && (round->seen & ~round->no_result) == 0) return NETSUM_MEMBER_ALL;
  round->unsent = complete;
  return round->filled;
}

/* A PROBE that has passed netsum_check_rules() and its integrity check. Changes nothing. */
NETSUM_INLINE struct netsum_verdict netsum_slot_probe(const struct netsum_slot* slot,
                                                      const struct netsum_fields* f) {
  const uint64_t bit = netsum_member_bit(f->member);
  const uint32_t ahead = f->round - slot->current;
  const uint32_t bank = f->round & 1;
  const struct netsum_round* round = &slot->rounds[bank];
  if (ahead == 1) {
    if (!netsum_current_is_over(slot)) return netsum_dropped(NETSUM_DROP_FUTURE_ROUND);
    return netsum_tell(bank, 0, 1);
  }
  if (ahead == 0xFFFFFFFFu) {
    const struct netsum_verdict previous = netsum_on_previous(slot, bit);
    return previous.action == NETSUM_ACT_DROP ? previous : netsum_tell(bank, round->seen, 1);
  }
  if (ahead != 0 || round->state == NETSUM_ROUND_EMPTY) return netsum_not_live(ahead);
  if (round->state == NETSUM_ROUND_FAILED) return netsum_act(NETSUM_ACT_REPLY_ERROR, bank, 0);
  if (round->state == NETSUM_ROUND_SUMMED) return netsum_act(NETSUM_ACT_PROBE_UP, bank, 0);
  return netsum_tell(bank, round->seen, round->state == NETSUM_ROUND_COMPLETE || !(round->seen & bit));
}

/* `chunk` of a PROBE on its way up names the member that asked; on the way down each level takes its own off.
 * A worker's chunk thus comes back without its top six bits per level, which nobody looks at. */
NETSUM_INLINE uint32_t netsum_chunk_up(uint32_t chunk, uint16_t member) {
  return chunk * NETSUM_MAX_MEMBERS + member;
}
NETSUM_INLINE uint32_t netsum_chunk_down(uint32_t chunk) {
  return chunk / NETSUM_MAX_MEMBERS;
}

/* A RESULT, STATUS or ERROR of the parent's that has passed netsum_check_parent() and its integrity check.
 * All of them matter only to a round whose sum is with the parent. After TAKE_RESULT the caller moves the
 * lanes, if there are any. A STATUS goes to the member in whose name the PROBE went up: `chunk` of the PROBE says which, and
 * the answer repeats it. */
NETSUM_INLINE struct netsum_verdict netsum_slot_from_parent(struct netsum_slot* slot,
                                                            const struct netsum_fields* f, uint16_t members) {
  const uint32_t ahead = f->round - slot->current;
  const uint32_t bank = f->round & 1;
  struct netsum_round* round = &slot->rounds[bank];
  if (ahead != 0 || round->state == NETSUM_ROUND_EMPTY) return netsum_not_live(ahead);
  if (round->state != NETSUM_ROUND_SUMMED) return netsum_dropped(NETSUM_DROP_STALE_ROUND);
  if (f->type == NETSUM_TYPE_RESULT) {
    if (!netsum_agrees(round, f)) return netsum_dropped(NETSUM_DROP_STALE_ROUND);
    round->overflow |= netsum_says_overflow(f);
    round->filled = netsum_is_empty(f) ? NETSUM_MEMBER_ALL : 0;
    round->state = NETSUM_ROUND_COMPLETE;
    return netsum_act(NETSUM_ACT_TAKE_RESULT, bank, 0);
  }
  if (f->type == NETSUM_TYPE_STATUS) {
    const uint16_t addressee = f->chunk % NETSUM_MAX_MEMBERS;
    if (addressee >= members) return netsum_dropped(NETSUM_DROP_BAD_MEMBER);
    struct netsum_verdict v = netsum_tell(bank, round->seen, (f->flags & NETSUM_FLAG_AGAIN) != 0);
    v.action = NETSUM_ACT_PASS_STATUS;
    v.addressee = addressee;
    return v;
  }
  round->state = NETSUM_ROUND_FAILED; /* ERROR: who is to blame is not among our members */
  round->blamed = NETSUM_MEMBER_ALL;
  return netsum_act(NETSUM_ACT_ERROR_ALL, bank, 0);
}

#endif /* NETSUM_AGGREGATOR_SLOT_SLOT_H_ */
