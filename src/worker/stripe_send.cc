// The sending half of a stripe: selects the next packet and writes it.
#include <algorithm>

#include "src/kernels/packet_check.h"
#include "src/worker/stripe.h"

namespace netsum {

uint32_t Stripe::next_packet(int64_t now_us, uint8_t* frame, const Limits& limits) {
  const bool says_hello = !connection().welcomed() || connection().asks_for_turn();
  uint32_t size = says_hello ? slots_.write_hello(now_us, frame) : 0;
  if (size == 0 && connection().welcomed()) size = next_step_packet(now_us, frame, limits);
  if (size > 0) {
    counters_.packets_sent.add();
    counters_.bytes_sent.add(size);
  }
  return size;
}

uint32_t Stripe::next_step_packet(int64_t now_us, uint8_t* frame, const Limits& limits) {
  if (const auto urgent = slots_.next_urgent()) {
    if (!urgent->payload) return slots_.write_probe(now_us, urgent->slot, frame);
    ++steps_[urgent->slot].operation->course.retransmissions;
    return write_contribution(now_us, urgent->slot, frame);
  }
  if (const auto slot = verified_.has_value() ? verified_->next_slot() : std::nullopt) {
    verified_->open(&steps_[*slot]);
    return start(now_us, *slot, frame);
  }
  // Data first: scanning the next scale group can wait until the windows are full.
  const uint32_t size = next_data_packet(now_us, frame, limits);
  return size > 0 ? size : open_group(now_us, frame);
}

// The streams take turns, packet by packet, as far as their windows allow.
uint32_t Stripe::next_data_packet(int64_t now_us, uint8_t* frame, const Limits& limits) {
  for (size_t tried = 0; tried < SlotLayout::kStreams; ++tried) {
    const size_t stream = turn_;
    turn_ = (turn_ + 1) % SlotLayout::kStreams;
    const std::optional<uint32_t> slot = slots_.next_data_slot(stream);
    held_back_[stream] = false;
    if (!slot || !may_send_data(stream, limits[stream])) continue;
    cursors_[stream].take(&steps_[*slot]);
    const uint32_t size = start(now_us, *slot, frame);
    cursors_[stream].fetch();
    return size;
  }
  return 0;
}

bool Stripe::may_send_data(size_t stream, uint64_t limit) {
  const DataCursor& cursor = cursors_[stream];
  if (!cursor.is_due() || !cursor.has_input()) return false;
  held_back_[stream] = limit != UINT64_MAX && cursor.next_chunk() >= limit;
  if (held_back_[stream]) return false;
  return !cursor.begins_together() || lanes_.begin_together();
}

uint32_t Stripe::open_group(int64_t now_us, uint8_t* frame) {
  const auto opening = groups_.next_opening([&](ScaleGroups::Share* share) { return has_input(share); });
  if (!opening) return 0;
  Step& step = steps_[opening->slot];
  step = first_step(opening->share, groups_.begin(*opening));
  step.operation = opening->share->operation;
  step.scale_slot = opening->slot;
  if (groups_.add(*opening)) cursors_[opening->stream].pass();
  if (groups_.end_opening(*opening)) move_on(opening->stream);
  return start(now_us, opening->slot, frame);
}

// All that is read when the share's next group is opened.
bool Stripe::has_input(ScaleGroups::Share* share) const {
  const Operation& operation = *share->operation;
  if (!operation.has_watermarks()) return true;
  if (share->input_end == 0)
    share->input_end =
        share->opens_with == StepKind::kAgree
            ? agreement_.input_end(*share)
            : operation.input_end(chunks_.chunk(operation, chunks_.index(operation, share->next_chunk)));
  return operation.is_available(share->input_end);
}

Step Stripe::first_step(ScaleGroups::Share* share, ScaleGroup* group) {
  if (share->opens_with == StepKind::kFirst) return without_scales_.open(share, group);
  if (share->opens_with == StepKind::kInlineSum) return inline_sums_.open(share, group);
  return agreement_.open(share, group);
}

uint32_t Stripe::start(int64_t now_us, uint32_t slot, uint8_t* frame) {
  Step& step = steps_[slot];
  step.signature = PredictedScales::signature_of(step);
  empty_packets_.decide(is_discarded(step), &step);
  slots_.start(now_us, slot, groups_.at(step.scale_slot).stream, step.index, step.signature);
  OperationCourse& course = step.operation->course;
  int64_t& first_us = step.is_of_agreement() ? course.first_scale_us : course.first_data_us;
  if (first_us == 0) first_us = now_us;
  return write_contribution(now_us, slot, frame);
}

uint32_t Stripe::write_contribution(int64_t now_us, uint32_t slot, uint8_t* frame) {
  const Step& step = steps_[slot];
  ++step.operation->course.packets;
  uint8_t* const payload = frame + NETSUM_HEADER_BYTES;
  netsum_fields fields = slots_.fields_of(slot, NETSUM_TYPE_CONTRIBUTION);
  fields.payload_bytes = payload_bytes_of(step);
  fields.format = step.packet.format;
  fields.flags = step.part > 0 ? NETSUM_FLAG_PART : 0;
  if (!empty_packets_.write(step, slots_.was_resent(slot), is_discarded(step), &fields, payload))
    with_mode(step.kind, [&](auto& mode) { mode.write(step, payload); });
  if (verified_.has_value()) verified_->write_tag(slot, slots_.round(slot), step, payload);
  slots_.sent(now_us, slot);
  return kernels::write_header(fields, key_, frame);
}

}  // namespace netsum
