#include "src/worker/slots/reliable_slots.h"

#include <cstring>
#include <utility>

#include "src/base/assert.h"

namespace netsum {

ReliableSlots::ReliableSlots(const SlotsOptions& options, const wire::PacketKey* key,
                             StripeCounters* counters)
    : common_(options.common),
      key_(*key),
      counters_(*counters),
      layout_(options.data_slots, options.scale_slots),
      connection_(options.common, options.payload_bytes, options.multicast),
      slots_(options.data_slots + options.scale_slots),
      urgent_(slots_.size()) {
  for (size_t number = 0; number < streams_.size(); ++number) {
    const SlotRange& slots = layout_.data(number);
    streams_[number].slots = slots;
    streams_[number].window = CongestionWindow(slots.count, options.share, options.largest_share);
  }
}

void ReliableSlots::change_state(uint32_t index, SlotEvent event) {
  Slot& slot = slots_[index];
  const std::optional<SlotState> next = slot_state_after(slot.state, event);
  NETSUM_ASSERT(next);
  slot.state = *next;
  if (slot.state != SlotState::kProbeDue && slot.state != SlotState::kResendDue) return;
  if (!std::exchange(slot.queued, true)) urgent_.push(index);
}

void ReliableSlots::start(int64_t now_us, uint32_t index, size_t stream, uint32_t chunk, uint32_t signature) {
  Slot& slot = slots_[index];
  change_state(index, SlotEvent::kStarted);
  ++slot.round;
  slot.chunk = chunk;
  slot.signature = signature;
  slot.stream = static_cast<uint8_t>(stream);
  slot.history = {};
  slot.probed_at_us = now_us;
  if (!is_data(index)) return;
  slot.sequence = streams_[stream].next_sequence++;
}

void ReliableSlots::count_again(Slot* slot, bool counted) {
  if (std::exchange(slot->again_counted, counted) != counted)
    streams_[slot->stream].again += counted ? 1u : -1u;
}

std::optional<ReliableSlots::Urgent> ReliableSlots::take_urgent() {
  while (!urgent_.empty()) {
    const uint32_t index = urgent_.pop();
    Slot& slot = slots_[index];
    slot.queued = false;
    if (slot.state == SlotState::kResendDue) {
      change_state(index, SlotEvent::kResent);
      slot.history.resent = true;
      ++slot.history.again;
      slot.history.backoff = 0;  // a loss, not a slow rank: no reason to probe less often
      if (is_data(index) && slot.sequence < streams_[slot.stream].highest_finished) count_again(&slot, true);
      counters_.retransmissions.add();
      return Urgent{index, true};
    }
    if (slot.state == SlotState::kProbeDue) {
      change_state(index, SlotEvent::kProbed);
      counters_.probes.add();
      return Urgent{index, false};
    }
  }
  return {};
}

netsum_fields ReliableSlots::fields_of(uint32_t index, uint8_t type) const {
  const Slot& slot = slots_[index];
  netsum_fields fields = common_;
  fields.type = type;
  fields.slot = static_cast<uint16_t>(index);
  fields.round = slot.round;
  fields.chunk = slot.chunk;
  fields.signature = slot.signature;
  return fields;
}

void ReliableSlots::sent(int64_t now_us, uint32_t index) {
  Slot& slot = slots_[index];
  slot.sent_at_us = now_us;
  slot.probe_at_us = now_us + round_trip_.timeout_us();
  schedule(slot.probe_at_us);
}

uint32_t ReliableSlots::write_probe(int64_t now_us, uint32_t index, uint8_t* frame) {
  Slot& slot = slots_[index];
  slot.probed_at_us = now_us;
  // The wait for a slow rank may be long: probe less and less often, but at least four times a second.
  const int64_t wait_us =
      std::min<int64_t>(round_trip_.timeout_us() << std::min(slot.history.backoff, 8u), 250'000);
  ++slot.history.backoff;
  slot.probe_at_us = now_us + wait_us;
  schedule(slot.probe_at_us);
  netsum_fields fields = fields_of(index, NETSUM_TYPE_PROBE);
  fields.payload_bytes = NETSUM_PROBE_BYTES;
  std::memset(frame + NETSUM_HEADER_BYTES, 0, NETSUM_PROBE_BYTES);
  return wire::write_header(fields, key_, frame);
}

uint32_t ReliableSlots::write_hello(int64_t now_us, uint8_t* frame) {
  const uint32_t size = connection_.write_hello(now_us, key_, frame);
  if (size == 0) return 0;
  if (connection_.hellos_sent() == 1) last_heard_us_ = now_us;
  next_tick_us_ = 0;
  return size;
}

void ReliableSlots::on_welcome(int64_t now_us, const netsum_fields& fields) {
  if (const auto sample_us = connection_.on_welcome(now_us, fields)) round_trip_.sample(*sample_us);
}

void ReliableSlots::on_tick(int64_t now_us) {
  if (now_us < next_tick_us_) return;
  next_tick_us_ = INT64_MAX;
  if (!connection_.welcomed() || connection_.asks_for_turn()) schedule(connection_.on_tick(now_us));
  if (!connection_.welcomed()) return;
  // While all ranks wait for a slow one, a few probes tell as much as one per slot. After a loss, probe for all overdue
  // results.
  uint32_t probe_budget = lost_since_tick_ ? UINT32_MAX : kProbesPerTick;
  lost_since_tick_ = false;
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.state != SlotState::kWaiting) continue;
    if (now_us < slot.probe_at_us) {
      schedule(slot.probe_at_us);
    } else if (probe_budget > 0) {
      --probe_budget;
      change_state(i, SlotEvent::kOverdue);
    } else {
      schedule(now_us + round_trip_.timeout_us());
    }
  }
}

void ReliableSlots::finish(int64_t now_us, uint32_t index) {
  Slot& slot = slots_[index];
  counters_.results.add();
  if (slot.history.lost > 0) count_losses(now_us, slot.state, &slot);
  change_state(index, SlotEvent::kFinished);
  if (counters_.waiting_for.get() != 0) counters_.waiting_for.set(0);
  if (measures_round_trip(slot, now_us)) {
    round_trip_.sample(now_us - slot.sent_at_us);
    counters_.round_trip.add(now_us - slot.sent_at_us);
    counters_.srtt_us.set(static_cast<uint64_t>(round_trip_.srtt_us()));
  }
  if (is_data(index)) finish_data(now_us, &slot);
}

// What only waited in a queue comes in the end, and was not lost: before the payload is sent again, sooner after that than any
// answer, or as one more result than payloads sent again have caused (as Eifel, RFC 3522, and DSACK, RFC 3708).
void ReliableSlots::count_losses(int64_t now_us, SlotState state, Slot* slot) {
  const uint32_t again = slot->history.again;
  const auto since_us = static_cast<double>(now_us - slot->sent_at_us);
  const bool too_early = round_trip_.srtt_us() > 0 && since_us < round_trip_.least_us() / 2;
  const bool is_first = state == SlotState::kResendDue || again == 0 || too_early;
  slot->repaired.round = slot->round;
  slot->repaired.lost = slot->history.lost - (is_first ? 1 : 0);
  slot->repaired.results = is_first ? again : again - 1;
  counters_.losses.add(slot->repaired.lost);
}

void ReliableSlots::on_late_result(const netsum_fields& fields) {
  if (fields.slot >= slots_.size()) return;
  auto& repaired = slots_[fields.slot].repaired;
  if (repaired.round != fields.round || repaired.lost == 0) return;
  if (repaired.results > 0) {
    --repaired.results;
  } else {
    --repaired.lost;
    counters_.losses.set(counters_.losses.get() - 1);
  }
}

void ReliableSlots::finish_data(int64_t now_us, Slot* finished) {
  const Slot& slot = *finished;
  Stream& stream = streams_[slot.stream];
  count_again(finished, false);
  // Losses were reported to the window when they were detected.
  if (!slot.history.resent) stream.window.on_result(waits_in_queues(now_us) && !has_less_than_half(stream));
  if (slot.history.gap_probed && !slot.history.resent) {
    // It was reordered, not lost.
    stream.reorder_packets = std::min(2 * stream.reorder_packets, kMaxReorderPackets);
  }
  counters_.window_packets.set(stream.window.packets());
  stream.highest_finished = std::max(stream.highest_finished, slot.sequence + 1);
  while (stream.lowest_waiting < stream.next_sequence &&
         !is_waiting(stream.slots.slot(stream.lowest_waiting)))
    ++stream.lowest_waiting;
  look_for_gaps(&stream, now_us);
}

// The streams share the links in the ratio of their windows. The one that begins while the other fills a queue must not stay
// behind it.
bool ReliableSlots::has_less_than_half(const Stream& stream) const {
  const Stream& other =
      streams_[&stream == &streams_[SlotLayout::kSums] ? SlotLayout::kMoves : SlotLayout::kSums];
  return other.is_open() && stream.window.packets() < other.window.packets();
}

// Whether the time to the result that has arrived is one round trip, without waiting for a loss or a slow rank.
bool ReliableSlots::measures_round_trip(const Slot& slot, int64_t now_us) const {
  if (slot.history.resent || slot.history.answered) return false;
  // Overdue, but the tick's probes were sent for other slots: a slow rank.
  if (slot.history.backoff == 0) return now_us <= slot.probe_at_us;
  // Too early to be the answer to the probe, or several probes have no answer yet: the round trip has become longer than
  // the timeout, which can only follow with this sample. On a path that loses packets the probes may have been lost
  // instead, and the sample would delay the repair of each further loss.
  if (slot.history.backoff >= 2) return !loses_packets(now_us);
  return static_cast<double>(now_us - slot.probed_at_us) < round_trip_.srtt_us() / 2;
}

// Results arrive roughly in the order of sending, so a step that is still open while later ones finish has probably lost a
// packet. Probe at once if many results have overtaken it; if few have, or if the answer is lost as well, one round trip
// later. The timeout applies to steps that nothing has overtaken.
void ReliableSlots::look_for_gaps(Stream* stream, int64_t now_us) {
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
    const uint32_t index = stream->slots.slot(q);
    Slot& slot = slots_[index];
    if (slot.state != SlotState::kWaiting) continue;
    // Wait twice as long before the second probe: the answer to the first may be about to arrive.
    const int64_t since_us = now_us - std::max(slot.probed_at_us, slot.sent_at_us);
    if (since_us < (slot.history.gap_probed ? 2 * pause_us : pause_us)) continue;
    slot.history.gap_probed = true;
    change_state(index, SlotEvent::kOverdue);
  }
}

void ReliableSlots::note_overtaken(const Stream& stream) {
  for (uint64_t q = stream.lowest_waiting; q < stream.highest_finished; ++q) {
    Slot& slot = slots_[stream.slots.slot(q)];
    if (slot.state == SlotState::kIdle) continue;
    const int64_t latest_us = std::max(slot.probed_at_us, slot.sent_at_us);
    slot.probe_at_us = std::min(slot.probe_at_us, latest_us + round_trip_.overtaken_us());
    schedule(slot.probe_at_us);
  }
}

bool ReliableSlots::on_status(int64_t now_us, const netsum_fields& fields, const uint8_t* payload) {
  Slot& slot = slots_[fields.slot];
  if (fields.member != common_.member) {
    counters_.drop(NETSUM_DROP_BAD_MEMBER);
    return false;
  }
  netsum_be64 seen;
  std::memcpy(&seen, payload, sizeof seen);
  const uint64_t before = slot.history.contributed;
  const uint64_t own = uint64_t{1} << common_.member;
  slot.history.contributed |=
      netsum_get64(seen);  // a STATUS may overtake a later one; the set of contributions only grows
  slot.history.answered = true;
  // Otherwise a rank is slow: the next probe is already scheduled.
  const bool again = (fields.flags & NETSUM_FLAG_AGAIN) != 0;
  const bool outdated = (before & ~netsum_get64(seen) & own) != 0;
  if (!again || outdated || slot.state == SlotState::kResendDue) return true;
  // No probe was sent since the retransmission: this answers an earlier one.
  if (slot.history.resent && slot.history.backoff == 0) return true;
  // Without a PROBE, nothing was lost: an aggregator that cannot lengthen packets needs one with lanes for the result.
  const bool lost = slot.history.backoff > 0;
  Stream& stream = streams_[slot.stream];
  if (lost) stream.window.on_loss(round_trip_.all_queue());
  counters_.window_packets.set(stream.window.packets());
  if (slot.history.gap_probed)
    stream.reorder_packets = std::max(stream.reorder_packets / 2, kMinReorderPackets);
  change_state(fields.slot, SlotEvent::kAgain);
  if (lost) {
    ++slot.history.lost;
    lost_since_tick_ = true;
    lost_at_us_ = now_us;
  }
  schedule(now_us);
  return true;
}

bool ReliableSlots::ask_again(uint32_t index) {
  Slot& slot = slots_[index];
  if (slot.state == SlotState::kResendDue) return true;  // it is asked for already
  if (slot.history.refused++ == kMostRefusals) return false;
  change_state(index, SlotEvent::kAgain);
  return true;
}

std::optional<uint32_t> ReliableSlots::lowest_waiting(size_t number) const {
  const Stream& stream = streams_[number];
  if (stream.lowest_waiting == stream.next_sequence) return {};
  return stream.slots.slot(stream.lowest_waiting);
}

}  // namespace netsum
