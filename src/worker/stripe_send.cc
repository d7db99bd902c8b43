// The sending half of a stripe: selects the next packet and builds it.
#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/assert.h"
#include "src/kernels/kernels.h"
#include "src/worker/stripe.h"

namespace netsum {
uint64_t Stripe::next_chunk() const {
  if (data_group_ < scale_groups_opened_) {
    const ScaleGroup& group = scale_groups_[data_group_ % options_.scale_slots];
    return group.operation->first_chunk + chunk_index(*group.operation, group.first_chunk + data_chunk_);
  }
  if (queue_.empty()) return UINT64_MAX;
  const Operation& operation = *queue_.front().operation;
  return operation.first_chunk + chunk_index(operation, queue_chunk_);
}

uint32_t Stripe::next_packet(int64_t now_us, uint8_t* frame, uint64_t limit) {
  uint32_t size = 0;
  if (!welcomed()) {
    size = hello_due_ ? build_hello(now_us, frame) : 0;
  } else if (urgent_count_ > 0) {
    size = build_urgent(now_us, frame);
  }
  if (size == 0 && welcomed()) {
    // Data first: scanning the next scale group can wait until the window is full.
    if (const std::optional<Step> step = next_step(limit)) {
      const uint32_t slot = static_cast<uint32_t>(next_sequence_ % options_.data_slots);
      slots_[slot].sequence = next_sequence_++;
      ++in_flight_;
      start(now_us, slot, *step);
      if (step->operation->course.first_data_us == 0) step->operation->course.first_data_us = now_us;
      size = build_contribution(now_us, slot, frame);
    } else if (open_scale_group(now_us)) {
      const uint64_t group = scale_groups_opened_ - 1;
      const uint32_t slot = options_.data_slots + static_cast<uint32_t>(group % options_.scale_slots);
      size = build_contribution(now_us, slot, frame);
    }
  }
  if (size > 0) {
    counters_.packets_sent.add();
    counters_.bytes_sent.add(size);
  }
  return size;
}

netsum_fields Stripe::fields_of(uint32_t slot_index, uint8_t type) const {
  const Slot& slot = slots_[slot_index];
  netsum_fields fields{};
  fields.type = type;
  fields.job = options_.job;
  fields.epoch = options_.epoch;
  fields.slot = static_cast<uint16_t>(slot_index);
  fields.member = options_.member;
  fields.round = slot.round;
  fields.chunk = slot.step.index;
  fields.signature = slot.step.operation->signature();
  return fields;
}

uint32_t Stripe::build_hello(int64_t now_us, uint8_t* frame) {
  // Every third HELLO is small, to distinguish a path with a smaller MTU from an aggregator that does not answer.
  const bool small = hellos_sent_ % 3 == 2;
  netsum_fields fields{};
  fields.type = NETSUM_TYPE_HELLO;
  fields.job = options_.job;
  fields.epoch = options_.epoch;
  fields.member = options_.member;
  fields.round = hellos_sent_;  // echoed, so that the answer identifies its HELLO
  fields.payload_bytes = small ? 0 : options_.payload_bytes;
  std::memset(frame + NETSUM_HEADER_BYTES, 0, fields.payload_bytes);
  ++hellos_sent_;
  hello_due_ = false;
  hello_sent_at_us_ = now_us;
  if (hellos_sent_ == 1) last_heard_us_ = now_us;
  next_tick_us_ = 0;
  return wire::write_header(fields, key_, frame);
}

uint32_t Stripe::build_urgent(int64_t now_us, uint8_t* frame) {
  while (urgent_count_ > 0) {
    const uint32_t index = urgent_[urgent_first_];
    urgent_first_ = (urgent_first_ + 1) % urgent_.size();
    --urgent_count_;
    Slot& slot = slots_[index];
    slot.queued = false;
    if (slot.state == SlotState::kResendDue) {
      change_state(index, SlotEvent::kResent);
      slot.history.resent = true;
      slot.history.backoff = 0;  // a loss, not a slow rank: no reason to probe less often
      counters_.retransmissions.add();
      ++slot.step.operation->course.retransmissions;
      return build_contribution(now_us, index, frame);
    }
    if (slot.state == SlotState::kProbeDue) {
      change_state(index, SlotEvent::kProbed);
      counters_.probes.add();
      return build_probe(now_us, index, frame);
    }
  }
  return 0;
}

// Starts the agreement of the next scale group, or the sum of what needs none, if its slot is free.
bool Stripe::open_scale_group(int64_t now_us) {
  if (queue_.empty() || scale_groups_opened_ - data_group_ == options_.scale_slots) return false;
  const uint32_t index = static_cast<uint32_t>(scale_groups_opened_ % options_.scale_slots);
  ScaleGroup& group = scale_groups_[index];
  if (group.state != ScaleGroupState::kFree) return false;
  const Share share = queue_.front();
  group.operation = share.operation;
  group.first_chunk = queue_chunk_;
  group.chunks = 0;
  group.in_scale_slot = 0;
  Step step = !share.operation->encoding().agrees() ? first_step(&group)
              : options_.sums_values && share.operation->can_send_values(options_.payload_bytes)
                  ? values_step(&group)
                  : agree_step(&group);
  step.operation = share.operation;
  step.scale_group = index;
  ++scale_groups_opened_;
  pass_without_data();
  if (queue_chunk_ == share.chunks) {
    queue_.pop_front();
    queue_chunk_ = queue_group_ = 0;
  }
  start(now_us, options_.data_slots + index, step);
  int64_t& first_us = step.kind == StepKind::kAgree ? step.operation->course.first_scale_us
                                                    : step.operation->course.first_data_us;
  if (first_us == 0) first_us = now_us;
  return true;
}

Stripe::Step Stripe::agree_step(ScaleGroup* group) {
  const Share& share = queue_.front();
  const Operation& operation = *share.operation;
  group->state = ScaleGroupState::kAgreeing;
  size_t bytes = 0;
  for (; queue_chunk_ < share.chunks; ++queue_chunk_, ++group->chunks) {
    const Chunk chunk = operation.chunk(chunk_index(operation, queue_chunk_), options_.payload_bytes);
    const size_t more = operation.agreed_bytes(chunk);
    NETSUM_ASSERT(more >= kMinAgreedBytes);
    if (bytes + more > options_.payload_bytes) break;
    operation.scan(chunk, &group->agreed[bytes]);
    bytes += more;
  }
  NETSUM_ASSERT(group->chunks > 0);  // the bytes of one chunk always fit (Encoding::agreed_bytes)
  Step step;
  step.index = queue_group_++;
  step.packet.format = NETSUM_FORMAT_MAX_U8;
  step.packet.payload_bytes = static_cast<uint32_t>((bytes + 7) / 8 * 8);
  std::fill_n(group->agreed.data() + bytes, step.packet.payload_bytes - bytes, uint8_t{0});
  return step;
}

Stripe::Step Stripe::values_step(ScaleGroup* group) {
  const Operation& operation = *queue_.front().operation;
  group->state = ScaleGroupState::kReady;
  group->chunks = group->in_scale_slot = group->steps_left = 1;
  Step step;
  step.kind = StepKind::kValues;
  step.index = static_cast<uint32_t>(chunk_index(operation, queue_chunk_++));
  step.chunk = operation.chunk(step.index, options_.payload_bytes);
  step.packet.format = operation.encoding().value_format();
  step.packet.payload_bytes =
      static_cast<uint32_t>((step.chunk.count * size_of(operation.type()) + 7) / 8 * 8);
  return step;
}

Stripe::Step Stripe::first_step(ScaleGroup* group) {
  const Share& share = queue_.front();
  const Operation& operation = *share.operation;
  group->state = ScaleGroupState::kReady;
  const size_t most = options_.payload_bytes / kMinAgreedBytes;
  group->chunks = group->steps_left = static_cast<uint32_t>(std::min(share.chunks - queue_chunk_, most));
  group->in_scale_slot = 1;
  Step step;
  step.kind = StepKind::kFirst;
  step.index = static_cast<uint32_t>(chunk_index(operation, queue_chunk_));
  step.chunk = operation.chunk(step.index, options_.payload_bytes);
  step.packet = operation.plan(step.chunk, options_.payload_bytes).packet[0];
  queue_chunk_ += group->chunks;
  return step;
}

void Stripe::pass_without_data() {
  for (; data_group_ < scale_groups_opened_; ++data_group_, data_chunk_ = 0, data_agreed_ = 0) {
    const ScaleGroup& group = scale_groups_[data_group_ % options_.scale_slots];
    if (group.state == ScaleGroupState::kFree) continue;  // only zeros
    if (group.state == ScaleGroupState::kAgreeing) return;
    data_chunk_ = std::max(data_chunk_, group.in_scale_slot);
    for (; data_chunk_ < group.chunks; ++data_chunk_) {
      const Chunk chunk = chunk_of(group, data_chunk_, data_agreed_);
      if (group.operation->plan(chunk, options_.payload_bytes).packets > 0) return;
      data_agreed_ += group.operation->agreed_bytes(chunk);
    }
  }
}

// The next step of data, if its slot is free, its scale group is agreed on, and the window has room.
std::optional<Stripe::Step> Stripe::next_step(uint64_t limit) {
  held_back_ = false;
  if (in_flight_ >= window_.packets() || next_sequence_ - lowest_waiting_ >= options_.data_slots) return {};
  if (data_group_ == scale_groups_opened_) return {};
  const uint32_t index = static_cast<uint32_t>(data_group_ % options_.scale_slots);
  const ScaleGroup& group = scale_groups_[index];
  if (group.state != ScaleGroupState::kReady) return {};

  const Operation& operation = *group.operation;
  Step step;
  step.operation = group.operation;
  step.kind = StepKind::kData;
  step.scale_group = index;
  step.index = static_cast<uint32_t>(chunk_index(operation, group.first_chunk + data_chunk_));
  held_back_ = operation.first_chunk + step.index >= limit;
  if (held_back_) return {};
  step.chunk = chunk_of(group, data_chunk_, data_agreed_);
  const ChunkPlan plan = operation.plan(step.chunk, options_.payload_bytes);
  step.part = data_part_;
  step.together = plan.together;
  step.packet = plan.packet[data_part_];
  if (plan.together && data_part_ == 0 && std::exchange(held_.busy, true)) return {};

  if (++data_part_ == plan.packets) {
    data_part_ = 0;
    data_agreed_ += operation.agreed_bytes(step.chunk);
    ++data_chunk_;
    pass_without_data();
  }
  return step;
}

void Stripe::start(int64_t now_us, uint32_t slot_index, const Step& step) {
  Slot& slot = slots_[slot_index];
  change_state(slot_index, SlotEvent::kStarted);
  slot.step = step;
  slot.step.own = own_lanes_of(step);
  const bool has_lanes = step.kind == StepKind::kData || step.kind == StepKind::kFirst;
  slot.step.brief =
      options_.takes_brief && has_lanes && !step.together && !step.operation->needs_result(step.chunk);
  ++slot.round;
  slot.history = {};
  slot.probed_at_us = now_us;
}

Stripe::OwnLanes Stripe::own_lanes_of(const Step& step) const {
  if (!options_.takes_no_lanes || step.kind == StepKind::kValues) return OwnLanes::kSent;
  const Operation& operation = *step.operation;
  if (step.kind == StepKind::kAgree) return operation.contributes() ? OwnLanes::kSent : OwnLanes::kNone;
  if (!operation.contributes_to(step.chunk)) return OwnLanes::kNone;
  return operation.is_for_this_rank_alone(step.chunk) ? OwnLanes::kKept : OwnLanes::kSent;
}

uint32_t Stripe::build_contribution(int64_t now_us, uint32_t slot_index, uint8_t* frame) {
  Slot& slot = slots_[slot_index];
  const Step& step = slot.step;
  ++step.operation->course.packets;
  uint8_t* lanes = frame + NETSUM_HEADER_BYTES;
  netsum_fields fields = fields_of(slot_index, NETSUM_TYPE_CONTRIBUTION);
  fields.payload_bytes = step.packet.payload_bytes;
  fields.format = step.packet.format;
  fields.flags = step.part > 0 ? NETSUM_FLAG_PART : 0;
  if (step.brief) fields.flags |= NETSUM_FLAG_BRIEF;
  if (step.own != OwnLanes::kSent && (step.brief || !slot.history.resent)) {
    const netsum_be64 length = netsum_put64(fields.payload_bytes);
    std::memcpy(lanes, &length, sizeof length);
    fields.flags |= NETSUM_FLAG_NO_LANES;
    fields.payload_bytes = NETSUM_NO_LANES_BYTES;
  } else if (step.own != OwnLanes::kSent) {
    std::memset(lanes, 0, fields.payload_bytes);
  } else if (step.kind == StepKind::kAgree) {
    std::memcpy(lanes, scale_groups_[step.scale_group].agreed.data(), step.packet.payload_bytes);
  } else if (step.kind == StepKind::kValues) {
    std::memset(lanes + step.packet.payload_bytes - 8, 0, 8);
    step.operation->copy_in(step.chunk.begin, step.chunk.count, lanes);
  } else {
    step.operation->encode(step.chunk, step.packet, lanes);
  }
  slot.sent_at_us = now_us;
  slot.probe_at_us = now_us + round_trip_.timeout_us();
  schedule(slot.probe_at_us);
  return wire::write_header(fields, key_, kernels::nh(lanes, fields.payload_bytes, key_.table()), frame);
}

uint32_t Stripe::build_probe(int64_t now_us, uint32_t slot_index, uint8_t* frame) {
  Slot& slot = slots_[slot_index];
  slot.probed_at_us = now_us;
  // The wait for a slow rank may be long: probe less and less often, but at least four times a second.
  const int64_t wait_us =
      std::min<int64_t>(round_trip_.timeout_us() << std::min(slot.history.backoff, 8u), 250'000);
  ++slot.history.backoff;
  slot.probe_at_us = now_us + wait_us;
  schedule(slot.probe_at_us);
  netsum_fields fields = fields_of(slot_index, NETSUM_TYPE_PROBE);
  fields.payload_bytes = NETSUM_PROBE_BYTES;
  std::memset(frame + NETSUM_HEADER_BYTES, 0, NETSUM_PROBE_BYTES);
  return wire::write_header(fields, key_, frame);
}

}  // namespace netsum
