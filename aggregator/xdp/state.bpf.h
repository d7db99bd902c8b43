/* What the programs of netsum.bpf.c share: the constants that the loader sets, the maps, and the frame. */
#ifndef NETSUM_AGGREGATOR_XDP_STATE_BPF_H_
#define NETSUM_AGGREGATOR_XDP_STATE_BPF_H_

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
/* Injected losses: a packet is dropped if a random number of 32 bits is below this. 0: the verifier removes the code. */
const volatile uint64_t inject_threshold;

struct slot_value {
  uint32_t turn; /* odd while a CPU holds the slot: hold() and release() */
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
/* A separate BPF function, where inlining would multiply the verifier's work: the compiler would keep packet pointers of one
 * loop in registers across the next, and the verifier would walk the rest of the program once per iteration. */
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
/* A packet and its bytes: one look at the counters. */
INLINE void count_packet(uint32_t packets, uint32_t bytes, uint64_t n) {
  const uint32_t zero = 0;
  struct netsum_xdp_counters* all = bpf_map_lookup_elem(&counters, &zero);
  if (!all || packets >= NETSUM_XDP_COUNTERS || bytes >= NETSUM_XDP_COUNTERS) return;
  all->values[packets] += 1;
  all->values[bytes] += n;
}
INLINE void* data_of(const struct xdp_md* ctx) {
  return (void*)(long)ctx->data;
}
INLINE const void* end_of(const struct xdp_md* ctx) {
  return (const void*)(long)ctx->data_end;
}

/* Of the frame without its Ethernet, IP and UDP headers. */
INLINE uint64_t datagram_bytes(const struct xdp_md* ctx) {
  return ctx->data_end - ctx->data - NETSUM_XDP_HEADERS_BYTES;
}

/* Null: no such job. What it points to does not change while the program runs. */
INLINE const struct netsum_xdp_job* find_job(uint32_t index) {
  const uint32_t zero = 0;
  void* entry = bpf_map_lookup_elem(&jobs, &index);
  return entry ? bpf_map_lookup_elem(entry, &zero) : 0;
}

/* One CPU at a time works on a slot. Not by bpf_spin_lock: that disables interrupts, which takes longer than adding half a packet,
 * and forbids calls of functions while it is held. Both operations order all memory accesses, on every machine. */
INLINE int try_hold(struct slot_value* value) {
  const uint32_t turn = *(volatile uint32_t*)&value->turn;
  return (turn & 1) == 0 && __sync_val_compare_and_swap(&value->turn, turn, turn + 1) == turn;
}
INLINE void release(struct slot_value* value) {
  __sync_lock_test_and_set(&value->turn, value->turn + 1);
}
/* Waits, some 20 ns a look. 1: the slot is held. 0: it has been taken for as long as hundreds of packets take: the CPU that
 * holds it has been interrupted, for example because it is virtual. */
#define HOLD_LOOKS 2000
__attribute__((noinline)) int netsum_wait_for_slot(uint32_t slot_index) {
  struct slot_value* value = bpf_map_lookup_elem(&slots, &slot_index);
  if (!value) return 0;
  for (uint32_t i = 0; i < HOLD_LOOKS; ++i) {
    if (try_hold(value)) return 1;
    bpf_ktime_get_ns();
  }
  return 0;
}

/* One's complement sum of a 20-byte IP header; 0xFFFF if its checksum is right. */
INLINE uint16_t ip_sum(const void* ip) {
  const uint16_t* words = ip;
  uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < 10; ++i) sum += words[i];
  sum = (sum & 0xFFFF) + (sum >> 16);
  return (uint16_t)(sum + (sum >> 16));
}

#endif /* NETSUM_AGGREGATOR_XDP_STATE_BPF_H_ */
