#include "src/worker/scale_groups.h"

#include <algorithm>

#include "src/base/assert.h"

namespace netsum {

void ScaleGroups::enqueue(const Share& share) {
  const size_t number = stream_of(share.operation->moves_bytes());
  streams_[number].queue.push_back(share);
  streams_[number].unproven.push_back({share.operation->number(), UINT64_MAX});
  to_open_.push_back(number);
  share.operation->chunks_left += share.chunks;
}

ScaleGroup* ScaleGroups::begin(const Opening& opening) {
  ScaleGroup& group = at(opening.slot);
  group.proof = {group.stream, group.operation == nullptr ? 0 : group.number + 1};
  group.operation = opening.share->operation;
  group.stream = opening.stream;
  group.first_chunk = opening.share->next_chunk;
  group.chunks = 0;
  group.in_scale_slot = 0;
  group.digest = 0;
  group.steps_left = 0;
  group.prediction.chunks = 0;
  group.prediction.begun = false;
  group.prediction.possible = false;
  return &group;
}

bool ScaleGroups::add(const Opening& opening) {
  Stream& stream = streams_[opening.stream];
  ++opening.share->groups;
  opening.share->input_end = 0;
  if (opening.share != &stream.queue.front()) {
    stream.early.push_back(opening.slot);
    ++opening.share->early;
    return false;
  }
  at(opening.slot).number = end(opening.stream);
  stream.groups.push_back(opening.slot);
  return true;
}

bool ScaleGroups::end_opening(const Opening& opening) {
  Stream& stream = streams_[opening.stream];
  if (!opening.first) {
    ++stream.later;
    return take_begun(opening.stream);
  }
  ++opened_;
  const Share& share = *opening.share;
  const bool stays = !layout_.divides() || share.opens_with == StepKind::kInlineSum;
  if (stays && share.next_chunk < share.chunks) return false;
  ++stream.begun;
  to_open_.pop_front();
  return take_begun(opening.stream);
}

// Goes on to the next operation of the queue when all groups of the first are open. The next one's may be open, too.
bool ScaleGroups::take_begun(size_t number) {
  Stream& stream = streams_[number];
  bool added = false;
  while (!stream.queue.empty() && stream.queue.front().next_chunk == stream.queue.front().chunks) {
    stream.unproven[stream.ends_known++].end = end(number);
    stream.queue.pop_front();
    --stream.begun;
    if (stream.queue.empty()) break;
    added = true;
    for (uint32_t& early = stream.queue.front().early; early > 0; --early) {
      const uint32_t slot = stream.early.front();
      stream.early.pop_front();
      at(slot).number = end(number);
      stream.groups.push_back(slot);
    }
  }
  return added;
}

bool ScaleGroups::finish_step(ScaleGroup* group) {
  NETSUM_ASSERT(group->steps_left > 0);
  if (--group->steps_left > 0) return false;
  finish(group);
  return true;
}

void ScaleGroups::finish(ScaleGroup* group) {
  group->state = ScaleGroupState::kFinished;
  NETSUM_ASSERT(group->operation->chunks_left >= group->chunks);
  group->operation->chunks_left -= group->chunks;
  if (group->operation->chunks_left == 0) finished_.push_back(group->operation);
}

void ScaleGroups::retire_finished(size_t number) {
  Stream& stream = streams_[number];
  while (!stream.groups.empty() && at(stream.groups.front()).state == ScaleGroupState::kFinished) {
    at(stream.groups.front()).state = ScaleGroupState::kFree;
    stream.groups.pop_front();
    ++stream.retired;
  }
}

Operation* ScaleGroups::take_finished() {
  if (finished_.empty()) return nullptr;
  Operation* const operation = finished_.front();
  finished_.pop_front();
  return operation;
}

// All ranks have contributed, and a rank contributes to a scale slot again only when the group that used it before, and all
// groups before that in their stream, are finished there.
void ScaleGroups::note_proof(uint32_t slot) {
  const ScaleGroup::Proof& proof = at(slot).proof;
  Stream& stream = streams_[proof.stream];
  while (stream.ends_known > 0 && stream.unproven.front().end <= proof.groups) {
    stream.unproven.pop_front();
    --stream.ends_known;
  }
}

uint64_t ScaleGroups::first_unproven() const {
  uint64_t first = UINT64_MAX;
  for (const Stream& stream : streams_)
    if (!stream.unproven.empty()) first = std::min(first, stream.unproven.front().operation);
  return first;
}

}  // namespace netsum
