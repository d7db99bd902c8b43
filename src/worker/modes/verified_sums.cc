#include "src/worker/modes/verified_sums.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "src/base/assert.h"

namespace netsum {

VerifiedSteps::VerifiedSteps(const StripeOptions& options, uint32_t lane_room, ScaleGroups* groups,
                             StripeCounters* counters)
    : options_(options),
      at_once_(confirmed_at_once(lane_room)),
      sums_(*options.sum_key, options.rank, options.world_size, options.payload_bytes),
      groups_(*groups),
      counters_(*counters) {}

uint32_t VerifiedSteps::payload_bytes_of(const Step& step) const {
  if (!carries_tag(step)) return step.packet.payload_bytes;
  return step.packet.payload_bytes +
         verify::tag_bytes(netsum_lane_bytes(step.packet.format), options_.world_size);
}

verify::SumId VerifiedSteps::sum_id(uint32_t slot, uint32_t round, const Step& step) const {
  NETSUM_ASSERT(step.packet.format >> 4 == NETSUM_OP_SUM);
  return {.operation = step.operation->number(),
          .signature = step.operation->signature(),
          .chunk = step.index,
          .round = round,
          .slot = static_cast<uint16_t>(slot),
          .part = step.part,
          .format = step.packet.format,
          .lanes_bytes = step.packet.payload_bytes,
          .agreed = groups_.at(step.scale_slot).digest};
}

void VerifiedSteps::write_tag(uint32_t slot, uint32_t round, const Step& step, uint8_t* lanes) const {
  if (carries_tag(step)) sums_.write_tag(sum_id(slot, round, step), lanes);
}

// A maximum is not below what this rank has contributed. That it is not above what all have is seen when it is confirmed.
bool VerifiedSteps::is_right(uint32_t slot, uint32_t round, const Step& step, const uint8_t* lanes) const {
  if (carries_tag(step)) return sums_.is_right(sum_id(slot, round, step), lanes);
  const std::vector<uint8_t>& own = groups_.at(step.scale_slot).agreed;
  return std::equal(lanes, lanes + step.packet.payload_bytes, own.begin(), std::greater_equal<>());
}

bool VerifiedSteps::accepts(uint32_t slot, uint32_t round, const Step& step, uint8_t flags,
                            const uint8_t* lanes) {
  // No sum of members without faults passes the range of its lanes.
  if ((flags & NETSUM_FLAG_OVERFLOW) != 0 || !is_right(slot, round, step, lanes)) {
    counters_.sums_refused.add();
    return false;
  }
  counters_.sums_verified.add(carries_tag(step) ? 1 : 0);
  return true;
}

Status VerifiedSteps::wrong_sum(const Step& step, const std::string& what) const {
  // Of a hierarchy, a rank only knows the aggregator that it sends to.
  const std::string or_other = options_.member_of_rank.empty() ? "" : ", or one above, below or beside it";
  return Status(
      ErrorCode::kWrongSum,
      step.operation->describe() + ": a sum by the aggregator at " + options_.address.to_string() + or_other +
          " (stripe " + std::to_string(options_.index) + ", chunk " + std::to_string(step.index) + ") " +
          what + ": its memory, or a network device on the way, alters data, or the aggregator adds wrong");
}

bool VerifiedSteps::is_confirmed(const Step& step) {
  ScaleGroup& group = groups_.at(step.scale_slot);
  if (step.kind == StepKind::kAgree) {
    group.agreed_bytes = step.packet.payload_bytes;
    group.confirmed_bytes = 0;
    group.digest = sums_.digest(group.agreed.data(), group.agreed_bytes);
  }
  if (group.confirmed_bytes == group.agreed_bytes) return true;
  due_.push_back(step.scale_slot);
  return false;
}

std::optional<uint32_t> VerifiedSteps::next_slot() {
  if (due_.empty()) return {};
  const uint32_t slot = due_.front();
  due_.pop_front();
  return slot;
}

void VerifiedSteps::open(Step* step) const {
  const ScaleGroup& group = groups_.at(step->scale_slot);
  step->part = static_cast<uint8_t>(group.confirmed_bytes / at_once_);
  step->kind = StepKind::kConfirm;
  step->packet.format = NETSUM_FORMAT_SUM_I16;
  step->packet.payload_bytes = 2 * std::min(group.agreed_bytes - group.confirmed_bytes, at_once_);
}

// In 16-bit lanes: 1 for each of the group's next maxima that this rank has itself.
void VerifiedSteps::write(const Step& step, uint8_t* lanes) const {
  const ScaleGroup& group = groups_.at(step.scale_slot);
  for (uint32_t i = 0; i < step.packet.payload_bytes / 2; ++i) {
    const size_t at = group.confirmed_bytes + i;
    const int16_t reached = group.own[at] == group.agreed[at] ? 1 : 0;
    std::memcpy(lanes + 2 * i, &reached, 2);
  }
}

Status VerifiedSteps::take(const Step& step, const uint8_t* counts) {
  for (uint32_t i = 0; i < step.packet.payload_bytes / 2; ++i) {
    int16_t count;
    std::memcpy(&count, counts + 2 * i, 2);
    if (count > 0) continue;
    counters_.sums_refused.add();
    return wrong_sum(step, "was to have scales that no rank has");
  }
  groups_.at(step.scale_slot).confirmed_bytes += step.packet.payload_bytes / 2;
  return Status();
}

}  // namespace netsum
