// The sending half of a stripe: which packet is due next, and what is in it.
#include <algorithm>
#include <cstring>

#include "src/base/assert.h"
#include "src/kernels/kernels.h"
#include "src/worker/stripe.h"

namespace netsum {
namespace {

uint8_t sum_format(size_t lane_bytes) {
  return lane_bytes == 2   ? NETSUM_FORMAT_SUM_I16
         : lane_bytes == 4 ? NETSUM_FORMAT_SUM_I32
                           : NETSUM_FORMAT_SUM_I64;
}

}  // namespace

uint32_t Stripe::next_packet(int64_t now_us, uint8_t* frame) {
  uint32_t size = 0;
  if (!welcomed()) {
    size = hello_due_ ? build_hello(now_us, frame) : 0;
  } else if (urgent_count_ > 0) {
    size = build_urgent(now_us, frame);
  }
  if (size == 0 && welcomed()) {
    // Data first: scanning the next group can wait until the window is full.
    if (const std::optional<Step> step = next_step()) {
      const uint32_t slot = static_cast<uint32_t>(next_sequence_ % options_.data_slots);
      slots_[slot].sequence = next_sequence_++;
      ++in_flight_;
      start(now_us, slot, *step);
      if (step->operation->course.first_data_us == 0) step->operation->course.first_data_us = now_us;
      size = build_contribution(now_us, slot, frame);
    } else if (open_group(now_us)) {
      const uint64_t group = groups_opened_ - 1;
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
  fields.chunk = slot.step.chunk;
  fields.signature = slot.step.operation->signature();
  return fields;
}

uint32_t Stripe::build_hello(int64_t now_us, uint8_t* frame) {
  // Every third HELLO is small, to tell a path with a smaller MTU from an aggregator that is not there.
  const bool small = hellos_sent_ % 3 == 2;
  netsum_fields fields{};
  fields.type = NETSUM_TYPE_HELLO;
  fields.job = options_.job;
  fields.epoch = options_.epoch;
  fields.member = options_.member;
  fields.round = hellos_sent_;  // echoed, so that the answer tells which HELLO it is for
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
      slot.history.backoff = 0;  // a loss, not a straggler: no reason to probe less often
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

// Starts the agreement on the scales of the next group, if its place is free.
bool Stripe::open_group(int64_t now_us) {
  if (queue_.empty()) return false;
  const uint32_t place = static_cast<uint32_t>(groups_opened_ % options_.scale_slots);
  Group& group = groups_[place];
  if (group.state != GroupState::kFree) return false;
  const Job job = queue_.front();
  const Operation& operation = *job.operation;
  group.operation = job.operation;
  group.state = GroupState::kAgreeing;
  group.first_chunk = queue_chunk_;
  group.chunks = 0;
  size_t blocks = 0;
  for (; queue_chunk_ < job.local_chunks; ++queue_chunk_, ++group.chunks) {
    const auto [begin, count] = elements_of_chunk(operation, chunk_of_operation(operation, queue_chunk_));
    const size_t more = operation.blocks(begin, count);
    if (2 * (blocks + more) > options_.payload_bytes) break;
    operation.scan(begin, count, &group.scales[2 * blocks]);
    blocks += more;
  }
  // A chunk has at most payload / 2 elements, so one always fits.
  NETSUM_ASSERT(group.chunks > 0);
  Step step;
  step.operation = job.operation;
  step.kind = Kind::kScale;
  step.group = place;
  step.chunk = queue_group_++;
  step.payload_bytes = static_cast<uint32_t>((2 * blocks + 7) / 8 * 8);
  std::fill_n(group.scales.data() + 2 * blocks, step.payload_bytes - 2 * blocks, uint8_t{0});
  ++groups_opened_;
  if (queue_chunk_ == job.local_chunks) {
    queue_.pop_front();
    queue_chunk_ = queue_group_ = 0;
  }
  start(now_us, options_.data_slots + place, step);
  if (step.operation->course.first_scale_us == 0) step.operation->course.first_scale_us = now_us;
  return true;
}

// The next step of data, if its slot is free, its scales are agreed on, and the window has room.
std::optional<Stripe::Step> Stripe::next_step() {
  if (in_flight_ >= window_.packets() || next_sequence_ - lowest_waiting_ >= options_.data_slots) return {};
  if (data_group_ == groups_opened_) return {};
  const uint32_t place = static_cast<uint32_t>(data_group_ % options_.scale_slots);
  const Group& group = groups_[place];
  if (group.state != GroupState::kReady) return {};

  const Operation& operation = *group.operation;
  Step step;
  step.operation = group.operation;
  step.group = place;
  step.chunk = static_cast<uint32_t>(chunk_of_operation(operation, group.first_chunk + data_chunk_));
  step.scales = &group.scales[2 * data_block_];
  step.part = data_part_ == 1;
  std::tie(step.begin, step.count) = elements_of_chunk(operation, step.chunk);
  const size_t blocks = operation.blocks(step.begin, step.count);
  const uint32_t steps = steps_of_chunk(operation, step.count, step.scales, blocks);
  size_t lane_bytes = 8;
  if (!Operation::any_wide(step.scales, blocks)) {
    step.kind = Kind::kNarrow;
    lane_bytes = operation.narrow_lane_bytes();
  } else if (operation.type() == DataType::kInt64) {
    if (halves_busy_ && data_part_ == 0) return {};
    halves_busy_ = true;
    step.kind = data_part_ == 0 ? Kind::kHalfLow : Kind::kHalfHigh;
  } else {
    step.kind = Kind::kWide;
    lane_bytes = operation.wide_lane_bytes();
    const size_t half = options_.payload_bytes / lane_bytes;
    if (data_part_ == 1) {
      step.scales += 2 * operation.block_of(step.begin, step.begin + half);
      step.begin += half;
      step.count -= half;
    } else {
      step.count = std::min(step.count, half);
    }
  }
  step.payload_bytes = static_cast<uint32_t>((step.count * lane_bytes + 7) / 8 * 8);

  if (++data_part_ == steps) {
    data_part_ = 0;
    data_block_ += blocks;
    if (++data_chunk_ == group.chunks) {
      data_chunk_ = 0;
      data_block_ = 0;
      ++data_group_;
    }
  }
  return step;
}

void Stripe::start(int64_t now_us, uint32_t slot_index, const Step& step) {
  Slot& slot = slots_[slot_index];
  change_state(slot_index, SlotEvent::kStarted);
  slot.step = step;
  ++slot.round;
  slot.history = {};
  slot.probed_at_us = now_us;
}

uint32_t Stripe::build_contribution(int64_t now_us, uint32_t slot_index, uint8_t* frame) {
  Slot& slot = slots_[slot_index];
  const Step& step = slot.step;
  ++step.operation->course.packets;
  uint8_t* lanes = frame + NETSUM_HEADER_BYTES;
  // Padding of the last lanes; the lanes themselves overwrite the rest.
  if (step.payload_bytes >= 8) std::memset(lanes + step.payload_bytes - 8, 0, 8);
  netsum_fields fields = fields_of(slot_index, NETSUM_TYPE_CONTRIBUTION);
  fields.payload_bytes = step.payload_bytes;
  fields.flags = step.part ? NETSUM_FLAG_PART : 0;
  switch (step.kind) {
    case Kind::kScale:
      fields.format = NETSUM_FORMAT_MAX_U8;
      std::memcpy(lanes, groups_[step.group].scales.data(), step.payload_bytes);
      break;
    case Kind::kNarrow:
      fields.format = sum_format(step.operation->narrow_lane_bytes());
      step.operation->to_narrow_lanes(step.begin, step.count, step.scales, lanes);
      break;
    case Kind::kWide:
      fields.format = sum_format(step.operation->wide_lane_bytes());
      step.operation->to_wide_lanes(step.begin, step.count, step.scales, lanes);
      break;
    case Kind::kHalfLow:
    case Kind::kHalfHigh:
      fields.format = NETSUM_FORMAT_SUM_I64;
      step.operation->to_half_lanes(step.begin, step.count, step.kind == Kind::kHalfHigh, lanes);
      break;
  }
  slot.sent_at_us = now_us;
  slot.probe_at_us = now_us + round_trip_.timeout_us();
  schedule(slot.probe_at_us);
  return wire::write_header(fields, key_, kernels::nh(lanes, step.payload_bytes, key_.table()), frame);
}

uint32_t Stripe::build_probe(int64_t now_us, uint32_t slot_index, uint8_t* frame) {
  Slot& slot = slots_[slot_index];
  slot.probed_at_us = now_us;
  // A straggler may keep us waiting for long: ask ever more rarely, but at least four times a second.
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
