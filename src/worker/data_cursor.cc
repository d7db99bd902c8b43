#include "src/worker/data_cursor.h"

#include <algorithm>
#include <vector>

namespace netsum {

// Chunks that are sent again do not count as a step back: other stripes would wait for them.
uint64_t DataCursor::next_chunk() const {
  if (group_ == nullptr) {
    const ScaleGroups::Share* const share = groups_.next_share(stream_);
    return share == nullptr ? UINT64_MAX : chunks_.progress(*share->operation, share->next_chunk);
  }
  const ScaleGroup& group = *group_;
  const bool again = group.prediction.chunks > 0 && !predicted_;
  return chunks_.progress(*group.operation, group.first_chunk + (again ? group.chunks - 1 : chunk_));
}

void DataCursor::take(Step* step) {
  step->scale_slot = scale_slot_;
  step->operation = group_->operation;
  step->kind = StepKind::kData;
  step->index = due_.index;
  step->chunk = due_.chunk;
  step->predicted = predicted_;
  step->in_group = chunk_;
  step->part = part_;
  step->together = due_.plan.together;
  step->packet = due_.plan.packet[part_];
  if (++part_ < due_.plan.packets) return;
  part_ = 0;
  agreed_ += due_.agreed_bytes;
  ++chunk_;
  pass();
}

void DataCursor::to_first_chunk(bool predicted) {
  chunk_ = 0;
  agreed_ = 0;
  predicted_ = predicted;
}

bool DataCursor::find() {
  for (; number_ < groups_.end(stream_); ++number_, to_first_chunk(true)) {
    scale_slot_ = groups_.slot_of(stream_, number_);
    group_ = &groups_.at(scale_slot_);
    agreement_.reach(group_);
    if (group_->state == ScaleGroupState::kFinished) continue;  // only zeros, or all in the scale slot
    if (predicted_) {
      if (group_->prediction.chunks > 0 && pass_chunks()) return true;
      to_first_chunk(false);
    }
    if (group_->state != ScaleGroupState::kReady) return false;
    chunk_ = std::max(chunk_, group_->in_scale_slot);
    if (pass_chunks()) return true;
  }
  group_ = nullptr;
  return false;
}

bool DataCursor::pass_chunks() {
  const ScaleGroup& group = *group_;
  const Operation& operation = *group.operation;
  const Prediction& prediction = group.prediction;
  const std::vector<uint8_t>& agreed = predicted_ ? prediction.agreed : group.agreed;
  for (; chunk_ < group.chunks; ++chunk_) {
    due_.index = static_cast<uint32_t>(chunks_.index(operation, group.first_chunk + chunk_));
    due_.chunk = chunks_.chunk(operation, due_.index);
    due_.chunk.agreed = &agreed[agreed_];
    due_.agreed_bytes = operation.agreed_bytes(due_.chunk);
    const bool wanted =
        predicted_ ? prediction.of_chunk[chunk_] != Prediction::OfChunk::kNone : !prediction.is_right(chunk_);
    if (wanted) {
      due_.plan = chunks_.plan(operation, due_.chunk);
      if (due_.plan.packets > 0) return true;
    }
    agreed_ += due_.agreed_bytes;
  }
  return false;
}

}  // namespace netsum
