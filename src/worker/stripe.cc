// Construction, queueing and timers of a stripe. Sending: stripe_send.cc; receiving: stripe_receive.cc; verified sums:
// stripe_verify.cc; predicted scales: stripe_predict.cc.
#include "src/worker/stripe.h"

#include <algorithm>

#include "src/base/assert.h"
#include "wire/mtu.h"

namespace netsum {

namespace {

// The stripe's part of the chunks.
double share_of(const ChunkMap& map, size_t stripe) {
  const size_t length = map.period().size();
  return static_cast<double>(map.count(0, length, stripe)) / static_cast<double>(length);
}

double largest_share(const ChunkMap& map) {
  double largest = 0;
  for (size_t stripe = 0; stripe < map.stripes(); ++stripe)
    largest = std::max(largest, share_of(map, stripe));
  return largest;
}

std::unique_ptr<const verify::VerifiedSums> make_sums(const StripeOptions& options) {
  if (!options.sum_key.has_value()) return nullptr;
  return std::make_unique<verify::VerifiedSums>(*options.sum_key, options.rank, options.world_size,
                                                options.payload_bytes);
}

}  // namespace

Stripe::Stripe(const StripeOptions& options)
    : options_(options),
      key_(options.key, options.payload_bytes, options.tag),
      sums_(make_sums(options)),
      lane_room_(sums_ != nullptr ? verify::room_for_lanes(options.payload_bytes, options.summands)
                                  : options.payload_bytes),
      layout_(options.data_slots, options.scale_slots),
      streams_(make_streams()),
      scale_groups_(options.scale_slots),
      slots_(options.data_slots + options.scale_slots),
      urgent_(slots_.size()) {
  NETSUM_ASSERT(options.data_slots > 0 && options.scale_slots > 0);
  NETSUM_ASSERT(options.payload_bytes >= wire::kMinPayload &&
                options.payload_bytes % NETSUM_PAYLOAD_MULTIPLE == 0);
  NETSUM_ASSERT(sums_ == nullptr ||
                !(options.sums_values || options.sums_partial_floats || options.takes_no_lanes ||
                  options.takes_brief || options.predicts_scales));
  for (ScaleGroup& group : scale_groups_) group.agreed.resize(options.payload_bytes);
  for (ScaleGroup& group : scale_groups_) group.own.resize(sums_ != nullptr ? options.payload_bytes : 0);
  if (options.predicts_scales) {
    history_ = std::make_unique<ScaleHistory>();
    for (ScaleGroup& group : scale_groups_) {
      group.prediction.agreed.resize(options.payload_bytes);
      group.prediction.of_chunk.resize(options.payload_bytes / kMinAgreedBytes);
    }
    early_.resize(std::min<size_t>(options.data_slots, kMostEarlyResults));
    for (EarlyResult& result : early_) result.lanes.resize(options.payload_bytes);
  }
  for (auto& payload : held_.payloads) payload.resize(options.payload_bytes);
  for (auto* lanes : {&zeros_, &own_, &total_}) lanes->resize(options.payload_bytes);
}

std::array<Stripe::Stream, SlotLayout::kStreams> Stripe::make_streams() const {
  const double share = share_of(*options_.chunk_map, options_.index);
  const double largest = largest_share(*options_.chunk_map);
  return {Stream(layout_.data(SlotLayout::kSums), share, largest),
          Stream(layout_.data(SlotLayout::kMoves), share, largest)};
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

const ChunkMap& Stripe::chunk_map_of(const Operation& operation) const {
  return operation.role().chunk_map != nullptr ? *operation.role().chunk_map : *options_.chunk_map;
}

size_t Stripe::chunk_index(const Operation& operation, size_t local) const {
  const ChunkMap& map = chunk_map_of(operation);
  if (has_parts(operation.role().collective)) {
    const size_t chunks = map.count(operation.number(), operation.chunks(lane_room_), options_.index);
    local = take_turns(local, chunks, static_cast<size_t>(options_.world_size));
  }
  return map.chunk(operation.number(), options_.index, local);
}

uint64_t Stripe::progress(const Operation& operation, size_t local) const {
  return operation.first_chunk + chunk_map_of(operation).chunk(operation.number(), options_.index, local);
}

Chunk Stripe::chunk_of(const ScaleGroup& group, uint32_t index, size_t agreed) const {
  const Operation& operation = *group.operation;
  Chunk chunk = operation.chunk(chunk_index(operation, group.first_chunk + index), lane_room_);
  chunk.agreed = &group.agreed[agreed];
  return chunk;
}

uint32_t Stripe::take_agreed(const ScaleGroup& group) {
  const Operation& operation = *group.operation;
  uint32_t steps = 0;
  size_t agreed = 0;
  for (uint32_t i = 0; i < group.chunks; ++i) {
    const Chunk chunk = chunk_of(group, i, agreed);
    const uint32_t packets = operation.plan(chunk, lane_room_).packets;
    if (packets == 0) {
      operation.decode_zeros(chunk);
      counters_.zero_chunks.add();
    }
    steps += is_right(group, i) ? 0 : packets;
    agreed += operation.agreed_bytes(chunk);
  }
  return steps;
}

void Stripe::enqueue(Operation* operation) {
  const size_t chunks =
      chunk_map_of(*operation).count(operation->number(), operation->chunks(lane_room_), options_.index);
  if (chunks == 0) return;
  const size_t number = stream_of(operation->moves_bytes());
  Stream& stream = streams_[number];
  stream.queue.push_back({operation, chunks});
  stream.unproven.push_back({operation->number(), UINT64_MAX});
  to_open_.push_back(number);
  operation->chunks_left += chunks;
}

Operation* Stripe::take_finished() {
  if (finished_.empty()) return nullptr;
  Operation* const operation = finished_.front();
  finished_.pop_front();
  return operation;
}

uint64_t Stripe::first_unproven() const {
  uint64_t first = UINT64_MAX;
  for (const Stream& stream : streams_)
    if (!stream.unproven.empty()) first = std::min(first, stream.unproven.front().operation);
  return first;
}

void Stripe::on_tick(int64_t now_us) {
  if (now_us < next_tick_us_) return;
  next_tick_us_ = INT64_MAX;
  if (!welcomed()) {
    // Waits double from 2 to 256 ms: an embedded shard may learn of the job a little later than this worker.
    const int64_t retry_at = hello_sent_at_us_ + (int64_t{1000} << std::min(hellos_sent_, 8u));
    if (now_us >= retry_at) hello_due_ = true;
    schedule(std::max(retry_at, now_us + 1000));
    return;
  }
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

// The lowest unfinished step of data, or else the oldest scale group that waits: every live rank contributes to it. Ranks
// may be missing from later steps only because their windows are smaller.
const Stripe::Slot* Stripe::oldest_waiting(const Stream& stream) const {
  if (stream.lowest_waiting < stream.next_sequence) return &slots_[stream.data.slot(stream.lowest_waiting)];
  for (const auto* groups : {&stream.groups, &stream.early})
    for (const uint32_t slot : *groups)
      if (slots_[slot].state != SlotState::kIdle) return &slots_[slot];
  return nullptr;
}

Stripe::Waiting Stripe::waiting(int64_t now_us) const {
  const Slot* oldest = nullptr;
  for (const Stream& stream : streams_) {
    const Slot* slot = oldest_waiting(stream);
    if (slot == nullptr) continue;
    if (oldest == nullptr || slot->step.operation->number() < oldest->step.operation->number()) oldest = slot;
  }
  Waiting result;
  if (oldest == nullptr) return result;
  result.operation = oldest->step.operation;
  result.answered = oldest->history.answered;
  result.contributed = oldest->history.contributed;
  // Before this packet was sent, the aggregator had no reason to send any.
  result.silent_us = now_us - std::max(last_heard_us_, oldest->sent_at_us);
  return result;
}

}  // namespace netsum
