#include "src/worker/modes/without_scales.h"

#include <algorithm>

namespace netsum {

Step WithoutScales::open(ScaleGroups::Share* share, ScaleGroup* group) const {
  const Operation& operation = *share->operation;
  group->state = ScaleGroupState::kReady;
  group->chunks = group->steps_left =
      static_cast<uint32_t>(std::min(share->chunks - share->next_chunk, most_chunks_));
  group->in_scale_slot = 1;
  Step step;
  step.kind = StepKind::kFirst;
  step.index = static_cast<uint32_t>(chunks_.index(operation, share->next_chunk));
  step.chunk = chunks_.chunk(operation, step.index);
  step.packet = chunks_.plan(operation, step.chunk).packet[0];
  share->next_chunk += group->chunks;
  return step;
}

}  // namespace netsum
