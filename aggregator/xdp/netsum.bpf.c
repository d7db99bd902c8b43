/* The slot machine in the kernel, at the driver: netsum's packets are added up as they come in and never
 * reach the host's stack; all other traffic passes untouched. Rules: wire/PROTOCOL.md. Layout of the maps:
 * maps.h. Loader: xdp_dataplane.h.
 *
 * - netsum_aggregate runs on every port. It adds a contribution in the kernel; the last one of a round becomes the
 *   result in its own buffer and leaves through the job's device map, one copy per member. Answers to one member go
 *   back out of the port they came in by.
 * - netsum_address runs on the device map. It gives each copy the address of its member.
 *
 * HELLO is checked, its sender noted, and then left to the loader's UDP socket, which sets the member's port
 * up before it answers.
 *
 * Slots are shared by all CPUs under a spin lock each. Loops over lanes are written out for the verifier: a
 * packet pointer is compared with the packet's end every 32 bytes, offsets into maps are constants in each
 * turn. What may run without the lock is a global function, which the verifier looks at once, on its own. */
#include <linux/bpf.h>
/* bpf_helpers.h needs linux/bpf.h before it. */
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include "aggregator/slot/lanes.h"
#include "aggregator/slot/rate.h"
#include "aggregator/xdp/maps.h"

/* Set by the loader. Addresses in network order. */
const volatile uint32_t aggregator_ip;
const volatile uint16_t data_port;
const volatile uint32_t payload_limit; /* bytes, a multiple of 32 */
const volatile uint8_t multicast_ttl;
const volatile uint64_t rate_interval_ns, rate_burst_ns; /* of a job: struct netsum_rate */
/* Losses on purpose: a packet is dropped if a random number of 32 bits is below. 0: the verifier takes the
 * code out. */
const volatile uint64_t inject_threshold;

struct slot_value {
  struct bpf_spin_lock lock;
  uint32_t reserved;
  struct netsum_slot slot;
};

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS); /* by job: its entry; no map: no such job */
  __type(key, uint32_t);
  __array(
      values, struct {
        __uint(type, BPF_MAP_TYPE_ARRAY);
        __uint(max_entries, 1);
        __uint(key_size, sizeof(uint32_t));
        __uint(value_size, sizeof(struct netsum_xdp_job));
      });
} jobs SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY); /* by job */
  __type(key, uint32_t);
  __type(value, struct netsum_job_rate);
} rates SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY); /* job * NETSUM_MAX_MEMBERS + member */
  __type(key, uint32_t);
  __type(value, struct netsum_xdp_member);
} members SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY); /* by job: its parent */
  __type(key, uint32_t);
  __type(value, struct netsum_xdp_member);
} parents SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH); /* the value: our index of the job */
  __type(key, struct netsum_xdp_parent_key);
  __type(value, uint32_t);
} parent_jobs SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __type(key, uint32_t);
  __type(value, struct slot_value);
} slots SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY); /* slot * 2 + bank; the loader sets the value's size to payload_limit */
  __uint(key_size, sizeof(uint32_t));
  __uint(value_size, NETSUM_XDP_MAX_PAYLOAD);
} lanes SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY); /* by netsum_xdp_key_of(): struct netsum_xdp_key, cut to payload_limit */
  __uint(key_size, sizeof(uint32_t));
  __uint(value_size, sizeof(struct netsum_xdp_key));
} keys SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_HASH);
  __type(key, struct netsum_xdp_port_key);
  __type(value, struct netsum_xdp_port);
} ports SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, 1);
  __type(key, uint32_t);
  __type(value, struct netsum_xdp_counters);
} counters SEC(".maps");

/* The ports by their indices, and by job those that its results go to, member by member. All that is sent
 * goes by one of them and thus through netsum_address: what a port is to send is kept until the end of a
 * poll, and then the kernel runs the program of the first frame, or none if that had none, on all of them. */
struct {
  __uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
  __uint(max_entries, NETSUM_XDP_MAX_PORTS);
  __uint(key_size, sizeof(uint32_t));
  __uint(value_size, sizeof(struct bpf_devmap_val));
} interfaces SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
  __type(key, uint32_t);
  __array(
      values, struct {
        __uint(type, BPF_MAP_TYPE_DEVMAP);
        __uint(max_entries, NETSUM_MAX_MEMBERS);
        __uint(key_size, sizeof(uint32_t));
        __uint(value_size, sizeof(struct bpf_devmap_val));
      });
} broadcasts SEC(".maps");

/* A netsum frame. */
struct frame {
  struct ethhdr eth;
  struct iphdr ip;
  struct udphdr udp;
  struct netsum_header header;
} __attribute__((packed));
_Static_assert(sizeof(struct frame) == NETSUM_XDP_HEADERS_BYTES + NETSUM_HEADER_BYTES, "no padding");

#define INLINE static __always_inline
/* A BPF function of its own, where inlining makes the verifier's work explode: the compiler then keeps packet
 * pointers of one loop in registers over the next, and the verifier walks whatever follows once for each turn. */
#define FUNCTION static __attribute__((noinline))

INLINE void add_to(uint32_t counter, uint64_t n) {
  const uint32_t zero = 0;
  struct netsum_xdp_counters* all = bpf_map_lookup_elem(&counters, &zero);
  if (all && counter < NETSUM_XDP_COUNTERS) all->values[counter] += n;
}
INLINE int drop(uint32_t reason) {
  add_to(reason, 1);
  return XDP_DROP;
}
INLINE void* data_of(const struct xdp_md* ctx) {
  return (void*)(long)ctx->data;
}
INLINE const void* end_of(const struct xdp_md* ctx) {
  return (const void*)(long)ctx->data_end;
}

/* Null: no such job. What it points to does not change while the program runs. */
INLINE const struct netsum_xdp_job* find_job(uint32_t index) {
  const uint32_t zero = 0;
  void* entry = bpf_map_lookup_elem(&jobs, &index);
  return entry ? bpf_map_lookup_elem(entry, &zero) : 0;
}

/* --- Is it ours? ------------------------------------------------------------------------------ */

/* One's complement sum of a 20-byte IP header; 0xFFFF if its checksum is right. */
INLINE uint16_t ip_sum(const void* ip) {
  const uint16_t* words = ip;
  uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < 10; ++i) sum += words[i];
  sum = (sum & 0xFFFF) + (sum >> 16);
  return (uint16_t)(sum + (sum >> 16));
}

INLINE int to_our_port(const struct udphdr* udp, const void* end) {
  return (const void*)(udp + 1) <= end && udp->dest == data_port;
}

/* -1: a plain netsum frame, of which all headers up to UDP's may be read. Otherwise what to do with it.
 * Whatever is not addressed to the aggregator's port passes. */
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

/* --- The payload ------------------------------------------------------------------------------ */

/* Runs `STEP` with `p` at each 8 bytes of the payload and `at`, their offset. */
#define FOR_EACH_WORD(ctx, STEP)                                       \
  do {                                                                 \
    uint8_t* p = (uint8_t*)data_of(ctx) + sizeof(struct frame);        \
    const void* end = end_of(ctx);                                     \
    const uint32_t blocks = payload_limit / 32;                        \
    uint32_t at = 0;                                                   \
    for (uint32_t i = 0; i < blocks; ++i) {                            \
      if ((const void*)(p + 32) > end) break;                          \
      STEP(p, at);                                                     \
      STEP(p + 8, at + 8);                                             \
      STEP(p + 16, at + 16);                                           \
      STEP(p + 24, at + 24);                                           \
      p += 32;                                                         \
      at += 32;                                                        \
    }                                                                  \
    for (uint32_t i = 0; i < 3; ++i) {                                 \
      if ((const void*)(p + 8) > end || at + 8 > payload_limit) break; \
      STEP(p, at);                                                     \
      p += 8;                                                          \
      at += 8;                                                         \
    }                                                                  \
  } while (0)

/* The check that the frame should have, under key `index` of the map. Global: verified once, for any frame.
 */
__attribute__((noinline)) uint64_t netsum_frame_check(struct xdp_md* ctx, uint32_t index) {
  const uint8_t* key = bpf_map_lookup_elem(&keys, &index);
  const struct frame* frame = data_of(ctx);
  if (!key || (const void*)(frame + 1) > end_of(ctx)) return 0;
  const uint32_t payload_bytes = ctx->data_end - ctx->data - sizeof *frame;
  const uint8_t* table = key + offsetof(struct netsum_xdp_key, table);
  uint64_t nh = 0;
#define NH_STEP(p, at)                                                         \
  nh += (uint64_t)(uint32_t)(netsum_load32(p) + netsum_load32(table + (at))) * \
        (uint32_t)(netsum_load32((p) + 4) + netsum_load32(table + (at) + 4))
  FOR_EACH_WORD(ctx, NH_STEP);
  return netsum_check(&frame->header, nh, payload_bytes, (const struct netsum_key*)key);
}

INLINE void store_lanes(struct xdp_md* ctx, uint8_t* acc) {
#define STORE_STEP(p, at) netsum_store64(acc + (at), netsum_load64(p))
  FOR_EACH_WORD(ctx, STORE_STEP);
}
INLINE void load_lanes(struct xdp_md* ctx, const uint8_t* acc) {
#define LOAD_STEP(p, at) netsum_store64(p, netsum_load64(acc + (at)))
  FOR_EACH_WORD(ctx, LOAD_STEP);
}
INLINE int add_lanes(struct xdp_md* ctx, uint8_t* acc, uint64_t top) {
  uint64_t overflow = 0;
#define ADD_STEP(p, at) \
  netsum_store64(acc + (at), netsum_word_add(netsum_load64(acc + (at)), netsum_load64(p), top, &overflow))
  FOR_EACH_WORD(ctx, ADD_STEP);
  return (overflow & top) != 0;
}
INLINE void max_lanes(struct xdp_md* ctx, uint8_t* acc) {
#define MAX_STEP(p, at) \
  netsum_store64(acc + (at), netsum_word_max_u8(netsum_load64(acc + (at)), netsum_load64(p)))
  FOR_EACH_WORD(ctx, MAX_STEP);
}
INLINE int combine(struct xdp_md* ctx, uint8_t format, uint8_t* acc) {
  if (format == NETSUM_FORMAT_MAX_U8) {
    max_lanes(ctx, acc);
    return 0;
  }
  /* One loop for all widths of sums: the verifier walks each loop once per turn. */
  return add_lanes(ctx, acc, netsum_top_bits(format));
}

/* --- Replies ---------------------------------------------------------------------------------- */

/* Turns the frame round: from us to its sender, with a right IP checksum. UDP's is left out, as IPv4 allows:
 * the check covers header and payload. */
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
 * round, chunk and signature are those of the request; `key` is an index of the map. Returns 0 if done.
 * Global: verified once. */
__attribute__((noinline)) int netsum_answer(struct xdp_md* ctx, uint32_t kind, uint32_t member,
                                            uint32_t key) {
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

/* Back out of the port it came in by. Not by XDP_TX: with that, a veth whose other end has GRO but no XDP
 * program leaves the frame in its ring until something else wakes the receiver, which may be never. */
INLINE int answer_sender(struct xdp_md* ctx, uint32_t kind, uint32_t member, uint32_t key) {
  if (netsum_answer(ctx, kind, member, key)) return XDP_ABORTED;
  add_to(NETSUM_XDP_PACKETS_SENT, 1);
  add_to(NETSUM_XDP_BYTES_SENT, ctx->data_end - ctx->data - NETSUM_XDP_HEADERS_BYTES);
  return bpf_redirect_map(&interfaces, ctx->ingress_ifindex, 0);
}

/* Without an address: netsum_address gives each copy its own. */
INLINE int answer_all(struct xdp_md* ctx, uint32_t job, uint32_t kind) {
  if (netsum_answer(ctx, kind, NETSUM_MEMBER_ALL, netsum_xdp_key_of(job))) return XDP_ABORTED;
  struct frame* f = data_of(ctx);
  if ((const void*)(f + 1) > end_of(ctx)) return XDP_ABORTED;
  f->ip.daddr = 0;
  void* targets = bpf_map_lookup_elem(&broadcasts, &job);
  if (!targets) return XDP_ABORTED;
  return bpf_redirect_map(targets, 0, BPF_F_BROADCAST);
}

/* Gives a frame of ours the address of a member or parent. */
INLINE void address_to(struct frame* f, const struct netsum_xdp_member* to) {
  __builtin_memcpy(f->eth.h_dest, to->mac, ETH_ALEN);
  __builtin_memcpy(f->eth.h_source, to->our_mac, ETH_ALEN);
  f->ip.daddr = to->peer >> 16;
  f->udp.dest = (uint16_t)to->peer;
  f->ip.check = 0;
  f->ip.check = ~ip_sum((uint8_t*)f + ETH_HLEN);
}

/* Sends the frame on to somebody who may be behind another port. */
INLINE int answer_to(struct xdp_md* ctx, uint32_t kind, uint32_t member, uint32_t key,
                     const struct netsum_xdp_member* to) {
  if (netsum_answer(ctx, kind, member, key)) return XDP_ABORTED;
  struct frame* f = data_of(ctx);
  if ((const void*)(f + 1) > end_of(ctx)) return XDP_ABORTED;
  address_to(f, to);
  add_to(NETSUM_XDP_PACKETS_SENT, 1);
  add_to(NETSUM_XDP_BYTES_SENT, ctx->data_end - ctx->data - NETSUM_XDP_HEADERS_BYTES);
  return bpf_redirect_map(&interfaces, to->ifindex, 0);
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
  add_to(NETSUM_XDP_SENT_TO_PARENT, 1);
  add_to(NETSUM_XDP_PARENT_BYTES_SENT, ctx->data_end - ctx->data - NETSUM_XDP_HEADERS_BYTES);
  return answer_to(ctx, kind, job->parent.member, netsum_xdp_parent_key_of(fields->job), parent);
}

/* Puts `word` into the frame as its only 8 bytes of payload. */
INLINE int set_payload(struct xdp_md* ctx, uint64_t word) {
  const int surplus = ctx->data_end - ctx->data - sizeof(struct frame) - 8;
  if (surplus > 0 && bpf_xdp_adjust_tail(ctx, -surplus)) return -1;
  uint8_t* p = (uint8_t*)data_of(ctx) + sizeof(struct frame);
  if ((const void*)(p + 8) > end_of(ctx)) return -1;
  const netsum_be64 bytes = netsum_put64(word);
  __builtin_memcpy(p, &bytes, sizeof bytes);
  return 0;
}

/* What is needed after the slot's lock is given back. */
struct outcome {
  struct netsum_verdict verdict;
  uint16_t blamed;
  uint8_t flags; /* of the result */
  uint8_t complete;
  uint8_t overflow;
};

INLINE int send_sum_up(struct xdp_md* ctx, const struct netsum_fields* f, const struct outcome* o,
                       const struct netsum_xdp_job* job) {
  return send_up(ctx, f, KIND(NETSUM_TYPE_CONTRIBUTION, f->format, o->flags), f->chunk, job);
}

INLINE int result_to_all(struct xdp_md* ctx, const struct netsum_fields* f, const struct outcome* o) {
  add_to(NETSUM_XDP_ROUNDS_COMPLETED, 1);
  if (o->overflow) add_to(NETSUM_XDP_OVERFLOWS, 1);
  return answer_all(ctx, f->job, KIND(NETSUM_TYPE_RESULT, f->format, o->flags));
}

INLINE int act(struct xdp_md* ctx, const struct netsum_fields* f, const struct outcome* o,
               const struct netsum_xdp_job* job) {
  const uint32_t key = netsum_xdp_key_of(f->job);
  const uint64_t error = (uint64_t)NETSUM_ERROR_MISMATCH << 48 | (uint64_t)o->blamed << 32;
  switch (o->verdict.action) {
    case NETSUM_ACT_STORE:
    case NETSUM_ACT_ADD:
      add_to(NETSUM_XDP_CONTRIBUTIONS, 1);
      add_to(NETSUM_XDP_BYTES_SUMMED, f->payload_bytes);
      if (!o->complete) return XDP_DROP;
      return job->rules.has_parent ? send_sum_up(ctx, f, o, job) : result_to_all(ctx, f, o);
    case NETSUM_ACT_SEND_UP:
      return send_sum_up(ctx, f, o, job);
    case NETSUM_ACT_PROBE_UP:
      return send_up(ctx, f, KIND(NETSUM_TYPE_PROBE, NETSUM_FORMAT_NONE, 0),
                     netsum_chunk_up(f->chunk, f->member), job);
    case NETSUM_ACT_TAKE_RESULT:
      return result_to_all(ctx, f, o);
    case NETSUM_ACT_REPLY_RESULT:
      add_to(NETSUM_XDP_RESULTS_REPEATED, 1);
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

/* The first HELLO fixes the member's address and port for the job's life. */
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
  uint8_t* acc = bpf_map_lookup_elem(&lanes, &lanes_index);
  if (!value || !acc) return drop(NETSUM_DROP_BAD_SLOT);
  struct outcome o = {};

  bpf_spin_lock(&value->lock);
  struct netsum_slot* slot = &value->slot;
  if (f->type == NETSUM_TYPE_PROBE) {
    o.verdict = netsum_slot_probe(slot, f);
  } else {
    o.verdict = f->type == NETSUM_TYPE_CONTRIBUTION ? netsum_slot_contribute(slot, f)
                                                    : netsum_slot_from_parent(slot, f, job->rules.members);
    const uint8_t action = o.verdict.action;
    int overflow = 0;
    if (action == NETSUM_ACT_STORE || action == NETSUM_ACT_TAKE_RESULT) store_lanes(ctx, acc);
    if (action == NETSUM_ACT_ADD) overflow = combine(ctx, f->format, acc);
    if (action == NETSUM_ACT_STORE || action == NETSUM_ACT_ADD) {
      o.complete = netsum_slot_added(slot, f->round & 1, overflow, &job->rules);
    }
    /* Under the lock: the lanes must not change while they are copied. */
    if (o.complete || action == NETSUM_ACT_REPLY_RESULT || action == NETSUM_ACT_SEND_UP) load_lanes(ctx, acc);
  }
  const struct netsum_round* round = &slot->rounds[f->round & 1];
  o.blamed = round->blamed;
  o.overflow = round->overflow;
  o.flags = round->flags | (round->overflow ? NETSUM_FLAG_OVERFLOW : 0);
  bpf_spin_unlock(&value->lock);

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

  const uint64_t size = ctx->data_end - ctx->data - NETSUM_XDP_HEADERS_BYTES;
  add_to(NETSUM_XDP_PACKETS_RECEIVED, 1);
  add_to(NETSUM_XDP_BYTES_RECEIVED, size);
  if (inject_threshold != 0 && bpf_get_prandom_u32() < inject_threshold) return drop(NETSUM_XDP_INJECTED);
  const struct frame* frame = data_of(ctx);
  if ((const void*)(frame + 1) > end_of(ctx)) return drop(NETSUM_DROP_TOO_SHORT);
  const uint64_t peer = netsum_xdp_peer(frame->ip.saddr, frame->udp.source);

  struct netsum_fields f;
  const int reason = netsum_parse(&frame->header, size, &f);
  if (reason) return drop(reason);
  const struct netsum_xdp_job* job = 0;
  verdict = netsum_is_parents(f.type) ? from_parent(ctx, &f, peer, &job) : from_member(ctx, &f, peer, &job);
  if (verdict >= 0 || !job) return verdict;
  return on_lanes(ctx, &f, job);
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
    add_to(NETSUM_XDP_PACKETS_SENT, 1);
    add_to(NETSUM_XDP_BYTES_SENT, ctx->data_end - ctx->data - NETSUM_XDP_HEADERS_BYTES);
    return XDP_PASS;
  }
  uint32_t turn = port->cursor;
  if (turn >= port->count) turn = 0;
  port->cursor = turn + 1;
  if (turn >= NETSUM_MAX_MEMBERS) return drop(NETSUM_XDP_NO_PORT);
  const uint32_t index = key.job * NETSUM_MAX_MEMBERS + port->members[turn];
  const struct netsum_xdp_member* member = bpf_map_lookup_elem(&members, &index);
  if (!member) return drop(NETSUM_XDP_NO_PORT);
  address_to(f, member);
  add_to(NETSUM_XDP_PACKETS_SENT, 1);
  add_to(NETSUM_XDP_BYTES_SENT, ctx->data_end - ctx->data - NETSUM_XDP_HEADERS_BYTES);
  return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
