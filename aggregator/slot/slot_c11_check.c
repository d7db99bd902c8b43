/* The wire and the slot machine are C11: compiled by a test, never linked. */
#include "aggregator/slot/lanes.h"
#include "aggregator/slot/rate.h"
#include "aggregator/slot/slot.h"

int netsum_c11_check(struct netsum_slot* slot, const void* frame, uint32_t size,
                     const struct netsum_job_rules* rules, const struct netsum_key* secret, uint8_t* lanes);

int netsum_c11_check(struct netsum_slot* slot, const void* frame, uint32_t size,
                     const struct netsum_job_rules* rules, const struct netsum_key* secret, uint8_t* lanes) {
  struct netsum_fields fields;
  if (netsum_parse(frame, size, &fields) || netsum_check_rules(&fields, rules)) return -1;
  const uint8_t* payload = (const uint8_t*)frame + NETSUM_HEADER_BYTES;
  uint32_t table[NETSUM_MAX_PAYLOAD / 4];
  netsum_make_table(secret, table, fields.payload_bytes / 4);
  const uint64_t nh = netsum_nh(payload, fields.payload_bytes, table);
  if (netsum_check(frame, nh, fields.payload_bytes, secret) != fields.check) return -1;
  if (fields.type == NETSUM_TYPE_PROBE) return netsum_slot_probe(slot, &fields).action;
  const struct netsum_verdict verdict = netsum_slot_contribute(slot, &fields);
  int overflow = 0;
  switch (verdict.action) {
    case NETSUM_ACT_STORE:
      netsum_lanes_store(lanes, payload, fields.payload_bytes);
      break;
    case NETSUM_ACT_ADD:
      overflow = netsum_lanes_add(fields.format, lanes, payload, fields.payload_bytes);
      break;
    default:
      return verdict.action;
  }
  return netsum_slot_added(slot, verdict.bank, overflow, rules);
}
