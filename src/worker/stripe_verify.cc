// Verified sums: the tags of what a stripe sends, the check of what it receives, and the confirmation of maxima.
#include <algorithm>
#include <cstring>

#include "src/base/assert.h"
#include "src/worker/stripe.h"

namespace netsum {

bool Stripe::carries_tag(const Step& step) const {
  return sums_ != nullptr && step.kind != StepKind::kAgree;
}

uint32_t Stripe::payload_bytes_of(const Step& step) const {
  if (!carries_tag(step)) return step.packet.payload_bytes;
  return step.packet.payload_bytes +
         verify::tag_bytes(netsum_lane_bytes(step.packet.format), options_.world_size);
}

verify::SumId Stripe::sum_id(uint32_t slot_index) const {
  const Slot& slot = slots_[slot_index];
  const Step& step = slot.step;
  NETSUM_ASSERT(step.packet.format >> 4 == NETSUM_OP_SUM);
  return {.operation = step.operation->number(),
          .signature = step.operation->signature(),
          .chunk = step.index,
          .round = slot.round,
          .slot = static_cast<uint16_t>(slot_index),
          .part = step.part,
          .format = step.packet.format,
          .lanes_bytes = step.packet.payload_bytes,
          .agreed = group_in(step.scale_slot).digest};
}

// A maximum is not below what this rank has contributed. That it is not above what all have is seen when it is confirmed.
bool Stripe::is_right(uint32_t slot_index, const uint8_t* payload) const {
  const Step& step = slots_[slot_index].step;
  if (carries_tag(step)) return sums_->is_right(sum_id(slot_index), payload);
  const std::vector<uint8_t>& own = group_in(step.scale_slot).agreed;
  return std::equal(payload, payload + step.packet.payload_bytes, own.begin(), std::greater_equal<>());
}

Status Stripe::refuse(uint32_t slot_index) {
  counters_.sums_refused.add();
  Slot& slot = slots_[slot_index];
  if (slot.state == SlotState::kResendDue) return Status();  // it is asked for already
  if (slot.history.refused++ == kMostRefusals) return wrong_sum(slot.step, "is not that of all ranks");
  change_state(slot_index, SlotEvent::kAgain);
  return Status();
}

Status Stripe::wrong_sum(const Step& step, const std::string& what) const {
  // Of a hierarchy, a rank only knows the aggregator that it sends to.
  const std::string or_other = options_.member_of_rank.empty() ? "" : ", or one above, below or beside it";
  return Status(
      ErrorCode::kWrongSum,
      step.operation->describe() + ": a sum by the aggregator at " + options_.address.to_string() + or_other +
          " (stripe " + std::to_string(options_.index) + ", chunk " + std::to_string(step.index) + ") " +
          what + ": its memory, or a network device on the way, alters data, or the aggregator adds wrong");
}

void Stripe::begin_confirmation(const Step& step, const uint8_t* maxima) {
  ScaleGroup& group = group_in(step.scale_slot);
  group.agreed_bytes = step.packet.payload_bytes;
  group.confirmed_bytes = 0;
  group.own.swap(group.agreed);
  std::memcpy(group.agreed.data(), maxima, group.agreed_bytes);
  group.digest = sums_->digest(maxima, group.agreed_bytes);
  to_confirm_.push_back(step.scale_slot);
}

uint32_t Stripe::next_confirmation(int64_t now_us, uint8_t* frame) {
  if (to_confirm_.empty()) return 0;
  const uint32_t slot_index = to_confirm_.front();
  to_confirm_.pop_front();
  const ScaleGroup& group = group_in(slot_index);
  Step& step = slots_[slot_index].step;
  step.part = static_cast<uint8_t>(group.confirmed_bytes / confirmed_at_once());
  step.kind = StepKind::kConfirm;
  step.packet.format = NETSUM_FORMAT_SUM_I16;
  step.packet.payload_bytes = 2 * std::min(group.agreed_bytes - group.confirmed_bytes, confirmed_at_once());
  start(now_us, slot_index);
  return build_contribution(now_us, slot_index, frame);
}

// In 16-bit lanes: 1 for each of the group's next maxima that this rank has itself.
void Stripe::write_counts(const ScaleGroup& group, uint32_t payload_bytes, uint8_t* lanes) {
  for (uint32_t i = 0; i < payload_bytes / 2; ++i) {
    const size_t at = group.confirmed_bytes + i;
    const int16_t reached = group.own[at] == group.agreed[at] ? 1 : 0;
    std::memcpy(lanes + 2 * i, &reached, 2);
  }
}

Status Stripe::take_counts(const Step& step, const uint8_t* lanes) {
  for (uint32_t i = 0; i < step.packet.payload_bytes / 2; ++i) {
    int16_t count;
    std::memcpy(&count, lanes + 2 * i, 2);
    if (count > 0) continue;
    counters_.sums_refused.add();
    return wrong_sum(step, "was to have scales that no rank has");
  }
  ScaleGroup& group = group_in(step.scale_slot);
  group.confirmed_bytes += step.packet.payload_bytes / 2;
  if (group.confirmed_bytes == group.agreed_bytes) return take_agreement(&group);
  to_confirm_.push_back(step.scale_slot);
  return Status();
}

}  // namespace netsum
