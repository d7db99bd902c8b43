// An operation that an Engine has begun: what its threads have to know about the whole of which each runs a part.
#ifndef NETSUM_ENGINE_RUNNING_OPERATION_H_
#define NETSUM_ENGINE_RUNNING_OPERATION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/core_lock.h"
#include "engine/engine_core.h"
#include "engine/work_state.h"
#include "netsum/communicator.h"

namespace netsum {

class RunningOperation {
 public:
  using Completion = EngineCore::Completion;

  RunningOperation(const OperationSpec& spec, OnEnd on_end_of_all, size_t part_count);

  // Any thread, once for each part. True: it was the last, and the caller ends the operation by Engine::end().
  bool end_part(size_t part, Completion completion);
  // Of all parts together, once the last has ended: the first error, if there is one.
  const Completion& completion() const { return completion_; }

  const std::shared_ptr<Work::State> work;
  OnEnd on_end;
  const std::shared_ptr<std::vector<DrivablePart>> parts;
  const Collective collective;
  const DataType type;
  const uint64_t tensor_id;  // of the first tensor
  uint64_t elements = 0;
  int64_t submitted_us;

 private:
  std::mutex mutex_;
  const size_t all_;  // parts
  size_t left_;       // that have not ended
  Completion completion_;
};

}  // namespace netsum

#endif  // NETSUM_ENGINE_RUNNING_OPERATION_H_
