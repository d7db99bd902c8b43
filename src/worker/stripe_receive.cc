// The receiving half of a stripe: one function per packet type.
#include <algorithm>
#include <cstring>

#include "src/base/assert.h"
#include "src/kernels/kernels.h"
#include "src/worker/stripe.h"

namespace netsum {

Status Stripe::on_packet(int64_t now_us, const netsum_fields& fields, const uint8_t* payload) {
  last_heard_us_ = now_us;
  if (fields.type == NETSUM_TYPE_WELCOME) {
    on_welcome(now_us, fields);
    return Status();
  }
  if (fields.slot >= slots_.size()) {
    counters_.drop(NETSUM_DROP_BAD_SLOT);
    return Status();
  }
  if (!waits_for(fields)) {
    counters_.drop(NETSUM_DROP_STALE_ROUND);  // an answer that is no longer needed, or a duplicate
    return Status();
  }
  switch (fields.type) {
    case NETSUM_TYPE_RESULT:
      return on_result(now_us, fields, payload);
    case NETSUM_TYPE_STATUS:
      on_status(now_us, fields, payload);
      return Status();
    case NETSUM_TYPE_ERROR:
      return on_error(fields, payload);
    default:
      counters_.drop(NETSUM_DROP_BAD_TYPE);
      return Status();
  }
}

void Stripe::on_welcome(int64_t now_us, const netsum_fields& fields) {
  if (fields.payload_bytes != options_.payload_bytes) {
    small_welcomed_ = true;
  } else if (fields.member == NETSUM_MEMBER_ALL) {
    multicast_heard_ = true;  // also as the answer to another member's HELLO
  } else {
    if (!answered_ && fields.round + 1 == hellos_sent_) round_trip_.sample(now_us - hello_sent_at_us_);
    if (!answered_) answered_at_us_ = now_us;
    answered_ = true;
  }
}

Status Stripe::on_result(int64_t now_us, const netsum_fields& fields, const uint8_t* payload) {
  Slot& slot = slots_[fields.slot];
  const Step& step = slot.step;
  const uint8_t part = step.part > 0 ? NETSUM_FLAG_PART : 0;
  if (netsum_full_bytes(&fields) != payload_bytes_of(step) || fields.chunk != step.index ||
      fields.signature != step.signature || (fields.flags & NETSUM_FLAG_PART) != part) {
    return Status(ErrorCode::kInternal, "the aggregator at " + options_.address.to_string() + " answered " +
                                            step.operation->describe() +
                                            " with the result of something else");
  }
  const uint8_t* lanes = (fields.flags & NETSUM_FLAG_NO_LANES) != 0 ? zeros_.data() : payload;
  if (sums_ != nullptr) {
    // No sum of members without faults passes the range of its lanes.
    if ((fields.flags & NETSUM_FLAG_OVERFLOW) != 0 || !is_right(fields.slot, lanes))
      return refuse(fields.slot);
    counters_.sums_verified.add(carries_tag(step) ? 1 : 0);
  }
  const bool early = step.predicted && group_in(step.scale_slot).state != ScaleGroupState::kReady;
  if (early && !keep_early(step, fields.flags, lanes)) return Status();
  const Status taken = early ? Status() : take_sum(step, fields.flags, lanes);
  if (!taken.ok()) return taken;

  counters_.results.add();
  change_state(fields.slot, SlotEvent::kFinished);
  if (step.kind == StepKind::kAgree) step.operation->course.scales_agreed_us = now_us;
  if (counters_.waiting_for.get() != 0) counters_.waiting_for.set(0);
  if (measures_round_trip(slot, now_us)) {
    round_trip_.sample(now_us - slot.sent_at_us);
    counters_.round_trip.add(now_us - slot.sent_at_us);
    counters_.srtt_us.set(static_cast<uint64_t>(round_trip_.srtt_us()));
  }
  if (step.kind == StepKind::kData) {
    finish_data(slot, now_us);
  } else {
    note_proof(group_in(step.scale_slot).proof);
  }
  if (!early) finish_step(step);
  return Status();
}

Status Stripe::take_sum(const Step& step, uint8_t flags, const uint8_t* lanes) {
  if (is_worthless(step)) return Status();
  if (step.own == OwnLanes::kKept && !step.brief) lanes = add_kept_lanes(step, lanes);
  if ((flags & NETSUM_FLAG_OVERFLOW) != 0 || lanes == nullptr)
    return Status(ErrorCode::kOverflow, step.operation->describe() + ": a sum passed the range of its lane");
  return deliver(step, lanes);
}

void Stripe::finish_data(const Slot& slot, int64_t now_us) {
  Stream& stream = stream_for(*slot.step.operation);
  --stream.in_flight;
  // Losses were reported to the window when they were detected.
  if (!slot.history.resent) stream.window.on_result(waits_in_queues(now_us) && !has_less_than_half(stream));
  if (slot.history.gap_probed && !slot.history.resent) {
    // It was reordered, not lost.
    stream.reorder_packets = std::min(2 * stream.reorder_packets, kMaxReorderPackets);
  }
  counters_.window_packets.set(stream.window.packets());
  stream.highest_finished = std::max(stream.highest_finished, slot.sequence + 1);
  while (stream.lowest_waiting < stream.next_sequence &&
         slots_[stream.data.slot(stream.lowest_waiting)].state == SlotState::kIdle) {
    ++stream.lowest_waiting;
  }
  look_for_gaps(&stream, now_us);
}

// The streams share the links in the ratio of their windows. The one that begins while the other fills a queue must not stay
// behind it.
bool Stripe::has_less_than_half(const Stream& stream) const {
  const Stream& other =
      streams_[&stream == &streams_[SlotLayout::kSums] ? SlotLayout::kMoves : SlotLayout::kSums];
  return other.in_flight > 0 && stream.window.packets() < other.window.packets();
}

// All ranks have contributed, and a rank contributes to a scale slot again only when the group that used it before, and all
// groups before that in their stream, are finished there.
void Stripe::note_proof(const ScaleGroup::Proof& proof) {
  Stream& stream = streams_[proof.stream];
  while (stream.ends_known > 0 && stream.unproven.front().end <= proof.groups) {
    stream.unproven.pop_front();
    --stream.ends_known;
  }
}

// Whether the time to the result that has arrived is one round trip, without waiting for a loss or a slow rank.
bool Stripe::measures_round_trip(const Slot& slot, int64_t now_us) const {
  if (slot.history.resent || slot.history.answered) return false;
  // Overdue, but the tick's probes were sent for other slots: a slow rank.
  if (slot.history.backoff == 0) return now_us <= slot.probe_at_us;
  // Too early to be the answer to the probe, or several probes have no answer yet: the round trip has become longer than
  // the timeout, which can only follow with this sample. On a path that loses packets the probes may have been lost
  // instead, and the sample would delay the repair of each further loss.
  if (slot.history.backoff >= 2) return !loses_packets(now_us);
  return static_cast<double>(now_us - slot.probed_at_us) < round_trip_.srtt_us() / 2;
}

const uint8_t* Stripe::add_kept_lanes(const Step& step, const uint8_t* payload) {
  const size_t bytes = step.packet.payload_bytes;
  std::memcpy(total_.data(), payload, bytes);
  step.operation->encode(step.chunk, step.packet, own_.data());
  return kernels::combine_lanes(step.packet.format, total_.data(), own_.data(), bytes) ? nullptr
                                                                                       : total_.data();
}

Status Stripe::deliver(const Step& step, const uint8_t* payload) {
  if (step.kind == StepKind::kAgree && sums_ != nullptr) {
    begin_confirmation(step, payload);
    return Status();
  }
  if (step.kind == StepKind::kAgree) {
    ScaleGroup& group = group_in(step.scale_slot);
    std::memcpy(group.agreed.data(), payload, step.packet.payload_bytes);
    return take_agreement(&group);
  }
  if (step.kind == StepKind::kConfirm) return take_counts(step, payload);
  if (step.kind == StepKind::kValues) {
    if (sends_partial_floats())
      step.operation->copy_out_floats(payload, step.chunk, options_.summands);
    else
      step.operation->copy_out(payload, step.chunk.begin, step.chunk.count);
    return Status();
  }
  if (step.brief) {
    step.operation->copy_own(step.chunk);
    return Status();
  }
  Payloads payloads{payload};
  if (step.together) {
    std::memcpy(held_.payloads[step.part].data(), payload, step.packet.payload_bytes);
    if (++held_.arrived < kMaxPackets) return Status();
    held_.arrived = 0;
    held_.busy = false;
    for (size_t part = 0; part < kMaxPackets; ++part) payloads[part] = held_.payloads[part].data();
  }
  // The packets of a chunk that is decoded together may arrive in any order.
  const PacketPlan packet =
      step.together ? step.operation->plan(step.chunk, lane_room_).packet[0] : step.packet;
  if (step.operation->decode(step.chunk, packet, payloads)) return Status();
  return Status(ErrorCode::kOverflow, step.operation->describe() + ": the exact sum of an element of [" +
                                          std::to_string(packet.begin) + ", " +
                                          std::to_string(packet.begin + packet.count) +
                                          ") does not fit the type");
}

// The bytes of its chunks are what all ranks have agreed on.
Status Stripe::take_agreement(ScaleGroup* group) {
  Stream& stream = streams_[group->stream];
  group->state = ScaleGroupState::kAgreed;
  if (!group->prediction.possible || group->prediction.begun) settle(group);
  const Status taken = take_early_results();
  retire_finished(&stream);
  return taken;
}

void Stripe::settle(ScaleGroup* group) {
  group->state = ScaleGroupState::kReady;
  if (group->prediction.possible) judge_prediction(group);
  group->steps_left += take_agreed(*group);
  if (group->steps_left == 0) finish_group(group);
}

void Stripe::finish_step(const Step& step) {
  if (step.kind == StepKind::kAgree || step.kind == StepKind::kConfirm) return;
  ScaleGroup& group = group_in(step.scale_slot);
  NETSUM_ASSERT(group.steps_left > 0 && group.operation == step.operation);
  if (--group.steps_left > 0) return;
  finish_group(&group);
  retire_finished(&streams_[group.stream]);
}

void Stripe::finish_group(ScaleGroup* group) {
  group->state = ScaleGroupState::kFinished;
  NETSUM_ASSERT(group->operation->chunks_left >= group->chunks);
  group->operation->chunks_left -= group->chunks;
  if (group->operation->chunks_left == 0) finished_.push_back(group->operation);
}

void Stripe::retire_finished(Stream* stream) {
  pass_without_data(stream);
  while (!stream->groups.empty() && group_in(stream->groups.front()).state == ScaleGroupState::kFinished) {
    group_in(stream->groups.front()).state = ScaleGroupState::kFree;
    stream->groups.pop_front();
    ++stream->retired;
  }
}

// Results arrive roughly in the order of sending, so a step that is still open while later ones finish has probably lost a
// packet. Probe at once if many results have overtaken it; if few have, or if the answer is lost as well, one round trip
// later. The timeout applies to steps that nothing has overtaken.
void Stripe::look_for_gaps(Stream* stream, int64_t now_us) {
  if (stream->lowest_waiting == stream->highest_finished) return;
  const int64_t pause_us = static_cast<int64_t>(round_trip_.srtt_us());
  if (now_us - stream->overtaken_noted_at_us >= pause_us / 4) {
    stream->overtaken_noted_at_us = now_us;
    note_overtaken(*stream);
  }
  if (stream->lowest_waiting + stream->reorder_packets >= stream->highest_finished) return;
  if (now_us - stream->gaps_looked_at_us < pause_us / 4) return;
  stream->gaps_looked_at_us = now_us;
  for (uint64_t q = stream->lowest_waiting; q + stream->reorder_packets < stream->highest_finished; ++q) {
    const uint32_t index = stream->data.slot(q);
    Slot& slot = slots_[index];
    if (slot.state != SlotState::kWaiting) continue;
    // Wait twice as long before the second probe: the answer to the first may be about to arrive.
    const int64_t since_us = now_us - std::max(slot.probed_at_us, slot.sent_at_us);
    if (since_us < (slot.history.gap_probed ? 2 * pause_us : pause_us)) continue;
    slot.history.gap_probed = true;
    change_state(index, SlotEvent::kOverdue);
  }
}

void Stripe::note_overtaken(const Stream& stream) {
  for (uint64_t q = stream.lowest_waiting; q < stream.highest_finished; ++q) {
    Slot& slot = slots_[stream.data.slot(q)];
    if (slot.state == SlotState::kIdle) continue;
    const int64_t latest_us = std::max(slot.probed_at_us, slot.sent_at_us);
    slot.probe_at_us = std::min(slot.probe_at_us, latest_us + round_trip_.overtaken_us());
    schedule(slot.probe_at_us);
  }
}

void Stripe::on_status(int64_t now_us, const netsum_fields& fields, const uint8_t* payload) {
  Slot& slot = slots_[fields.slot];
  if (fields.member != options_.member) {
    counters_.drop(NETSUM_DROP_BAD_MEMBER);
    return;
  }
  netsum_be64 seen;
  std::memcpy(&seen, payload, sizeof seen);
  const uint64_t before = slot.history.contributed;
  const uint64_t own = uint64_t{1} << options_.member;
  slot.history.contributed |=
      netsum_get64(seen);  // a STATUS may overtake a later one; the set of contributions only grows
  slot.history.answered = true;
  note_waiting(now_us);
  // Otherwise a rank is slow: the next probe is already scheduled.
  const bool again = (fields.flags & NETSUM_FLAG_AGAIN) != 0;
  const bool outdated = (before & ~netsum_get64(seen) & own) != 0;
  if (!again || outdated || slot.state == SlotState::kResendDue) return;
  // No probe was sent since the retransmission: this answers an earlier one.
  if (slot.history.resent && slot.history.backoff == 0) return;
  // Without a PROBE, nothing was lost: an aggregator that cannot lengthen packets needs one with lanes for the result.
  Stream& stream = stream_for(*slot.step.operation);
  if (slot.history.backoff > 0) stream.window.on_loss();
  counters_.window_packets.set(stream.window.packets());
  if (slot.history.gap_probed)
    stream.reorder_packets = std::max(stream.reorder_packets / 2, kMinReorderPackets);
  change_state(fields.slot, SlotEvent::kAgain);
  if (slot.history.backoff > 0) {
    lost_since_tick_ = true;
    lost_at_us_ = now_us;
  }
  schedule(now_us);
}

std::vector<int> Stripe::ranks_of(uint16_t member) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    if (options_.member_of(rank) == member) ranks.push_back(rank);
  }
  return ranks;
}

void Stripe::note_waiting(int64_t now_us) {
  const Waiting oldest = waiting(now_us);
  if (!oldest.answered) return;
  uint64_t all = 0;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    const uint16_t member = options_.member_of(rank);
    if (member < NETSUM_MAX_MEMBERS) all |= uint64_t{1} << member;
  }
  counters_.waiting_for.set(all & ~oldest.contributed);
}

Status Stripe::on_error(const netsum_fields& fields, const uint8_t* payload) {
  const Operation& operation = *slots_[fields.slot].step.operation;
  netsum_be16 code, blamed;
  std::memcpy(&code, payload, sizeof code);
  std::memcpy(&blamed, payload + 2, sizeof blamed);
  if (netsum_get16(code) != NETSUM_ERROR_MISMATCH) {
    return Status(ErrorCode::kInternal, operation.describe() + ": the aggregator reports error " +
                                            std::to_string(netsum_get16(code)));
  }
  const std::vector<int> ranks = ranks_of(netsum_get16(blamed));
  const int self = options_.name_of(options_.rank);
  const int rank = ranks.size() == 1 ? options_.name_of(ranks.front()) : kNoRank;
  std::string message = "rank " + std::to_string(self) + " is in " + operation.describe() + "; ";
  if (rank == self) {
    message += "at least one other rank is in another operation";
  } else if (rank == kNoRank) {
    message += "a rank below another aggregator is not, or differs in root, count, type or operation";
  } else {
    message +=
        "rank " + std::to_string(rank) + " is not, or differs in root, count, type, operation or lane width";
  }
  return Status(ErrorCode::kMismatch,
                message + ": all ranks must call the same collectives in the same order", rank);
}

}  // namespace netsum
