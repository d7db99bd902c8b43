// The receiving half of a stripe.
#include <cstring>
#include <string>

#include "src/worker/stripe.h"

namespace netsum {

Status Stripe::on_packet(int64_t now_us, const netsum_fields& fields, const uint8_t* payload) {
  slots_.heard(now_us);
  if (fields.type == NETSUM_TYPE_WELCOME) {
    slots_.on_welcome(now_us, fields);
    return Status();
  }
  if (fields.slot >= slots_.count()) {
    counters_.drop(NETSUM_DROP_BAD_SLOT);
    return Status();
  }
  if (!slots_.waits_for(fields)) {
    if (fields.type == NETSUM_TYPE_RESULT) slots_.on_late_result(fields);
    counters_.drop(NETSUM_DROP_STALE_ROUND);  // an answer that is no longer needed, or a duplicate
    return Status();
  }
  switch (fields.type) {
    case NETSUM_TYPE_RESULT:
      return on_result(now_us, fields, payload);
    case NETSUM_TYPE_STATUS:
      if (slots_.on_status(now_us, fields, payload)) note_waiting(now_us);
      return Status();
    case NETSUM_TYPE_ERROR:
      return on_error(fields, payload);
    default:
      counters_.drop(NETSUM_DROP_BAD_TYPE);
      return Status();
  }
}

bool Stripe::is_of_step(const netsum_fields& fields, const Step& step) const {
  const uint8_t part = step.part > 0 ? NETSUM_FLAG_PART : 0;
  return netsum_full_bytes(&fields) == payload_bytes_of(step) && fields.chunk == step.index &&
         fields.signature == step.signature && (fields.flags & NETSUM_FLAG_PART) == part;
}

Status Stripe::on_result(int64_t now_us, const netsum_fields& fields, const uint8_t* payload) {
  const Step& step = steps_[fields.slot];
  if (!is_of_step(fields, step)) {
    return Status(ErrorCode::kInternal, "the aggregator at " + options_.address.to_string() + " answered " +
                                            step.operation->describe() +
                                            " with the result of something else");
  }
  const uint8_t* const lanes = empty_packets_.lanes_of(fields, payload);
  if (verified_.has_value() &&
      !verified_->accepts(fields.slot, slots_.round(fields.slot), step, fields.flags, lanes)) {
    return slots_.ask_again(fields.slot) ? Status() : verified_->wrong_sum(step, "is not that of all ranks");
  }
  const bool early = PredictedScales::is_open(step, groups_.at(step.scale_slot));
  if (early) {
    if (!predicted_->keep(step, fields.flags, lanes)) return Status();
  } else if (const Status taken = take_sum(step, fields.flags, lanes); !taken.ok()) {
    return taken;
  }
  fetch_after(fields.slot);
  slots_.finish(now_us, fields.slot);
  if (step.kind == StepKind::kAgree) step.operation->course.scales_agreed_us = now_us;
  if (step.kind != StepKind::kData) groups_.note_proof(fields.slot);
  return early ? Status() : finish_step(step);
}

// Results come in the order of the slots, mostly.
void Stripe::fetch_after(size_t slot) const {
  const size_t next = slot + 1;
  if (next < steps_.size() && slots_.is_waiting(static_cast<uint32_t>(next)) && steps_[next].has_lanes())
    fetch_output(steps_[next].chunk);
}

Status Stripe::take_sum(const Step& step, uint8_t flags, const uint8_t* lanes) {
  if (is_discarded(step)) return Status();
  lanes = empty_packets_.add_kept(step, lanes);
  if ((flags & NETSUM_FLAG_OVERFLOW) != 0 || lanes == nullptr)
    return Status(ErrorCode::kOverflow, step.operation->describe() + ": a sum passed the range of its lane");
  return with_mode(step.kind, [&](auto& mode) { return mode.take(step, lanes); });
}

Status Stripe::finish_step(const Step& step) {
  ScaleGroup& group = groups_.at(step.scale_slot);
  Status taken;
  if (step.is_of_agreement()) {
    if (verified_.has_value() && !verified_->is_confirmed(step)) return Status();
    agreement_.agree(&group);
    taken = take_kept_results();
  } else if (!groups_.finish_step(&group)) {
    return Status();
  }
  move_on(group.stream);
  return taken;
}

// Only the group that sends data can have any.
Status Stripe::take_kept_results() {
  if (!predicted_.has_value() || !predicted_->has_kept()) return Status();
  if (groups_.at(predicted_->scale_slot_of_kept()).state != ScaleGroupState::kReady) return Status();
  while (predicted_->has_kept()) {
    const PredictedScales::EarlyResult& result = predicted_->take_kept();
    Status taken = take_sum(result.step, result.flags, result.lanes.data());
    if (taken.ok()) taken = finish_step(result.step);
    if (!taken.ok()) return taken;
  }
  return Status();
}

void Stripe::move_on(size_t stream) {
  cursors_[stream].pass();
  groups_.retire_finished(stream);
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

Status Stripe::on_error(const netsum_fields& fields, const uint8_t* payload) const {
  const Operation& operation = *steps_[fields.slot].operation;
  netsum_be16 code, blamed;
  std::memcpy(&code, payload, sizeof code);
  std::memcpy(&blamed, payload + 2, sizeof blamed);
  if (netsum_get16(code) != NETSUM_ERROR_MISMATCH) {
    return Status(ErrorCode::kInternal, operation.describe() + ": the aggregator reports error " +
                                            std::to_string(netsum_get16(code)));
  }
  std::vector<int> ranks;
  for (int rank = 0; rank < options_.world_size; ++rank)
    if (options_.member_of(rank) == netsum_get16(blamed)) ranks.push_back(rank);
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
