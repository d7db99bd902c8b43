#include "engine/running_operation.h"

#include <algorithm>
#include <utility>

#include "src/base/clock.h"

namespace netsum {
namespace {

// The earlier of two times, of which 0 is none.
int64_t earlier(int64_t a, int64_t b) {
  return a == 0 || b == 0 ? std::max(a, b) : std::min(a, b);
}

}  // namespace

RunningOperation::RunningOperation(const OperationSpec& spec, OnEnd on_end_of_all,
                                   OperationCounts* operation_counts, size_t part_count)
    : on_end(std::move(on_end_of_all)),
      watermarks(spec.watermarks),
      counts(operation_counts),
      collective(spec.role.collective),
      type(spec.type),
      tensor_id(spec.tensors.empty() ? 0 : spec.tensors.front().id),
      submitted_us(monotonic_us()),
      more_parts_(part_count > 1 ? std::make_unique<DrivablePart[]>(part_count - 1) : nullptr),
      all_(part_count),
      left_(part_count) {
  for (const TensorView& tensor : spec.tensors) elements += tensor.count;
}

bool RunningOperation::end_part(size_t index, Completion&& completion) {
  std::unique_lock lock(mutex_, std::defer_lock);
  if (all_ > 1) lock.lock();
  OperationCourse course = completion.course;
  if (left_ != all_) {
    const OperationCourse& others = completion_.course;
    course.first_scale_us = earlier(course.first_scale_us, others.first_scale_us);
    course.scales_agreed_us = std::max(course.scales_agreed_us, others.scales_agreed_us);
    course.first_data_us = earlier(course.first_data_us, others.first_data_us);
    course.packets += others.packets;
    course.retransmissions += others.retransmissions;
    completion.everywhere = std::min(completion.everywhere, completion_.everywhere);
    if (!completion_.status.ok()) completion.status = std::move(completion_.status);
  }
  completion.course = course;
  completion_ = std::move(completion);
  part(index).ended = true;
  return --left_ == 0;
}

}  // namespace netsum
