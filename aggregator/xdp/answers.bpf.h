/* The lanes of a frame in place, and the frame turned into an answer: to its sender, to all members, or to the parent. */
#ifndef NETSUM_AGGREGATOR_XDP_ANSWERS_BPF_H_
#define NETSUM_AGGREGATOR_XDP_ANSWERS_BPF_H_

#include "aggregator/xdp/state.bpf.h"

/* --- The payload ------------------------------------------------------------------------------ */

/* The compiler must have computed `x` here, and may not put off what is needed for it: it would keep the halves of many products
 * on the stack, for more freedom in their order than the processor needs. */
#define KEEP(x) __asm__ volatile("" : "+r"(x))

#define FOUR_WORDS(STEP, p, at) \
  STEP(p, at);                  \
  STEP(p + 8, at + 8);          \
  STEP(p + 16, at + 16);        \
  STEP(p + 24, at + 24)
#define SIXTEEN_WORDS(STEP, p, at)       \
  FOUR_WORDS(STEP, p, at);               \
  FOUR_WORDS(STEP, (p + 32), (at + 32)); \
  FOUR_WORDS(STEP, (p + 64), (at + 64)); \
  FOUR_WORDS(STEP, (p + 96), (at + 96))
#define ONE_WORD(STEP, p, at) STEP(p, at)
/* Runs `STEP` for blocks of `bytes` as long as there are any, and at most `most` times. */
#define FOR_EACH_BLOCK(bytes, most, WORDS, STEP)                                 \
  _Pragma("clang loop unroll(disable)") for (uint32_t i = 0; i < (most); ++i) {  \
    if ((const void*)(p + (bytes)) > end || at + (bytes) > payload_limit) break; \
    WORDS(STEP, p, at);                                                          \
    p += (bytes);                                                                \
    at += (bytes);                                                               \
  }

/* Runs `STEP` with `p` at each 8 bytes of the payload and `at`, their offset. Few comparisons: an addition is some 15
 * instructions, and the processor does little more than execute them. */
#define FOR_EACH_WORD(ctx, STEP)                                  \
  do {                                                            \
    uint8_t* p = (uint8_t*)data_of(ctx) + sizeof(struct frame);   \
    const void* end = end_of(ctx);                                \
    uint32_t at = 0;                                              \
    FOR_EACH_BLOCK(128, payload_limit / 128, SIXTEEN_WORDS, STEP) \
    FOR_EACH_BLOCK(32, 3, FOUR_WORDS, STEP)                       \
    FOR_EACH_BLOCK(8, 3, ONE_WORD, STEP)                          \
  } while (0)

/* A function that the verifier checks once and for any argument, instead of once per path to a call. */
#define GLOBAL __attribute__((noinline))

/* The check field that the frame should have under key `index` of the map: a tag or the cookie. */
GLOBAL uint64_t netsum_frame_check(struct xdp_md* ctx, uint32_t index) {
  const uint8_t* key = bpf_map_lookup_elem(&keys, &index);
  const struct frame* frame = data_of(ctx);
  if (!key || (const void*)(frame + 1) > end_of(ctx)) return 0;
  const uint64_t cookie = ((const struct netsum_xdp_key*)key)->cookie;
  if (cookie != 0 && (frame->header.version_type & 15) != NETSUM_TYPE_HELLO) return cookie;
  const uint32_t payload_bytes = ctx->data_end - ctx->data - sizeof *frame;
  const uint8_t* table = key + offsetof(struct netsum_xdp_key, table);
  uint64_t nh = 0;
#define NH_STEP(p, at)                                                         \
  nh += (uint64_t)(uint32_t)(netsum_load32(p) + netsum_load32(table + (at))) * \
        (uint32_t)(netsum_load32((p) + 4) + netsum_load32(table + (at) + 4));  \
  KEEP(nh)
  FOR_EACH_WORD(ctx, NH_STEP);
  /* A new pointer: of the other, the verifier knows how much of the packet the loop has found behind it, and it would walk
   * through the rest once for each way out of the loop. */
  KEEP(ctx);
  frame = data_of(ctx);
  if ((const void*)(frame + 1) > end_of(ctx)) return 0;
  return netsum_check(&frame->header, nh, payload_bytes, (const struct netsum_key*)key);
}

/* The payload and element `index` of the map `lanes`. The caller holds the slot. */
GLOBAL int netsum_store(struct xdp_md* ctx, uint32_t index) {
  uint8_t* acc = bpf_map_lookup_elem(&lanes, &index);
  if (!acc) return -1;
#define STORE_STEP(p, at) netsum_store64(acc + (at), netsum_load64(p))
  FOR_EACH_WORD(ctx, STORE_STEP);
  return 0;
}
GLOBAL int netsum_load(struct xdp_md* ctx, uint32_t index) {
  const uint8_t* acc = bpf_map_lookup_elem(&lanes, &index);
  if (!acc) return -1;
#define LOAD_STEP(p, at) netsum_store64(p, netsum_load64(acc + (at)))
  FOR_EACH_WORD(ctx, LOAD_STEP);
  return 0;
}
GLOBAL int netsum_clear(uint32_t index, uint32_t bytes) {
  uint8_t* acc = bpf_map_lookup_elem(&lanes, &index);
  if (!acc) return -1;
  const uint32_t words = payload_limit / 8;
  for (uint32_t i = 0; i < words; ++i) {
    if (8 * i >= bytes) break;
    netsum_store64(acc + 8 * i, 0);
  }
  return 0;
}
/* Returns 1 if a lane overflowed, as netsum_add_narrow() does. */
GLOBAL int netsum_add_wide(struct xdp_md* ctx, uint32_t index, uint64_t carry, uint64_t top) {
  uint8_t* acc = bpf_map_lookup_elem(&lanes, &index);
  if (!acc) return 0;
  uint64_t overflow = 0;
#define ADD_WIDE_STEP(p, at)                                                                           \
  netsum_store64(acc + (at),                                                                           \
                 netsum_word_add_wide(netsum_load64(acc + (at)), netsum_load64(p), carry, &overflow)); \
  KEEP(overflow)
  FOR_EACH_WORD(ctx, ADD_WIDE_STEP);
  return (overflow & top) != 0;
}
GLOBAL int netsum_add_narrow(struct xdp_md* ctx, uint32_t index, uint64_t top) {
  uint8_t* acc = bpf_map_lookup_elem(&lanes, &index);
  if (!acc) return 0;
  uint64_t overflow = 0;
#define ADD_STEP(p, at)                                                                                     \
  netsum_store64(acc + (at), netsum_word_add(netsum_load64(acc + (at)), netsum_load64(p), top, &overflow)); \
  KEEP(overflow)
  FOR_EACH_WORD(ctx, ADD_STEP);
  return (overflow & top) != 0;
}
GLOBAL int netsum_max(struct xdp_md* ctx, uint32_t index, uint64_t top, uint32_t bits) {
  uint8_t* acc = bpf_map_lookup_elem(&lanes, &index);
  if (!acc) return 0;
#define MAX_STEP(p, at) \
  netsum_store64(acc + (at), netsum_word_max(netsum_load64(acc + (at)), netsum_load64(p), top, bits))
  FOR_EACH_WORD(ctx, MAX_STEP);
  return 0;
}
GLOBAL int netsum_or(struct xdp_md* ctx, uint32_t index, uint64_t both) {
  uint8_t* acc = bpf_map_lookup_elem(&lanes, &index);
  if (!acc) return 0;
#define OR_STEP(p, at) \
  netsum_store64(acc + (at), netsum_word_or(netsum_load64(acc + (at)), netsum_load64(p), both))
  FOR_EACH_WORD(ctx, OR_STEP);
  return 0;
}
INLINE int combine(struct xdp_md* ctx, uint8_t format, uint32_t index) {
  if (format == NETSUM_FORMAT_SUM_I32)
    return netsum_add_wide(ctx, index, 1ull << 32, netsum_top_bits(format));
  if (format == NETSUM_FORMAT_SUM_I64) return netsum_add_wide(ctx, index, 0, netsum_top_bits(format));
  if (format >> 4 == NETSUM_OP_SUM) return netsum_add_narrow(ctx, index, netsum_top_bits(format));
  if (format >> 4 == NETSUM_OP_MAX) {
    return netsum_max(ctx, index, netsum_max_top_bits(format), netsum_max_bits(format));
  }
  return netsum_or(ctx, index, netsum_or_both(format));
}

/* --- Replies ---------------------------------------------------------------------------------- */

/* Makes the frame a reply to its sender, with a valid IP checksum and without a UDP checksum, as IPv4 allows: the tag covers
 * header and payload. */
INLINE void turn_round(struct frame* f, uint32_t payload_bytes) {
  uint8_t mac[ETH_ALEN];
  __builtin_memcpy(mac, f->eth.h_dest, ETH_ALEN);
  __builtin_memcpy(f->eth.h_dest, f->eth.h_source, ETH_ALEN);
  __builtin_memcpy(f->eth.h_source, mac, ETH_ALEN);
  const uint32_t sender = f->ip.saddr;
  f->ip.saddr = f->ip.daddr;
  f->ip.daddr = sender;
  const uint16_t port = f->udp.source;
  f->udp.source = f->udp.dest;
  f->udp.dest = port;
  const uint16_t udp_bytes = sizeof f->udp + NETSUM_HEADER_BYTES + payload_bytes;
  f->udp.len = bpf_htons(udp_bytes);
  f->udp.check = 0;
  f->ip.tot_len = bpf_htons(sizeof f->ip + udp_bytes);
  f->ip.tos = 0;
  f->ip.id = 0;
  f->ip.frag_off = bpf_htons(0x4000); /* do not fragment */
  f->ip.ttl = 64;
  f->ip.check = 0;
  f->ip.check = ~ip_sum((uint8_t*)f + ETH_HLEN);
}

/* How an answer differs from its request, in one number: BPF functions have at most five parameters. */
#define KIND(type, format, flags) ((uint32_t)(type) | (uint32_t)(format) << 8 | (uint32_t)(flags) << 16)

/* Writes the answer's header and addresses around the payload that the frame already holds. Job, epoch, slot,
 * round, chunk and signature are those of the request; `key` is an index of the map. Returns 0 if done. */
GLOBAL int netsum_answer(struct xdp_md* ctx, uint32_t kind, uint32_t member, uint32_t key) {
  struct frame* f = data_of(ctx);
  if ((const void*)(f + 1) > end_of(ctx)) return -1;
  f->header.version_type = NETSUM_VERSION << 4 | (kind & 15);
  f->header.format = kind >> 8;
  f->header.flags = kind >> 16;
  f->header.member = netsum_put16(member);
  f->header.check = netsum_put64(netsum_frame_check(ctx, key));
  turn_round(f, ctx->data_end - ctx->data - sizeof *f);
  return 0;
}

/* Sends the frame by the port that it came from. Not by XDP_TX: a veth whose other end has GRO but no XDP program would leave
 * the frame in its ring until something else wakes the receiver, which may be never. */
INLINE int answer_sender(struct xdp_md* ctx, uint32_t kind, uint32_t member, uint32_t key) {
  if (netsum_answer(ctx, kind, member, key)) return XDP_ABORTED;
  count_packet(NETSUM_XDP_PACKETS_SENT, NETSUM_XDP_BYTES_SENT, datagram_bytes(ctx));
  return bpf_redirect_map(&interfaces, ctx->ingress_ifindex, 0);
}

/* Without an address: netsum_address writes one into each copy. */
INLINE int answer_all(struct xdp_md* ctx, uint32_t job, uint32_t kind) {
  if (netsum_answer(ctx, kind, NETSUM_MEMBER_ALL, netsum_xdp_key_of(job))) return XDP_ABORTED;
  struct frame* f = data_of(ctx);
  if ((const void*)(f + 1) > end_of(ctx)) return XDP_ABORTED;
  f->ip.daddr = 0;
  void* targets = bpf_map_lookup_elem(&broadcasts, &job);
  if (!targets) return XDP_ABORTED;
  return bpf_redirect_map(targets, 0, BPF_F_BROADCAST);
}

/* Writes the address of a member or parent into an outgoing frame. */
INLINE void address_to(struct frame* f, const struct netsum_xdp_member* to) {
  __builtin_memcpy(f->eth.h_dest, to->mac, ETH_ALEN);
  __builtin_memcpy(f->eth.h_source, to->our_mac, ETH_ALEN);
  f->ip.daddr = to->peer >> 16;
  f->udp.dest = (uint16_t)to->peer;
  f->ip.check = 0;
  f->ip.check = ~ip_sum((uint8_t*)f + ETH_HLEN);
}

/* Sends the frame to a member or parent that may be behind another port. */
INLINE int answer_to(struct xdp_md* ctx, uint32_t kind, uint32_t member, uint32_t key,
                     const struct netsum_xdp_member* to) {
  if (netsum_answer(ctx, kind, member, key)) return XDP_ABORTED;
  struct frame* f = data_of(ctx);
  if ((const void*)(f + 1) > end_of(ctx)) return XDP_ABORTED;
  address_to(f, to);
  count_packet(NETSUM_XDP_PACKETS_SENT, NETSUM_XDP_BYTES_SENT, datagram_bytes(ctx));
  uint32_t ifindex = to->ifindex;
  /* Otherwise the compiler shares the load with that of ctx->ingress_ifindex, which has the same offset; the verifier refuses
   * an instruction that reads by pointers of different kinds. */
  asm volatile("" : "+r"(ifindex));
  return bpf_redirect_map(&interfaces, ifindex, 0);
}

/* The frame's payload goes to the parent of its job. */
INLINE int send_up(struct xdp_md* ctx, const struct netsum_fields* fields, uint32_t kind, uint32_t chunk,
                   const struct netsum_xdp_job* job) {
  struct frame* f = data_of(ctx);
  if ((const void*)(f + 1) > end_of(ctx)) return XDP_ABORTED;
  const uint32_t index = fields->job;
  const struct netsum_xdp_member* parent = bpf_map_lookup_elem(&parents, &index);
  if (!parent) return XDP_ABORTED;
  f->header.job = netsum_put16(job->parent.job);
  f->header.epoch = netsum_put16(job->parent.epoch);
  f->header.chunk = netsum_put32(chunk);
  count_packet(NETSUM_XDP_SENT_TO_PARENT, NETSUM_XDP_PARENT_BYTES_SENT, datagram_bytes(ctx));
  return answer_to(ctx, kind, job->parent.member, netsum_xdp_parent_key_of(fields->job), parent);
}

/* Makes `word` the frame's payload. */
INLINE int set_payload(struct xdp_md* ctx, uint64_t word) {
  const int surplus = ctx->data_end - ctx->data - sizeof(struct frame) - 8;
  if (surplus > 0 && bpf_xdp_adjust_tail(ctx, -surplus)) return -1;
  uint8_t* p = (uint8_t*)data_of(ctx) + sizeof(struct frame);
  if ((const void*)(p + 8) > end_of(ctx)) return -1;
  const netsum_be64 bytes = netsum_put64(word);
  __builtin_memcpy(p, &bytes, sizeof bytes);
  return 0;
}

/* What is needed after the slot's lock is released. */
struct outcome {
  struct netsum_verdict verdict;
  uint16_t blamed;
  uint8_t flags; /* of the result */
  uint8_t complete;
  uint8_t overflow;
  uint8_t contributes;  /* the packet has been counted as its member's contribution */
  uint8_t no_result;    /* no member needs the lanes of the result */
  uint32_t empty_bytes; /* of the lanes that the result leaves out; 0: it has lanes */
};

INLINE int send_sum_up(struct xdp_md* ctx, const struct netsum_fields* f, const struct outcome* o,
                       const struct netsum_xdp_job* job) {
  const uint8_t no_result = o->no_result ? NETSUM_FLAG_NO_RESULT : 0;
  return send_up(ctx, f, KIND(NETSUM_TYPE_CONTRIBUTION, f->format, o->flags | no_result), f->chunk, job);
}

INLINE int result_to_all(struct xdp_md* ctx, const struct netsum_fields* f, const struct outcome* o) {
  add_to(NETSUM_XDP_ROUNDS_COMPLETED, 1);
  if (o->overflow) add_to(NETSUM_XDP_OVERFLOWS, 1);
  if (o->empty_bytes != 0 && set_payload(ctx, o->empty_bytes)) return XDP_ABORTED;
  return answer_all(ctx, f->job, KIND(NETSUM_TYPE_RESULT, f->format, o->flags));
}

INLINE int act(struct xdp_md* ctx, const struct netsum_fields* f, const struct outcome* o,
               const struct netsum_xdp_job* job) {
  const uint32_t key = netsum_xdp_key_of(f->job);
  const uint64_t error = (uint64_t)NETSUM_ERROR_MISMATCH << 48 | (uint64_t)o->blamed << 32;
  switch (o->verdict.action) {
    case NETSUM_ACT_STORE:
    case NETSUM_ACT_ADD:
    case NETSUM_ACT_CLEAR:
    case NETSUM_ACT_COUNT:
      if (!o->complete) return XDP_DROP;
      return job->rules.has_parent ? send_sum_up(ctx, f, o, job) : result_to_all(ctx, f, o);
    case NETSUM_ACT_SEND_UP:
      return send_sum_up(ctx, f, o, job);
    case NETSUM_ACT_PROBE_UP:
      return send_up(ctx, f, KIND(NETSUM_TYPE_PROBE, NETSUM_FORMAT_NONE, 0),
                     netsum_chunk_up(f->chunk, f->member), job);
    case NETSUM_ACT_TAKE_RESULT:
    case NETSUM_ACT_RESULT_ALL:
      return result_to_all(ctx, f, o);
    case NETSUM_ACT_REPLY_RESULT:
      add_to(NETSUM_XDP_RESULTS_REPEATED, 1);
      if (o->empty_bytes != 0 && set_payload(ctx, o->empty_bytes)) return XDP_ABORTED;
      return answer_sender(ctx, KIND(NETSUM_TYPE_RESULT, f->format, o->flags), NETSUM_MEMBER_ALL, key);
    case NETSUM_ACT_REPLY_STATUS:
      add_to(NETSUM_XDP_STATUSES, 1);
      if (set_payload(ctx, o->verdict.seen)) return XDP_ABORTED;
      return answer_sender(ctx, KIND(NETSUM_TYPE_STATUS, NETSUM_FORMAT_NONE, o->verdict.flags), f->member,
                           key);
    case NETSUM_ACT_PASS_STATUS: {
      const uint32_t to = f->job * NETSUM_MAX_MEMBERS + o->verdict.addressee;
      const struct netsum_xdp_member* member = bpf_map_lookup_elem(&members, &to);
      if (!member) return XDP_ABORTED;
      add_to(NETSUM_XDP_STATUSES, 1);
      if (set_payload(ctx, o->verdict.seen)) return XDP_ABORTED;
      return answer_to(ctx, KIND(NETSUM_TYPE_STATUS, NETSUM_FORMAT_NONE, o->verdict.flags),
                       o->verdict.addressee, key, member);
    }
    case NETSUM_ACT_REPLY_ERROR:
      if (set_payload(ctx, error)) return XDP_ABORTED;
      return answer_sender(ctx, KIND(NETSUM_TYPE_ERROR, NETSUM_FORMAT_NONE, 0), NETSUM_MEMBER_ALL, key);
    case NETSUM_ACT_ERROR_ALL:
      add_to(NETSUM_XDP_MISMATCHES, 1);
      if (set_payload(ctx, error)) return XDP_ABORTED;
      return answer_all(ctx, f->job, KIND(NETSUM_TYPE_ERROR, NETSUM_FORMAT_NONE, 0));
    default:
      return drop(o->verdict.drop);
  }
}

#endif /* NETSUM_AGGREGATOR_XDP_ANSWERS_BPF_H_ */
