#include "src/worker/modes/predicted_scales.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "src/base/fnv.h"

namespace netsum {

PredictedScales::PredictedScales(const StripeChunks& chunks, StripeCounters* counters, uint32_t payload_bytes,
                                 uint32_t data_slots)
    : chunks_(chunks), counters_(*counters), kept_(std::min<size_t>(data_slots, kMostKept)) {
  for (EarlyResult& result : kept_) result.lanes.resize(payload_bytes);
}

void PredictedScales::reserve(uint32_t payload_bytes, ScaleGroup* group) {
  group->prediction.agreed.resize(payload_bytes);
  group->prediction.of_chunk.resize(payload_bytes / kMinAgreedBytes);
}

void PredictedScales::predict(ScaleGroup* group) {
  Prediction& prediction = group->prediction;
  prediction.begun = true;
  const Operation& operation = *group->operation;
  const uint64_t place = operation.number() % chunks_.map_of(operation).period().size();
  const ScaleHistory::Prediction known = history_.begin(netsum_mix64(operation.kind() + place));
  size_t agreed = 0;
  for (uint32_t i = 0; i < group->chunks && known.bytes.size() == prediction.bytes; ++i) {
    Chunk chunk = chunks_.chunk_of(*group, i, agreed);
    const size_t bytes = operation.agreed_bytes(chunk);
    chunk.agreed = &known.bytes[agreed];
    // A chunk of zeros has nothing to send ahead, and one of two packets is rare.
    const bool predicted = known.trusts(agreed, bytes) && chunks_.plan(operation, chunk).packets == 1;
    prediction.of_chunk[i] = predicted ? Prediction::OfChunk::kPredicted : Prediction::OfChunk::kNone;
    prediction.chunks += predicted ? 1 : 0;
    agreed += bytes;
  }
  std::copy(known.bytes.begin(), known.bytes.end(), prediction.agreed.begin());
  group->steps_left += prediction.chunks;
  counters_.scales_predicted.add(prediction.chunks);
}

void PredictedScales::compare(ScaleGroup* group) {
  Prediction& prediction = group->prediction;
  history_.learn({group->agreed.data(), prediction.bytes});
  size_t agreed = 0;
  for (uint32_t i = 0; i < group->chunks && prediction.chunks > 0; ++i) {
    const size_t bytes = group->operation->agreed_bytes(chunks_.chunk_of(*group, i, agreed));
    if (prediction.of_chunk[i] == Prediction::OfChunk::kPredicted) {
      const bool right = std::memcmp(&prediction.agreed[agreed], &group->agreed[agreed], bytes) == 0;
      prediction.of_chunk[i] = right ? Prediction::OfChunk::kRight : Prediction::OfChunk::kWrong;
      counters_.scales_mispredicted.add(right ? 0 : 1);
    }
    agreed += bytes;
  }
}

// The signature of a step with predicted bytes includes them, so its lanes are never added to those of a rank that has predicted
// others, or of one that sends the chunk with what was agreed on.
uint32_t PredictedScales::signature_of(const Step& step) {
  if (!step.predicted) return step.operation->signature();
  uint64_t hash = netsum_mix64(step.operation->signature() + 1);
  const size_t bytes = step.operation->agreed_bytes(step.chunk);
  for (size_t i = 0; i < bytes; ++i) hash = fnv1a(hash, step.chunk.agreed[i]);
  return static_cast<uint32_t>(netsum_mix64(hash) >> 32);
}

// Until the agreement, a rank knows what it requires itself. Elements that require more than was predicted do not fit into the
// lanes.
bool PredictedScales::is_discarded(const Step& step, const ScaleGroup& group) {
  if (!step.predicted) return false;
  if (group.state == ScaleGroupState::kReady)
    return group.prediction.of_chunk[step.in_group] == Prediction::OfChunk::kWrong;
  const auto offset = step.chunk.agreed - group.prediction.agreed.data();
  const size_t bytes = step.operation->agreed_bytes(step.chunk);
  return !std::equal(step.chunk.agreed, step.chunk.agreed + bytes, group.agreed.begin() + offset,
                     std::greater_equal<>());
}

bool PredictedScales::keep(const Step& step, uint8_t flags, const uint8_t* lanes) {
  if (kept_count_ == kept_.size()) return false;
  EarlyResult& result = kept_[kept_count_++];
  result.step = step;
  result.flags = flags;
  std::memcpy(result.lanes.data(), lanes, step.packet.payload_bytes);
  return true;
}

}  // namespace netsum
