// The sending half of a stripe: selects the next packet and builds it.
#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/assert.h"
#include "src/kernels/packet_check.h"
#include "src/worker/stripe.h"
#include "wire/values.h"

namespace netsum {
uint64_t Stripe::next_chunk(size_t number) const {
  const Stream& stream = streams_[number];
  if (stream.data_group < stream.next_group()) {
    const ScaleGroup& group = sending_group(stream);
    return progress_in(stream, group);
  }
  if (stream.queue.empty()) return UINT64_MAX;
  return progress(*stream.queue.front().operation, stream.queue.front().next_chunk);
}

// Chunks that are sent again do not count as a step back: other stripes would wait for them.
uint64_t Stripe::progress_in(const Stream& stream, const ScaleGroup& group) const {
  const bool again = group.prediction.chunks > 0 && !stream.data_predicted;
  return progress(*group.operation, group.first_chunk + (again ? group.chunks - 1 : stream.data_chunk));
}

uint32_t Stripe::next_packet(int64_t now_us, uint8_t* frame, const Limits& limits) {
  uint32_t size = 0;
  if (!welcomed()) {
    size = hello_due_ ? build_hello(now_us, frame) : 0;
  } else if (urgent_count_ > 0) {
    size = build_urgent(now_us, frame);
  }
  if (size == 0 && welcomed()) size = next_confirmation(now_us, frame);
  if (size == 0 && welcomed()) {
    // Data first: scanning the next scale group can wait until the windows are full.
    size = next_data_packet(now_us, frame, limits);
    if (size == 0) {
      if (const uint32_t slot = open_scale_group(now_us)) size = build_contribution(now_us, slot, frame);
    }
  }
  if (size > 0) {
    counters_.packets_sent.add();
    counters_.bytes_sent.add(size);
  }
  return size;
}

// The streams take turns, packet by packet, as far as their windows allow.
uint32_t Stripe::next_data_packet(int64_t now_us, uint8_t* frame, const Limits& limits) {
  for (size_t tried = 0; tried < SlotLayout::kStreams; ++tried) {
    Stream& stream = streams_[turn_];
    const std::optional<uint32_t> slot = next_step(&stream, limits[turn_]);
    turn_ = (turn_ + 1) % SlotLayout::kStreams;
    if (!slot) continue;
    slots_[*slot].sequence = stream.next_sequence++;
    ++stream.in_flight;
    start(now_us, *slot);
    OperationCourse& course = slots_[*slot].step.operation->course;
    if (course.first_data_us == 0) course.first_data_us = now_us;
    return build_contribution(now_us, *slot, frame);
  }
  return 0;
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
  fields.signature = slot.step.signature;
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

uint32_t Stripe::open_scale_group(int64_t now_us) {
  if (!to_open_.empty() && opens_in(layout_.opening().slot(opened_))) {
    Stream& stream = streams_[to_open_.front()];
    const uint32_t slot = layout_.opening().slot(opened_++);
    Share& share = stream.queue[stream.begun];
    open_group(now_us, &stream, &share, slot);
    const bool stays = !layout_.divides() || sends_values(*share.operation);
    if (!stays || share.next_chunk == share.chunks) {
      ++stream.begun;
      to_open_.pop_front();
      take_begun(&stream);
    }
    return slot;
  }
  for (size_t number = 0; number < SlotLayout::kStreams; ++number) {
    Stream& stream = streams_[number];
    if (stream.begun == 0 || stream.queue.empty()) continue;
    const uint32_t slot = layout_.further(number).slot(stream.further);
    if (!opens_in(slot)) continue;
    ++stream.further;
    open_group(now_us, &stream, &stream.queue.front(), slot);
    take_begun(&stream);
    return slot;
  }
  return 0;
}

bool Stripe::opens_in(uint32_t slot) const {
  return group_in(slot).state == ScaleGroupState::kFree;
}

bool Stripe::sends_values(const Operation& operation) const {
  // An aggregator adds one value of each of its members.
  const bool one_each = options_.summands <= options_.world_size || operation.is_of_partial_sums();
  if (!one_each || !operation.is_of_values(options_.payload_bytes)) return false;
  return options_.sums_values ||
         (options_.sums_partial_floats && operation.fits_floats(options_.payload_bytes));
}

void Stripe::open_group(int64_t now_us, Stream* stream, Share* share, uint32_t slot) {
  ScaleGroup& group = group_in(slot);
  group.proof = {group.stream, group.operation == nullptr ? 0 : group.number + 1};
  group.operation = share->operation;
  group.stream = stream_of(share->operation->moves_bytes());
  group.first_chunk = share->next_chunk;
  group.chunks = 0;
  group.in_scale_slot = 0;
  group.digest = 0;
  group.steps_left = 0;
  group.prediction.chunks = 0;
  group.prediction.begun = false;
  group.prediction.possible = history_ != nullptr && share->groups == 0 &&
                              share->operation->encoding().agrees() && !sends_values(*share->operation);
  Step step = !share->operation->encoding().agrees() ? first_step(share, &group)
              : sends_values(*share->operation)      ? values_step(share, &group)
                                                     : agree_step(share, &group);
  step.operation = share->operation;
  step.scale_slot = slot;
  ++share->groups;
  if (share == &stream->queue.front()) {
    group.number = stream->next_group();
    stream->groups.push_back(slot);
    pass_without_data(stream);
  } else {
    stream->early.push_back(slot);
    ++share->early;
  }
  slots_[slot].step = step;
  start(now_us, slot);
  int64_t& first_us = step.kind == StepKind::kAgree ? step.operation->course.first_scale_us
                                                    : step.operation->course.first_data_us;
  if (first_us == 0) first_us = now_us;
}

// Goes on to the next operation of the queue when all groups of the first are open. The next one's may be open, too.
void Stripe::take_begun(Stream* stream) {
  while (!stream->queue.empty() && stream->queue.front().next_chunk == stream->queue.front().chunks) {
    stream->unproven[stream->ends_known++].end = stream->next_group();
    stream->queue.pop_front();
    --stream->begun;
    if (stream->queue.empty()) return;
    for (uint32_t& early = stream->queue.front().early; early > 0; --early) {
      const uint32_t slot = stream->early.front();
      stream->early.pop_front();
      group_in(slot).number = stream->next_group();
      stream->groups.push_back(slot);
    }
    retire_finished(stream);
  }
}

Stripe::Step Stripe::agree_step(Share* share, ScaleGroup* group) {
  const Operation& operation = *share->operation;
  group->state = ScaleGroupState::kAgreeing;
  const size_t limit = sums_ != nullptr ? confirmed_at_once() : lane_room_;
  size_t bytes = 0;
  for (; share->next_chunk < share->chunks; ++share->next_chunk, ++group->chunks) {
    const Chunk chunk = operation.chunk(chunk_index(operation, share->next_chunk), lane_room_);
    const size_t more = operation.agreed_bytes(chunk);
    NETSUM_ASSERT(more >= kMinAgreedBytes);
    if (group->chunks > 0 && bytes + more > limit) break;
    NETSUM_ASSERT(bytes + more <= lane_room_);  // of one chunk (Encoding::agreed_bytes)
    operation.scan(chunk, &group->agreed[bytes]);
    bytes += more;
  }
  Step step;
  step.index = share->groups;
  step.packet.format = NETSUM_FORMAT_MAX_U8;
  step.packet.payload_bytes = static_cast<uint32_t>((bytes + 7) / 8 * 8);
  group->prediction.bytes = static_cast<uint32_t>(bytes);
  std::fill_n(group->agreed.data() + bytes, step.packet.payload_bytes - bytes, uint8_t{0});
  return step;
}

Stripe::Step Stripe::values_step(Share* share, ScaleGroup* group) {
  const Operation& operation = *share->operation;
  group->state = ScaleGroupState::kReady;
  group->chunks = group->in_scale_slot = group->steps_left = 1;
  Step step;
  step.kind = StepKind::kValues;
  step.index = static_cast<uint32_t>(chunk_index(operation, share->next_chunk++));
  step.chunk = operation.chunk(step.index, lane_room_);
  const bool floats = sends_partial_floats();
  step.packet.format =
      floats ? wire::format_of_values(DataType::kFloat32, false) : operation.encoding().value_format();
  const size_t element = floats ? sizeof(float) : size_of(operation.type());
  step.packet.payload_bytes = static_cast<uint32_t>((step.chunk.count * element + 7) / 8 * 8);
  return step;
}

Stripe::Step Stripe::first_step(Share* share, ScaleGroup* group) {
  const Operation& operation = *share->operation;
  group->state = ScaleGroupState::kReady;
  const size_t most = options_.payload_bytes / kMinAgreedBytes;
  group->chunks = group->steps_left =
      static_cast<uint32_t>(std::min(share->chunks - share->next_chunk, most));
  group->in_scale_slot = 1;
  Step step;
  step.kind = StepKind::kFirst;
  step.index = static_cast<uint32_t>(chunk_index(operation, share->next_chunk));
  step.chunk = operation.chunk(step.index, lane_room_);
  step.packet = operation.plan(step.chunk, lane_room_).packet[0];
  share->next_chunk += group->chunks;
  return step;
}

void Stripe::pass_without_data(Stream* stream) {
  const auto to_first_chunk = [&](bool predicted) {
    stream->data_chunk = 0;
    stream->data_agreed = 0;
    stream->data_predicted = predicted;
  };
  for (; stream->data_group < stream->next_group(); ++stream->data_group, to_first_chunk(true)) {
    ScaleGroup& group = group_in(stream->groups[stream->data_group - stream->retired]);
    if (group.prediction.possible && !group.prediction.begun) predict(&group);
    if (group.state == ScaleGroupState::kFinished) continue;  // only zeros, or all in the scale slot
    if (stream->data_predicted) {
      if (group.prediction.chunks > 0 && pass_chunks(stream, group)) return;
      to_first_chunk(false);
    }
    if (group.state != ScaleGroupState::kReady) return;
    stream->data_chunk = std::max(stream->data_chunk, group.in_scale_slot);
    if (pass_chunks(stream, group)) return;
  }
}

bool Stripe::pass_chunks(Stream* stream, const ScaleGroup& group) {
  const Operation& operation = *group.operation;
  const std::vector<uint8_t>& agreed = stream->data_predicted ? group.prediction.agreed : group.agreed;
  Stream::Due& due = stream->due;
  for (; stream->data_chunk < group.chunks; ++stream->data_chunk) {
    due.index = static_cast<uint32_t>(chunk_index(operation, group.first_chunk + stream->data_chunk));
    due.chunk = operation.chunk(due.index, lane_room_);
    due.chunk.agreed = &agreed[stream->data_agreed];
    due.agreed_bytes = operation.agreed_bytes(due.chunk);
    const bool wanted = stream->data_predicted
                            ? group.prediction.of_chunk[stream->data_chunk] != Prediction::Chunk::kNone
                            : !is_right(group, stream->data_chunk);
    if (wanted) {
      due.plan = operation.plan(due.chunk, lane_room_);
      if (due.plan.packets > 0) return true;
    }
    stream->data_agreed += due.agreed_bytes;
  }
  return false;
}

// The next step of data, if its slot is free, its scale group is agreed on, and the window has room.
std::optional<uint32_t> Stripe::next_step(Stream* stream, uint64_t limit) {
  stream->held_back = false;
  if (stream->in_flight >= stream->window.packets() ||
      stream->next_sequence - stream->lowest_waiting >= stream->data.count) {
    return {};
  }
  if (stream->data_group == stream->next_group()) return {};
  const ScaleGroup& group = sending_group(*stream);
  if (!stream->data_predicted && group.state != ScaleGroupState::kReady) return {};

  stream->held_back = limit != UINT64_MAX && progress_in(*stream, group) >= limit;
  if (stream->held_back) return {};
  const Stream::Due& due = stream->due;
  if (due.plan.together && stream->data_part == 0 && std::exchange(held_.busy, true)) return {};
  const uint32_t slot = stream->data.slot(stream->next_sequence);
  Step& step = slots_[slot].step;
  step.operation = group.operation;
  step.kind = StepKind::kData;
  step.scale_slot = stream->groups[stream->data_group - stream->retired];
  step.index = due.index;
  step.chunk = due.chunk;
  step.predicted = stream->data_predicted;
  step.in_group = stream->data_chunk;
  step.part = stream->data_part;
  step.together = due.plan.together;
  step.packet = due.plan.packet[stream->data_part];

  if (++stream->data_part == due.plan.packets) {
    stream->data_part = 0;
    stream->data_agreed += due.agreed_bytes;
    ++stream->data_chunk;
    pass_without_data(stream);
  }
  return slot;
}

void Stripe::start(int64_t now_us, uint32_t slot_index) {
  Slot& slot = slots_[slot_index];
  Step& step = slot.step;
  change_state(slot_index, SlotEvent::kStarted);
  step.signature = signature_of(step);
  step.own = own_lanes_of(step);
  const bool has_lanes = step.kind == StepKind::kData || step.kind == StepKind::kFirst;
  step.brief = options_.takes_brief && has_lanes && !step.together &&
               (is_worthless(step) || !step.operation->needs_result(step.chunk));
  ++slot.round;
  slot.history = {};
  slot.probed_at_us = now_us;
}

Stripe::OwnLanes Stripe::own_lanes_of(const Step& step) const {
  if (is_worthless(step)) return OwnLanes::kNone;
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
  fields.payload_bytes = payload_bytes_of(step);
  fields.format = step.packet.format;
  fields.flags = step.part > 0 ? NETSUM_FLAG_PART : 0;
  if (step.brief) fields.flags |= NETSUM_FLAG_BRIEF;
  if (step.own != OwnLanes::kSent && options_.takes_no_lanes && (step.brief || !slot.history.resent)) {
    const netsum_be64 length = netsum_put64(fields.payload_bytes);
    std::memcpy(lanes, &length, sizeof length);
    fields.flags |= NETSUM_FLAG_NO_LANES;
    fields.payload_bytes = NETSUM_NO_LANES_BYTES;
  } else if (step.own != OwnLanes::kSent || is_worthless(step)) {
    // What is worthless by now may not fit into lanes any more.
    std::memset(lanes, 0, fields.payload_bytes);
  } else if (step.kind == StepKind::kAgree) {
    std::memcpy(lanes, group_in(step.scale_slot).agreed.data(), step.packet.payload_bytes);
  } else if (step.kind == StepKind::kConfirm) {
    write_counts(group_in(step.scale_slot), step.packet.payload_bytes, lanes);
  } else if (step.kind == StepKind::kValues) {
    std::memset(lanes + step.packet.payload_bytes - 8, 0, 8);
    if (sends_partial_floats())
      step.operation->copy_in_floats(step.chunk, lanes);
    else
      step.operation->copy_in(step.chunk.begin, step.chunk.count, lanes);
  } else {
    step.operation->encode(step.chunk, step.packet, lanes);
  }
  if (carries_tag(step)) sums_->write_tag(sum_id(slot_index), lanes);
  slot.sent_at_us = now_us;
  slot.probe_at_us = now_us + round_trip_.timeout_us();
  schedule(slot.probe_at_us);
  return kernels::write_header(fields, key_, frame);
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
