#include "src/worker/modes/inline_sums.h"

#include <cstring>

#include "wire/values.h"

namespace netsum {

bool InlineSums::is_for(const Operation& operation) const {
  // An aggregator adds one value of each of its members.
  const bool one_each = options_.summands <= options_.world_size || operation.is_of_partial_sums();
  if (!one_each || !operation.may_be_inline(options_.payload_bytes)) return false;
  return options_.sums_values ||
         (options_.sums_partial_floats && operation.fits_floats(options_.payload_bytes));
}

Step InlineSums::open(ScaleGroups::Share* share, ScaleGroup* group) const {
  const Operation& operation = *share->operation;
  group->state = ScaleGroupState::kReady;
  group->chunks = group->in_scale_slot = group->steps_left = 1;
  Step step;
  step.kind = StepKind::kInlineSum;
  step.index = static_cast<uint32_t>(chunks_.index(operation, share->next_chunk++));
  step.chunk = chunks_.chunk(operation, step.index);
  const bool floats = sends_partial_floats();
  step.packet.format =
      floats ? wire::format_of_values(DataType::kFloat32, false) : operation.encoding().value_format();
  const size_t element = floats ? sizeof(float) : size_of(operation.type());
  step.packet.payload_bytes = static_cast<uint32_t>((step.chunk.count * element + 7) / 8 * 8);
  return step;
}

void InlineSums::write(const Step& step, uint8_t* elements) const {
  std::memset(elements + step.packet.payload_bytes - 8, 0, 8);
  if (sends_partial_floats())
    step.operation->copy_in_floats(step.chunk, elements);
  else
    step.operation->copy_in(step.chunk.begin, step.chunk.count, elements);
}

Status InlineSums::take(const Step& step, const uint8_t* elements) const {
  if (sends_partial_floats())
    step.operation->copy_out_floats(elements, step.chunk, options_.summands);
  else
    step.operation->copy_out(elements, step.chunk.begin, step.chunk.count);
  step.operation->note_delivered(step.chunk, 1);
  return Status();
}

}  // namespace netsum
