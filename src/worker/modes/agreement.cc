#include "src/worker/modes/agreement.h"

#include <algorithm>
#include <cstring>

#include "src/base/assert.h"

namespace netsum {

size_t ScaleAgreement::input_end(const ScaleGroups::Share& share) const {
  const Operation& operation = *share.operation;
  size_t bytes = 0, end = 0;
  for (size_t next = share.next_chunk; next < share.chunks; ++next) {
    const Chunk chunk = chunks_.chunk(operation, chunks_.index(operation, next));
    bytes += operation.agreed_bytes(chunk);
    if (next > share.next_chunk && bytes > most_bytes_) break;
    end = std::max(end, operation.input_end(chunk));
  }
  return end;
}

Step ScaleAgreement::open(ScaleGroups::Share* share, ScaleGroup* group) {
  const Operation& operation = *share->operation;
  group->state = ScaleGroupState::kAgreeing;
  group->prediction.possible = predicted_ != nullptr && share->groups == 0;
  size_t bytes = 0;
  for (; share->next_chunk < share->chunks; ++share->next_chunk, ++group->chunks) {
    const Chunk chunk = chunks_.chunk(operation, chunks_.index(operation, share->next_chunk));
    const size_t more = operation.agreed_bytes(chunk);
    NETSUM_ASSERT(more >= kMinAgreedBytes);
    if (group->chunks > 0 && bytes + more > most_bytes_) break;
    NETSUM_ASSERT(bytes + more <= chunks_.lane_room());  // of one chunk (Encoding::agreed_bytes)
    operation.scan(chunk, &group->agreed[bytes]);
    bytes += more;
  }
  Step step;
  step.kind = StepKind::kAgree;
  step.index = share->groups;
  step.packet.format = NETSUM_FORMAT_MAX_U8;
  step.packet.payload_bytes = static_cast<uint32_t>((bytes + 7) / 8 * 8);
  group->prediction.bytes = static_cast<uint32_t>(bytes);
  std::fill_n(group->agreed.data() + bytes, step.packet.payload_bytes - bytes, uint8_t{0});
  return step;
}

void ScaleAgreement::write(const Step& step, uint8_t* lanes) const {
  std::memcpy(lanes, groups_.at(step.scale_slot).agreed.data(), step.packet.payload_bytes);
}

Status ScaleAgreement::take(const Step& step, const uint8_t* maxima) {
  ScaleGroup& group = groups_.at(step.scale_slot);
  if (!group.own.empty()) group.own.swap(group.agreed);  // to be confirmed
  std::memcpy(group.agreed.data(), maxima, step.packet.payload_bytes);
  return Status();
}

void ScaleAgreement::agree(ScaleGroup* group) {
  group->state = ScaleGroupState::kAgreed;
  if (!group->prediction.possible || group->prediction.begun) settle(group);
}

void ScaleAgreement::reach(ScaleGroup* group) {
  if (!group->prediction.possible || group->prediction.begun) return;
  predicted_->predict(group);
  if (group->state == ScaleGroupState::kAgreed) settle(group);
}

void ScaleAgreement::settle(ScaleGroup* group) {
  group->state = ScaleGroupState::kReady;
  if (group->prediction.possible) predicted_->compare(group);
  group->steps_left += plan_data(*group);
  if (group->steps_left == 0) groups_.finish(group);
}

uint32_t ScaleAgreement::plan_data(const ScaleGroup& group) {
  const Operation& operation = *group.operation;
  uint32_t steps = 0;
  size_t agreed = 0;
  for (uint32_t i = 0; i < group.chunks; ++i) {
    const Chunk chunk = chunks_.chunk_of(group, i, agreed);
    const uint32_t packets = chunks_.plan(operation, chunk).packets;
    if (packets == 0) {
      operation.decode_zeros(chunk);
      operation.note_delivered(chunk, 1);
      counters_.zero_chunks.add();
    }
    steps += group.prediction.is_right(i) ? 0 : packets;
    agreed += operation.agreed_bytes(chunk);
  }
  return steps;
}

}  // namespace netsum
