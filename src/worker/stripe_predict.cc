// Predicted scales: data that is sent before its scales are agreed on, and what becomes of it.
#include <algorithm>
#include <cstring>

#include "src/base/assert.h"
#include "src/worker/stripe.h"

namespace netsum {

// The signature of a step with predicted bytes includes them, so its lanes are never added to those of a rank that has predicted
// others, or of one that sends the chunk with what was agreed on.
uint32_t Stripe::signature_of(const Step& step) const {
  if (!step.predicted) return step.operation->signature();
  uint64_t hash = netsum_mix64(step.operation->signature() + 1);
  const size_t bytes = step.operation->agreed_bytes(step.chunk);
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ step.chunk.agreed[i]) * 0x100000001b3;  // FNV-1a
  return static_cast<uint32_t>(netsum_mix64(hash) >> 32);
}

void Stripe::predict(ScaleGroup* group) {
  Prediction& prediction = group->prediction;
  prediction.begun = true;
  const Operation& operation = *group->operation;
  const uint64_t place = operation.number() % chunk_map_of(operation).period().size();
  const ScaleHistory::Prediction known = history_->begin(netsum_mix64(operation.kind() + place));
  size_t agreed = 0;
  for (uint32_t i = 0; i < group->chunks && known.bytes.size() == prediction.bytes; ++i) {
    Chunk chunk = chunk_of(*group, i, agreed);
    const size_t bytes = operation.agreed_bytes(chunk);
    chunk.agreed = &known.bytes[agreed];
    // A chunk of zeros has nothing to send ahead, and one of two packets is rare.
    const bool predicted = known.trusts(agreed, bytes) && operation.plan(chunk, lane_room_).packets == 1;
    prediction.of_chunk[i] = predicted ? Prediction::Chunk::kPredicted : Prediction::Chunk::kNone;
    prediction.chunks += predicted ? 1 : 0;
    agreed += bytes;
  }
  std::copy(known.bytes.begin(), known.bytes.end(), prediction.agreed.begin());
  group->steps_left += prediction.chunks;
  counters_.scales_predicted.add(prediction.chunks);
  if (group->state == ScaleGroupState::kAgreed) settle(group);
}

void Stripe::judge_prediction(ScaleGroup* group) {
  Prediction& prediction = group->prediction;
  history_->learn({group->agreed.data(), prediction.bytes});
  size_t agreed = 0;
  for (uint32_t i = 0; i < group->chunks && prediction.chunks > 0; ++i) {
    const size_t bytes = group->operation->agreed_bytes(chunk_of(*group, i, agreed));
    if (prediction.of_chunk[i] == Prediction::Chunk::kPredicted) {
      const bool right = std::memcmp(&prediction.agreed[agreed], &group->agreed[agreed], bytes) == 0;
      prediction.of_chunk[i] = right ? Prediction::Chunk::kRight : Prediction::Chunk::kWrong;
      counters_.scales_mispredicted.add(right ? 0 : 1);
    }
    agreed += bytes;
  }
}

// Until the agreement, a rank knows what it requires itself. Elements that require more than was predicted do not fit into the
// lanes.
bool Stripe::is_worthless(const Step& step) const {
  if (!step.predicted) return false;
  const ScaleGroup& group = group_in(step.scale_slot);
  if (group.state == ScaleGroupState::kReady)
    return group.prediction.of_chunk[step.in_group] == Prediction::Chunk::kWrong;
  const auto offset = step.chunk.agreed - group.prediction.agreed.data();
  const size_t bytes = step.operation->agreed_bytes(step.chunk);
  return !std::equal(step.chunk.agreed, step.chunk.agreed + bytes, group.agreed.begin() + offset,
                     std::greater_equal<>());
}

bool Stripe::keep_early(const Step& step, uint8_t flags, const uint8_t* lanes) {
  if (early_count_ == early_.size()) return false;
  EarlyResult& result = early_[early_count_++];
  result.step = step;
  result.flags = flags;
  std::memcpy(result.lanes.data(), lanes, step.packet.payload_bytes);
  return true;
}

// Their group is settled: only the group that sends data can have any.
Status Stripe::take_early_results() {
  if (early_count_ == 0 || group_in(early_[0].step.scale_slot).state != ScaleGroupState::kReady)
    return Status();
  for (; early_count_ > 0; --early_count_) {
    const EarlyResult& result = early_[early_count_ - 1];
    const Status taken = take_sum(result.step, result.flags, result.lanes.data());
    if (!taken.ok()) return taken;
    finish_step(result.step);
  }
  return Status();
}

}  // namespace netsum
