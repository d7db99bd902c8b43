// Test support: a handful of slots with their lanes, driven as a dataplane drives them.
#ifndef NETSUM_AGGREGATOR_SLOT_SLOT_BENCH_H_
#define NETSUM_AGGREGATOR_SLOT_SLOT_BENCH_H_

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "aggregator/slot/lanes.h"
#include "aggregator/slot/slot.h"

namespace netsum {

struct SlotOutcome {
  uint8_t action = NETSUM_ACT_DROP;
  uint8_t drop = NETSUM_DROP_NONE;
  uint8_t bank = 0;
  uint8_t flags = 0;  // of a STATUS
  uint64_t seen = 0;
  bool completed = false;
  uint16_t addressee = 0;
  uint16_t asked =
      NETSUM_MEMBER_ALL;  // completed, but without room: the member that is asked to contribute again
  bool operator==(const SlotOutcome&) const = default;
};

class SlotBench {
 public:
  // `lengthens`: it can answer packets without lanes by such with lanes.
  explicit SlotBench(uint16_t members, uint32_t slots = 1, uint32_t payload_bytes = 64,
                     bool has_parent = false, bool lengthens = true)
      : lengthens_(lengthens), slots_(slots), lanes_(slots) {
    rules_.epoch = 1;
    rules_.members = members;
    rules_.slots = slots;
    rules_.payload_bytes = payload_bytes;
    rules_.has_parent = has_parent;
    for (auto& banks : lanes_) banks.fill(std::vector<uint8_t>(payload_bytes));
  }

  // A contribution of 32-bit sums unless the caller changes the fields.
  netsum_fields contribution(uint16_t member, uint32_t round, uint32_t slot = 0) const {
    netsum_fields f{};
    f.type = NETSUM_TYPE_CONTRIBUTION;
    f.format = NETSUM_FORMAT_SUM_I32;
    f.epoch = rules_.epoch;
    f.slot = static_cast<uint16_t>(slot);
    f.member = member;
    f.round = round;
    f.chunk = round * 10;
    f.signature = 0x51C4;
    f.payload_bytes = 8;
    return f;
  }

  SlotOutcome feed(const netsum_fields& f, std::span<const uint8_t> payload) {
    const int reason = netsum_check_rules(&f, &rules_);
    if (reason != NETSUM_DROP_NONE) return {NETSUM_ACT_DROP, static_cast<uint8_t>(reason)};
    netsum_slot& slot = slots_[f.slot];
    const netsum_verdict v =
        f.type == NETSUM_TYPE_PROBE ? netsum_slot_probe(&slot, &f) : netsum_slot_contribute(&slot, &f);
    SlotOutcome outcome = outcome_of(v);
    int overflow = 0;
    if (v.action == NETSUM_ACT_STORE) {
      netsum_lanes_store(lanes_[f.slot][v.bank].data(), payload.data(), f.payload_bytes);
    } else if (v.action == NETSUM_ACT_ADD) {
      overflow = netsum_lanes_add(f.format, lanes_[f.slot][v.bank].data(), payload.data(), f.payload_bytes);
    } else if (v.action == NETSUM_ACT_CLEAR) {
      std::fill_n(lanes_[f.slot][v.bank].begin(), f.absent_bytes, uint8_t{0});
    } else if (v.action != NETSUM_ACT_COUNT) {
      return outcome;
    }
    outcome.completed = netsum_slot_added(&slot, v.bank, overflow, &rules_);
    if (outcome.completed && !lengthens_) outcome.asked = netsum_slot_asks(&slot, &f);
    return outcome;
  }

  // A RESULT, STATUS or ERROR of the parent's.
  SlotOutcome feed_from_parent(const netsum_fields& f, std::span<const uint8_t> payload) {
    const netsum_verdict v = netsum_slot_from_parent(&slots_[f.slot], &f, rules_.members);
    SlotOutcome outcome = outcome_of(v);
    if (v.action != NETSUM_ACT_TAKE_RESULT) return outcome;
    if (!netsum_is_empty(&f))
      netsum_lanes_store(lanes_[f.slot][v.bank].data(), payload.data(), f.payload_bytes);
    outcome.completed = true;
    return outcome;
  }

  // Two 32-bit lanes.
  SlotOutcome contribute(uint16_t member, uint32_t round, int32_t a, int32_t b = 0, uint32_t slot = 0) {
    const int32_t values[2] = {a, b};
    uint8_t payload[8];
    std::memcpy(payload, values, sizeof payload);
    return feed(contribution(member, round, slot), payload);
  }

  // Nothing, in place of two 32-bit lanes.
  SlotOutcome contribute_nothing(uint16_t member, uint32_t round) {
    netsum_fields f = contribution(member, round);
    f.flags = NETSUM_FLAG_EMPTY;
    f.absent_bytes = f.payload_bytes;
    return feed(f, std::array<uint8_t, NETSUM_EMPTY_BYTES>{});
  }

  SlotOutcome probe(uint16_t member, uint32_t round, uint32_t slot = 0) {
    netsum_fields f = contribution(member, round, slot);
    f.type = NETSUM_TYPE_PROBE;
    f.format = NETSUM_FORMAT_NONE;
    f.payload_bytes = NETSUM_PROBE_BYTES;
    return feed(f, std::array<uint8_t, NETSUM_PROBE_BYTES>{});
  }

  int32_t lane(uint32_t round, int index = 0, uint32_t slot = 0) const {
    return static_cast<int32_t>(netsum_load32(lanes_[slot][round & 1].data() + 4 * index));
  }
  const std::vector<uint8_t>& lanes(uint32_t slot, uint32_t round) const { return lanes_[slot][round & 1]; }
  netsum_slot& slot(uint32_t index = 0) { return slots_[index]; }
  netsum_job_rules& rules() { return rules_; }

 private:
  static SlotOutcome outcome_of(const netsum_verdict& v) {
    return {.action = v.action,
            .drop = v.drop,
            .bank = v.bank,
            .flags = v.flags,
            .seen = v.seen,
            .addressee = v.addressee};
  }

  const bool lengthens_;
  netsum_job_rules rules_{};
  std::vector<netsum_slot> slots_;
  std::vector<std::array<std::vector<uint8_t>, 2>> lanes_;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_SLOT_SLOT_BENCH_H_
