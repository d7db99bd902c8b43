// An operation that an Engine has begun: what its threads need of the whole operation, of which each runs a part. One allocation
// holds all of it if the engine has one thread, and the Work of the caller shares its ownership.
#ifndef NETSUM_ENGINE_RUNNING_OPERATION_H_
#define NETSUM_ENGINE_RUNNING_OPERATION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "engine/core_lock.h"
#include "engine/engine_core.h"
#include "engine/work_state.h"
#include "netsum/communicator.h"

namespace netsum {

// How many operations a session has submitted, and how they have ended. Any thread.
struct OperationCounts {
  std::atomic<uint64_t> submitted{0}, completed{0}, failed{0};
};

class RunningOperation {
 public:
  using Completion = EngineCore::Completion;

  // `counts`, which may be null, outlives it.
  RunningOperation(const OperationSpec& spec, OnEnd on_end_of_all, OperationCounts* operation_counts,
                   size_t part_count);

  // Any thread, once for each part. True: it was the last, and the caller ends the operation by Engine::end().
  bool end_part(size_t index, Completion&& completion);
  // Of all parts together, once the last has ended: the first error, if there is one.
  const Completion& completion() const { return completion_; }

  DrivablePart& part(size_t index) { return index == 0 ? first_part_ : more_parts_[index - 1]; }

  Work::State work;
  OnEnd on_end;
  const std::shared_ptr<Watermarks> watermarks;  // null: none
  OperationCounts* const counts;
  const Collective collective;
  const DataType type;
  const uint64_t tensor_id;  // of the first tensor
  uint64_t elements = 0;     // of all tensors together
  int64_t submitted_us;

 private:
  DrivablePart first_part_;
  const std::unique_ptr<DrivablePart[]> more_parts_;
  std::mutex mutex_;  // of the following, if there are several parts
  const size_t all_;  // parts
  size_t left_;       // that have not ended
  Completion completion_;
};

}  // namespace netsum

#endif  // NETSUM_ENGINE_RUNNING_OPERATION_H_
