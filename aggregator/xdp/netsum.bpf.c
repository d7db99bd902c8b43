/* The slot machine in the kernel, at the driver: netsum's packets are summed as they arrive and do not reach the host's
 * stack; other traffic passes unchanged. Rules: wire/PROTOCOL.md. Layout of the maps: maps.h. Loader: xdp_dataplane.h.
 *
 * - netsum_aggregate runs on every port. It adds a contribution in the kernel; the last one of a round becomes the
 *   result in its own buffer and leaves through the job's device map, one copy per member. Answers to one member go
 *   back out of the port they came in by.
 * - netsum_address runs on the device map. It gives each copy the address of its member.
 *
 * A HELLO is checked, its sender is recorded, and then it passes to the loader's UDP socket. The loader sets up the member's
 * port before it answers.
 *
 * All CPUs share the slots, which one CPU at a time holds. The verifier walks through each iteration of the loops over lanes, so
 * that their offsets into maps are constants to it; each loop is a global function, which it checks once and separately. */
#include "aggregator/xdp/answers.bpf.h"
#include "aggregator/xdp/state.bpf.h"

/* --- Classification --------------------------------------------------------------------------- */

INLINE int to_our_port(const struct udphdr* udp, const void* end) {
  return (const void*)(udp + 1) <= end && udp->dest == data_port;
}

/* -1: a plain netsum frame, whose headers up to UDP may be read. Otherwise the XDP action. Frames that are not addressed to
 * the aggregator's port pass. */
INLINE int classify(const struct xdp_md* ctx) {
  const uint8_t* data = data_of(ctx);
  const void* end = end_of(ctx);
  const struct ethhdr* eth = (const void*)data;
  const struct iphdr* ip = (const void*)(eth + 1);
  if ((const void*)(ip + 1) > end) return XDP_PASS;
  if (eth->h_proto == bpf_htons(ETH_P_8021Q) || eth->h_proto == bpf_htons(ETH_P_8021AD)) {
    const struct iphdr* tagged = (const void*)(data + ETH_HLEN + 4);
    if ((const void*)(tagged + 1) > end || data[ETH_HLEN + 2] != 0x08 || data[ETH_HLEN + 3] != 0 ||
        tagged->ihl != 5 || tagged->protocol != IPPROTO_UDP || tagged->daddr != aggregator_ip ||
        !to_our_port((const void*)(tagged + 1), end)) {
      return XDP_PASS;
    }
    return drop(NETSUM_XDP_VLAN_TAG);
  }
  if (eth->h_proto != bpf_htons(ETH_P_IP) || ip->version != 4 || ip->protocol != IPPROTO_UDP ||
      ip->daddr != aggregator_ip) {
    return XDP_PASS;
  }
  if (ip->ihl != 5) {
    if (ip->ihl < 5 || !to_our_port((const void*)((const uint8_t*)ip + ip->ihl * 4), end)) return XDP_PASS;
    return drop(NETSUM_XDP_IP_OPTIONS);
  }
  /* Later fragments have no ports; the stack drops them when the first does not come. */
  if ((ip->frag_off & bpf_htons(0x1FFF)) != 0) return XDP_PASS;
  const struct udphdr* udp = (const void*)(ip + 1);
  if (!to_our_port(udp, end)) return XDP_PASS;
  if ((ip->frag_off & bpf_htons(0x2000)) != 0) return drop(NETSUM_XDP_IP_FRAGMENT);
  const uint64_t ip_bytes = (const uint8_t*)end - data - ETH_HLEN;
  if (bpf_ntohs(ip->tot_len) != ip_bytes || bpf_ntohs(udp->len) != ip_bytes - sizeof *ip) {
    return drop(NETSUM_XDP_IP_LENGTH);
  }
  if (ip_sum(ip) != 0xFFFF) return drop(NETSUM_XDP_IP_CHECKSUM);
  return -1;
}

/* --- Packets ---------------------------------------------------------------------------------- */

/* Notes by which port and under which Ethernet addresses somebody is heard for the first time, and returns
 * whether this packet came that way. Where somebody is does not change while the job lives: a HELLO can be
 * recorded and sent again from anywhere, and the loader counts the members behind each port. */
INLINE int came_as_noted(const struct xdp_md* ctx, struct netsum_xdp_member* who) {
  const struct frame* f = data_of(ctx);
  if ((const void*)(f + 1) > end_of(ctx)) return 0;
  if (__sync_val_compare_and_swap(&who->noted, 0, 1) == 0) {
    __builtin_memcpy(who->mac, f->eth.h_source, ETH_ALEN);
    __builtin_memcpy(who->our_mac, f->eth.h_dest, ETH_ALEN);
    __sync_val_compare_and_swap(&who->ifindex, 0, ctx->ingress_ifindex);
    return 1;
  }
  uint32_t differs = who->ifindex ^ ctx->ingress_ifindex;
#pragma unroll
  for (int i = 0; i < ETH_ALEN; ++i) {
    differs |= who->mac[i] ^ f->eth.h_source[i];
    differs |= who->our_mac[i] ^ f->eth.h_dest[i];
  }
  return differs == 0;
}

/* Whether to answer a HELLO to the job's multicast group. The answer takes the path that results will take, so it is sent
 * from here, and only after the loader has set up the port. Alternates with the loader, whose answer goes to the member
 * alone: a member that misses either sends HELLO again. */
INLINE int is_for_multicast_group(const struct xdp_md* ctx, const struct netsum_fields* f,
                                  const struct netsum_xdp_job* job) {
  if (f->payload_bytes != job->rules.payload_bytes) return 0;
  const struct netsum_xdp_port_key key = {.job = f->job, .ifindex = ctx->ingress_ifindex};
  struct netsum_xdp_port* port = bpf_map_lookup_elem(&ports, &key);
  if (!port || port->multicast_group.peer == 0) return 0;
  port->cursor ^= 1;
  return port->cursor;
}

/* The first HELLO determines the member's address and port for the lifetime of the job. */
INLINE int on_hello(struct xdp_md* ctx, const struct netsum_fields* f, const struct netsum_xdp_job* job,
                    struct netsum_xdp_member* member, uint64_t peer) {
  const uint64_t before = __sync_val_compare_and_swap(&member->peer, 0, peer);
  if (before != 0 && before != peer) return drop(NETSUM_DROP_UNKNOWN_PEER);
  if (!came_as_noted(ctx, member)) return drop(NETSUM_DROP_UNKNOWN_PEER);
  if (!is_for_multicast_group(ctx, f, job)) return XDP_PASS;
  return answer_all(ctx, f->job, KIND(NETSUM_TYPE_WELCOME, NETSUM_FORMAT_NONE, 0));
}

FUNCTION int on_lanes(struct xdp_md* ctx, const struct netsum_fields* f, const struct netsum_xdp_job* job) {
  const uint32_t slot_index = job->first_slot + f->slot;
  const uint32_t lanes_index = slot_index * 2 + (f->round & 1);
  struct slot_value* value = bpf_map_lookup_elem(&slots, &slot_index);
  if (!value) return drop(NETSUM_DROP_BAD_SLOT);
  struct outcome o = {};
  uint16_t asked = NETSUM_MEMBER_ALL;

  if (!try_hold(value) && !netsum_wait_for_slot(slot_index)) return drop(NETSUM_XDP_SLOT_HELD);
  struct netsum_slot* slot = &value->slot;
  if (f->type == NETSUM_TYPE_PROBE) {
    o.verdict = netsum_slot_probe(slot, f);
  } else {
    o.verdict = f->type == NETSUM_TYPE_CONTRIBUTION ? netsum_slot_contribute(slot, f)
                                                    : netsum_slot_from_parent(slot, f, job->rules.members);
    const uint8_t action = o.verdict.action;
    const int has_room = !netsum_is_empty(f);
    int overflow = 0;
    if (has_room && (action == NETSUM_ACT_STORE || action == NETSUM_ACT_TAKE_RESULT))
      netsum_store(ctx, lanes_index);
    if (action == NETSUM_ACT_CLEAR) netsum_clear(lanes_index, f->absent_bytes);
    if (action == NETSUM_ACT_ADD) overflow = combine(ctx, f->format, lanes_index);
    o.contributes = action == NETSUM_ACT_STORE || action == NETSUM_ACT_ADD || action == NETSUM_ACT_CLEAR ||
                    action == NETSUM_ACT_COUNT;
    if (o.contributes) o.complete = netsum_slot_added(slot, f->round & 1, overflow, &job->rules);
    /* While the slot is held: the lanes must not change while they are copied. */
    if (has_room && (o.complete || action == NETSUM_ACT_REPLY_RESULT || action == NETSUM_ACT_RESULT_ALL ||
                     action == NETSUM_ACT_SEND_UP)) {
      netsum_load(ctx, lanes_index);
    }
    if (o.complete) asked = netsum_slot_asks(slot, f);
  }
  const struct netsum_round* round = &slot->rounds[f->round & 1];
  o.blamed = round->blamed;
  o.overflow = round->overflow;
  o.flags = round->flags | (round->overflow ? NETSUM_FLAG_OVERFLOW : 0);
  const uint64_t all = netsum_all_members(job->rules.members);
  const uint64_t to = o.verdict.action == NETSUM_ACT_REPLY_RESULT ? netsum_member_bit(f->member) : all;
  o.no_result = round->no_result == all;
  /* Sums that go up have lanes, if there are any. What is sent up again has lanes if its request has, also of zeros. */
  const uint64_t without = o.complete && job->rules.has_parent && round->filled != NETSUM_MEMBER_ALL
                               ? 0
                               : netsum_without_lanes(round);
  if (o.verdict.action == NETSUM_ACT_SEND_UP ? netsum_is_empty(f) : (to & ~without) == 0) {
    o.flags |= NETSUM_FLAG_EMPTY;
    o.empty_bytes = round->payload_bytes;
  }
  release(value);

  if (o.contributes) {
    count_packet(NETSUM_XDP_CONTRIBUTIONS, NETSUM_XDP_BYTES_SUMMED, f->payload_bytes);
  }
  if (asked != NETSUM_MEMBER_ALL) {
    struct frame* frame = data_of(ctx);
    if ((const void*)(frame + 1) > end_of(ctx)) return XDP_ABORTED;
    frame->header.chunk = netsum_put32(0);
    o.verdict.action = NETSUM_ACT_PASS_STATUS;
    o.verdict.addressee = asked & (NETSUM_MAX_MEMBERS - 1);
    o.verdict.flags = NETSUM_FLAG_AGAIN;
  }
  return act(ctx, f, &o, job);
}

/* Whether the check of the frame is right under key `index` of the map. */
INLINE int check_is_right(struct xdp_md* ctx, const struct netsum_fields* f, uint32_t index) {
  return f->payload_bytes <= payload_limit && netsum_frame_check(ctx, index) == f->check;
}

/* Takes one packet out of what the job may send. All CPUs do so without a lock: who comes second adds to what
 * the first has left, which began no later than now. */
INLINE void take_one(uint64_t* spent_until_ns, const struct netsum_rate* rate, uint64_t now_ns) {
  const uint64_t before = *spent_until_ns;
  const uint64_t after = netsum_rate_take(rate, before, now_ns);
  if (__sync_val_compare_and_swap(spent_until_ns, before, after) != before) {
    __sync_fetch_and_add(spent_until_ns, rate->interval_ns);
  }
}

/* NETSUM_DROP_NONE: the tag is right, the packet comes from its member, and it has been charged to the job's
 * rate. Whether the rate is spent is asked before the tag is verified, which is work; charged is only what the
 * member itself has sent. */
FUNCTION int admit(struct xdp_md* ctx, const struct netsum_fields* f, const struct netsum_xdp_job* job,
                   int from_its_address) {
  const struct netsum_rate rate = {rate_interval_ns, rate_burst_ns};
  const uint32_t job_index = f->job, slot_index = job->first_slot + f->slot;
  struct slot_value* value = 0;
  uint64_t* spent = 0;
  uint64_t now_ns = 0;
  int kind = 0;
  if (rate.interval_ns != 0 && from_its_address) {
    struct netsum_job_rate* rates_of_job = bpf_map_lookup_elem(&rates, &job_index);
    value = bpf_map_lookup_elem(&slots, &slot_index);
    if (!rates_of_job || !value) return NETSUM_DROP_BAD_SLOT;
    now_ns = bpf_ktime_get_ns();
    kind = netsum_rate_kind(&rate, &value->slot, f, now_ns);
    if (kind < 0 || kind >= NETSUM_RATE_KINDS) return NETSUM_DROP_OVER_RATE; /* for the verifier */
    spent = &rates_of_job->spent_until_ns[kind];
    if (netsum_rate_is_spent(&rate, *spent, now_ns)) return NETSUM_DROP_OVER_RATE;
  }
  if (!check_is_right(ctx, f, netsum_xdp_key_of(job_index))) return NETSUM_DROP_BAD_CHECK;
  if (!from_its_address) return NETSUM_DROP_UNKNOWN_PEER;
  if (spent && value) {
    take_one(spent, &rate, now_ns);
    if (kind == NETSUM_RATE_ANSWERS) netsum_rate_note_answer(&value->slot, f, now_ns);
  }
  return NETSUM_DROP_NONE;
}

/* A packet of a member. -1: it passes the checks, and *job is set. */
INLINE int from_member(struct xdp_md* ctx, const struct netsum_fields* f, uint64_t peer,
                       const struct netsum_xdp_job** job) {
  *job = find_job(f->job);
  if (!*job) return drop(NETSUM_DROP_UNKNOWN_JOB);
  int reason = netsum_check_rules(f, &(*job)->rules);
  if (reason) return drop(reason);
  const uint32_t member_index = f->job * NETSUM_MAX_MEMBERS + f->member;
  struct netsum_xdp_member* member = bpf_map_lookup_elem(&members, &member_index);
  if (!member) return drop(NETSUM_DROP_BAD_MEMBER);
  const uint64_t known = member->peer;
  reason = admit(ctx, f, *job, known == peer || (known == 0 && f->type == NETSUM_TYPE_HELLO));
  if (reason) return drop(reason);
  if (f->type == NETSUM_TYPE_HELLO) return on_hello(ctx, f, *job, member, peer);
  return -1;
}

/* A packet of a parent: it names the job as the parent knows it. -1: it is in order, says from now on what we
 * call the job, and *job is that. */
INLINE int from_parent(struct xdp_md* ctx, struct netsum_fields* f, uint64_t peer,
                       const struct netsum_xdp_job** job) {
  const struct netsum_xdp_parent_key key = {.peer = peer, .job = f->job};
  const uint32_t* index = bpf_map_lookup_elem(&parent_jobs, &key);
  if (!index) return drop(NETSUM_DROP_BAD_TYPE);
  const uint32_t job_index = *index;
  *job = find_job(job_index);
  /* The index may be another job's by now. */
  if (!*job || (*job)->parent_peer != peer || (*job)->parent.job != f->job) {
    return drop(NETSUM_DROP_UNKNOWN_JOB);
  }
  const int reason = netsum_check_parent(f, &(*job)->parent, &(*job)->rules);
  if (reason) return drop(reason);
  if (!check_is_right(ctx, f, netsum_xdp_parent_key_of(job_index))) return drop(NETSUM_DROP_BAD_CHECK);
  if (f->type == NETSUM_TYPE_WELCOME) {
    /* It proves that full packets pass in both directions: the loader waits for what is noted here. */
    if (f->payload_bytes != (*job)->rules.payload_bytes) return XDP_DROP;
    struct netsum_xdp_member* parent = bpf_map_lookup_elem(&parents, &job_index);
    if (parent && !came_as_noted(ctx, parent)) return drop(NETSUM_DROP_UNKNOWN_PEER);
    return XDP_DROP;
  }
  f->job = job_index;
  struct frame* frame = data_of(ctx);
  if ((const void*)(frame + 1) > end_of(ctx)) return XDP_ABORTED;
  frame->header.job = netsum_put16(job_index);
  frame->header.epoch = netsum_put16((*job)->rules.epoch);
  if (f->type == NETSUM_TYPE_STATUS) frame->header.chunk = netsum_put32(netsum_chunk_down(f->chunk));
  return -1;
}

SEC("xdp")
int netsum_aggregate(struct xdp_md* ctx) {
  int verdict = classify(ctx);
  if (verdict == XDP_PASS) add_to(NETSUM_XDP_PASSED, 1);
  if (verdict >= 0) return verdict;

  const uint64_t size = datagram_bytes(ctx);
  count_packet(NETSUM_XDP_PACKETS_RECEIVED, NETSUM_XDP_BYTES_RECEIVED, size);
  if (inject_threshold != 0 && bpf_get_prandom_u32() < inject_threshold) return drop(NETSUM_XDP_INJECTED);
  const struct frame* frame = data_of(ctx);
  if ((const void*)(frame + 1) > end_of(ctx)) return drop(NETSUM_DROP_TOO_SHORT);
  const uint64_t peer = netsum_xdp_peer(frame->ip.saddr, frame->udp.source);

  struct netsum_fields f;
  const int reason = netsum_parse(&frame->header, size, &f);
  if (reason) return drop(reason);
  if (netsum_is_empty(&f)) {
    const uint8_t* payload = (const uint8_t*)(frame + 1);
    if ((const void*)(payload + NETSUM_EMPTY_BYTES) > end_of(ctx)) return drop(NETSUM_DROP_BAD_LENGTH);
    f.absent_bytes = netsum_absent_bytes(payload);
  }
  const struct netsum_xdp_job* job = 0;
  verdict = netsum_is_parents(f.type) ? from_parent(ctx, &f, peer, &job) : from_member(ctx, &f, peer, &job);
  if (verdict >= 0 || !job) return verdict;
  return on_lanes(ctx, &f, job);
}

/* Whether this copy of a RESULT is for a member that needs no lanes, and has them. Rounds do not change while their results are
 * sent: the one after the next opens only when all members have them. */
INLINE int is_too_long(const struct frame* f, uint32_t job_index, uint16_t member) {
  if ((f->header.version_type & 15) != NETSUM_TYPE_RESULT || (f->header.flags & NETSUM_FLAG_EMPTY)) return 0;
  const struct netsum_xdp_job* job = find_job(job_index);
  if (!job) return 0;
  const uint32_t slot_index = job->first_slot + netsum_get16(f->header.slot);
  const struct slot_value* value = bpf_map_lookup_elem(&slots, &slot_index);
  return value &&
         (value->slot.rounds[netsum_get32(f->header.round) & 1].no_result & netsum_member_bit(member)) != 0;
}

/* Leaves out the lanes. */
INLINE int shorten(struct xdp_md* ctx, uint32_t job_index) {
  const uint32_t bytes = ctx->data_end - ctx->data - sizeof(struct frame);
  if (set_payload(ctx, bytes)) return -1;
  struct frame* f = data_of(ctx);
  if ((const void*)(f + 1) > end_of(ctx)) return -1;
  const uint16_t udp_bytes = sizeof f->udp + NETSUM_HEADER_BYTES + NETSUM_EMPTY_BYTES;
  f->udp.len = bpf_htons(udp_bytes);
  f->ip.tot_len = bpf_htons(sizeof f->ip + udp_bytes);
  f->header.flags |= NETSUM_FLAG_EMPTY;
  f->header.check = netsum_put64(netsum_frame_check(ctx, netsum_xdp_key_of(job_index)));
  return 0;
}

SEC("xdp/devmap")
int netsum_address(struct xdp_md* ctx) {
  struct frame* f = data_of(ctx);
  if ((const void*)(f + 1) > end_of(ctx)) return XDP_DROP;
  if (f->ip.daddr != 0) return XDP_PASS; /* for one alone, and addressed */
  const struct netsum_xdp_port_key key = {.job = netsum_get16(f->header.job), .ifindex = ctx->egress_ifindex};
  struct netsum_xdp_port* port = bpf_map_lookup_elem(&ports, &key);
  if (!port) return drop(NETSUM_XDP_NO_PORT);
  if (port->multicast_group.peer != 0) {
    f->ip.ttl = multicast_ttl;
    address_to(f, &port->multicast_group);
    add_to(NETSUM_XDP_MULTICAST_PACKETS_SENT, 1);
    count_packet(NETSUM_XDP_PACKETS_SENT, NETSUM_XDP_BYTES_SENT, datagram_bytes(ctx));
    return XDP_PASS;
  }
  uint32_t turn = port->cursor;
  if (turn >= port->count) turn = 0;
  port->cursor = turn + 1;
  if (turn >= NETSUM_MAX_MEMBERS) return drop(NETSUM_XDP_NO_PORT);
  const uint32_t index = key.job * NETSUM_MAX_MEMBERS + port->members[turn];
  const struct netsum_xdp_member* member = bpf_map_lookup_elem(&members, &index);
  if (!member) return drop(NETSUM_XDP_NO_PORT);
  if (is_too_long(f, key.job, port->members[turn])) {
    if (shorten(ctx, key.job)) return XDP_DROP;
    f = data_of(ctx);
    if ((const void*)(f + 1) > end_of(ctx)) return XDP_DROP;
  }
  address_to(f, member);
  count_packet(NETSUM_XDP_PACKETS_SENT, NETSUM_XDP_BYTES_SENT, datagram_bytes(ctx));
  return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
