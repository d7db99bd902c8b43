/* Proof that the wire and the slot machine are code that BPF takes: one XDP program that does with a
 * contribution all that an aggregator does, short of replying. Compiled by a test, and loaded through the
 * kernel's verifier where that is permitted. Not a dataplane.
 *
 * What the verifier wants, learnt here: packet bytes are copied to a map value first, since variable offsets
 * into map values are plain and those into packets need a test against data_end at every access (and jumbo
 * packets are not contiguous anyway); every loop has a constant bound of at most a few thousand turns and
 * carries no pointer. */
#include <linux/bpf.h>
/* bpf_helpers.h needs linux/bpf.h before it. */
#include <bpf/bpf_helpers.h>

#include "aggregator/slot/lanes.h"
#include "aggregator/slot/slot.h"

#define HEADERS_BYTES (14 + 20 + 8) /* Ethernet, IPv4 without options, UDP */
#define SLOTS 4

struct scratch {
  uint8_t frame[NETSUM_HEADER_BYTES + NETSUM_MAX_PAYLOAD];
};
struct slot_value {
  struct netsum_slot slot;
  uint8_t lanes[2][NETSUM_MAX_PAYLOAD];
};

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, 1);
  __type(key, uint32_t);
  __type(value, struct scratch);
} scratches SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, SLOTS);
  __type(key, uint32_t);
  __type(value, struct slot_value);
} slots SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, uint32_t);
  __type(value, struct netsum_job_rules);
} jobs SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, NETSUM_DROP_COUNT);
  __type(key, uint32_t);
  __type(value, uint64_t);
} drops SEC(".maps");

static __always_inline int drop(uint32_t reason) {
  uint64_t* count = bpf_map_lookup_elem(&drops, &reason);
  if (count) ++*count;
  return XDP_DROP;
}

SEC("xdp")
int netsum_check_program(struct xdp_md* ctx) {
  const uint32_t zero = 0;
  struct scratch* scratch = bpf_map_lookup_elem(&scratches, &zero);
  const struct netsum_job_rules* rules = bpf_map_lookup_elem(&jobs, &zero);
  if (!scratch || !rules) return XDP_ABORTED;

  uint64_t size = bpf_xdp_get_buff_len(ctx);
  if (size < HEADERS_BYTES + NETSUM_HEADER_BYTES) return drop(NETSUM_DROP_TOO_SHORT);
  size -= HEADERS_BYTES;
  barrier_var(size); /* or clang merges the two comparisons into one that tells the verifier nothing */
  if (size > sizeof scratch->frame) return drop(NETSUM_DROP_BAD_LENGTH);
  if (bpf_xdp_load_bytes(ctx, HEADERS_BYTES, scratch->frame, size)) return XDP_ABORTED;

  struct netsum_fields fields;
  int reason = netsum_parse(scratch->frame, size, &fields);
  if (reason) return drop(reason);
  if (fields.type != NETSUM_TYPE_CONTRIBUTION) return XDP_PASS;
  reason = netsum_check_rules(&fields, rules);
  if (reason) return drop(reason);
  const uint8_t* payload = scratch->frame + NETSUM_HEADER_BYTES;
  const uint64_t nh = netsum_nh(payload, fields.payload_bytes);
  if (netsum_check(scratch->frame, nh, fields.payload_bytes, rules->key) != fields.check) {
    return drop(NETSUM_DROP_BAD_CHECK);
  }

  const uint32_t index = fields.slot;
  struct slot_value* value = bpf_map_lookup_elem(&slots, &index);
  if (!value) return drop(NETSUM_DROP_BAD_SLOT);
  const struct netsum_verdict verdict = netsum_slot_contribute(&value->slot, &fields);
  uint8_t* lanes = value->lanes[verdict.bank & 1];
  int overflow = 0;
  switch (verdict.action) {
    case NETSUM_ACT_DROP:
      return drop(verdict.drop);
    case NETSUM_ACT_STORE:
      netsum_lanes_store(lanes, payload, fields.payload_bytes);
      break;
    case NETSUM_ACT_ADD:
      overflow = netsum_lanes_add(fields.format, lanes, payload, fields.payload_bytes);
      break;
    default:
      return XDP_PASS; /* a reply is due */
  }
  const int complete = netsum_slot_added(&value->slot, verdict.bank, overflow, rules->members);
  return complete ? XDP_PASS : XDP_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
