// What a stripe is made of, and its timers. Sending: stripe_send.cc; receiving: stripe_receive.cc.
#include "src/worker/stripe.h"

#include <algorithm>

#include "src/base/assert.h"
#include "wire/mtu.h"

namespace netsum {

Stripe::Stripe(const StripeOptions& options)
    : options_(options),
      key_(options.key, options.payload_bytes),
      groups_(options.scale_slots),
      slots_(options.data_slots + options.scale_slots),
      urgent_(slots_.size()),
      window_(options.data_slots) {
  NETSUM_ASSERT(options.data_slots > 0 && options.scale_slots > 0);
  NETSUM_ASSERT(options.payload_bytes >= wire::kMinPayload &&
                options.payload_bytes % NETSUM_PAYLOAD_MULTIPLE == 0);
  for (Group& group : groups_) group.scales.resize(options.payload_bytes);
  for (auto& half : halves_) half.resize(options.payload_bytes);
}

void Stripe::change_state(uint32_t slot_index, SlotEvent event) {
  Slot& slot = slots_[slot_index];
  const std::optional<SlotState> next = slot_state_after(slot.state, event);
  NETSUM_ASSERT(next);
  slot.state = *next;
  if (slot.state != SlotState::kProbeDue && slot.state != SlotState::kResendDue) return;
  if (std::exchange(slot.queued, true)) return;
  urgent_[(urgent_first_ + urgent_count_++) % urgent_.size()] = slot_index;
}

size_t Stripe::chunk_of_operation(const Operation& operation, size_t local_chunk) const {
  return options_.chunk_map->chunk(operation.number(), options_.index, local_chunk);
}

std::pair<size_t, size_t> Stripe::elements_of_chunk(const Operation& operation, size_t chunk) const {
  const size_t per_chunk = operation.chunk_elements(options_.payload_bytes);
  const size_t begin = chunk * per_chunk;
  return {begin, std::min(per_chunk, operation.count() - begin)};
}

uint32_t Stripe::steps_of_chunk(const Operation& operation, size_t count, const uint8_t* scales,
                                size_t blocks) const {
  if (!Operation::any_wide(scales, blocks)) return 1;
  if (operation.type() == DataType::kInt64) return 2;
  return count > options_.payload_bytes / operation.wide_lane_bytes() ? 2 : 1;
}

uint32_t Stripe::steps_of_group(const Group& group) const {
  const Operation& operation = *group.operation;
  uint32_t steps = 0;
  const uint8_t* scales = group.scales.data();
  for (uint32_t i = 0; i < group.chunks; ++i) {
    const auto [begin, count] =
        elements_of_chunk(operation, chunk_of_operation(operation, group.first_chunk + i));
    const size_t blocks = operation.blocks(begin, count);
    steps += steps_of_chunk(operation, count, scales, blocks);
    scales += 2 * blocks;
  }
  return steps;
}

void Stripe::enqueue(Operation* operation) {
  const size_t per_chunk = operation->chunk_elements(options_.payload_bytes);
  const size_t chunks = (operation->count() + per_chunk - 1) / per_chunk;
  const size_t local_chunks = options_.chunk_map->count(operation->number(), chunks, options_.index);
  if (local_chunks == 0) return;
  queue_.push_back({operation, local_chunks});
  operation->chunks_left += local_chunks;
}

void Stripe::on_tick(int64_t now_us) {
  if (now_us < next_tick_us_) return;
  next_tick_us_ = INT64_MAX;
  if (!welcomed()) {
    // Waits double from 2 to 256 ms: an embedded shard may learn of the job a little later than we did.
    const int64_t retry_at = hello_sent_at_us_ + (int64_t{1000} << std::min(hellos_sent_, 8u));
    if (now_us >= retry_at) hello_due_ = true;
    schedule(std::max(retry_at, now_us + 1000));
    return;
  }
  // While everybody waits for a straggler, a few probes tell as much as one per slot; after a loss, ask about
  // all that is overdue.
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

Stripe::Waiting Stripe::waiting(int64_t now_us) const {
  // The lowest step of data that is not finished, or else the scales of the next group: every rank that is
  // alive gets as far as that. Later steps may lack ranks only because their windows are smaller.
  const Slot* oldest = nullptr;
  if (lowest_waiting_ < next_sequence_) {
    oldest = &slots_[lowest_waiting_ % options_.data_slots];
  } else if (data_group_ < groups_opened_) {
    oldest = &slots_[options_.data_slots + data_group_ % options_.scale_slots];
  }
  Waiting result;
  if (oldest == nullptr || oldest->state == SlotState::kIdle) return result;
  result.operation = oldest->step.operation;
  result.answered = oldest->history.answered;
  result.contributed = oldest->history.contributed;
  // Before it was asked, the aggregator had no reason to speak.
  result.silent_us = now_us - std::max(last_heard_us_, oldest->sent_at_us);
  return result;
}

}  // namespace netsum
