#include "api/kept_operation.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/timeout.h"
#include "src/worker/watermark_state.h"

namespace netsum {

using std::chrono::milliseconds;

KeptOperation::KeptOperation(OperationSpec&& operation_spec, milliseconds timeout_of_caller)
    : spec(std::move(operation_spec)),
      timeout(bounded(timeout_of_caller)),
      deadline(deadline_after(timeout)) {
  const size_t element = size_of(spec.type);
  size_t input_bytes = 0;
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    bytes += spec.tensors[i].count * element;
    if (used_memory(spec, i).input != nullptr) input_bytes += spec.tensors[i].count * element;
  }
  inputs = std::make_unique_for_overwrite<std::byte[]>(input_bytes);
  if (spec.watermarks != nullptr)
    spec.watermarks->state().keep_input([this](size_t available) { keep(available); });
  else
    keep(bytes);
}

KeptOperation::~KeptOperation() {
  if (spec.watermarks != nullptr) spec.watermarks->state().keep_input({});
}

void KeptOperation::keep(size_t end) {
  end = std::min(end, bytes);
  size_t begin = 0, offset = 0;  // of the tensor, among all and among the copies
  for (size_t i = 0; i < spec.tensors.size() && begin < end; ++i) {
    const TensorView view = used_memory(spec, i);
    const size_t of_tensor = view.count * size_of(spec.type);
    const size_t first = std::clamp(kept_, begin, begin + of_tensor) - begin;
    const size_t last = std::min(end - begin, of_tensor);
    if (view.input != nullptr && first < last)
      std::memcpy(&inputs[offset + first], static_cast<const std::byte*>(view.input) + first, last - first);
    begin += of_tensor;
    if (view.input != nullptr) offset += of_tensor;
  }
  kept_ = std::max(kept_, end);
}

bool KeptOperation::has_given_results() const {
  return ended || (spec.watermarks != nullptr && spec.watermarks->state().delivered() > 0);
}

OperationSpec KeptOperation::spec_again() {
  if (ended && outputs == nullptr) outputs = std::make_unique_for_overwrite<std::byte[]>(bytes);
  OperationSpec again = spec;
  if (ended) again.watermarks = nullptr;  // all of its input has been available
  size_t input_offset = 0, output_offset = 0;
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    const size_t tensor_bytes = spec.tensors[i].count * size_of(spec.type);
    const TensorView used = used_memory(spec, i);
    TensorView& view = again.tensors[i];
    view = used;
    if (used.input != nullptr) {
      view.input = inputs.get() + input_offset;
      input_offset += tensor_bytes;
    }
    if (used.output != nullptr && ended) view.output = outputs.get() + output_offset;
    output_offset += tensor_bytes;
  }
  return again;
}

milliseconds KeptOperation::time_left() const {
  if (ended) return timeout;
  const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
  return std::clamp(left, milliseconds(1), timeout);
}

std::string KeptOperation::describe() const {
  if (is_barrier()) return "barrier";
  size_t count = 0;
  for (const TensorView& view : spec.tensors) count += view.count;
  return std::string(collective_name(spec.role.collective)) + " (" + std::string(data_type_name(spec.type)) +
         "[" + std::to_string(count) + "])";
}

}  // namespace netsum
