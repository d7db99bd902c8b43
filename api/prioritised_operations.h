// Runs the operations of a communicator in the order of their priorities (src/priority/order.h), as sequences of ordinary
// operations: pieces of the caller's, and agreements, which are all-gathers of reports. So whatever runs operations below
// (network, shared memory, failover) needs to know nothing of priorities.
//
// All ranks must submit the same operations in the same order, and whether one has a priority is a property of it. So from the
// first with a priority on, every operation takes its way through here, on all ranks alike.
//
// It has no thread: what ends starts the next step. Any thread may call it.
#ifndef NETSUM_API_PRIORITISED_OPERATIONS_H_
#define NETSUM_API_PRIORITISED_OPERATIONS_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/work_state.h"
#include "netsum/communicator.h"
#include "src/worker/operation.h"

namespace netsum {

class PrioritisedOperations {
 public:
  struct Owner {
    // Starts an operation at once.
    std::function<Work(OperationSpec spec, std::chrono::milliseconds timeout)> submit;
    // Why it would be refused for its arguments.
    std::function<Status(const OperationSpec& spec)> check;
    // Of a chunk of fixed point, whose elements have a scale in common.
    std::function<size_t(const OperationSpec& spec)> chunk_elements;
    std::function<int()> rank, world_size;
  };
  // `timeout`: that of operations that name none.
  PrioritisedOperations(Owner owner, std::chrono::milliseconds timeout);

  // Whether the operation must be submitted here.
  bool takes(const OperationSpec& spec) const {
    return spec.priority != 0 || active_.load(std::memory_order_relaxed);
  }
  Work submit(OperationSpec spec, std::chrono::milliseconds timeout);

  // Waits until all have ended, at most until `deadline`.
  void flush(std::chrono::steady_clock::time_point deadline);
  // No step starts from here on; what has none in flight ends with kAborted.
  void stop();
  // For a new session: waits until all have ended, which requires that the owner's submit() refuses operations. No operation has
  // had a priority from here on.
  void reset();
  // "; priorities with a credit of 2097152 bytes"; empty: no operation has had a priority.
  std::string describe() const;

 private:
  struct State;
  std::atomic<bool> active_ = false;
  // The ends of steps use it, perhaps after the end of this object.
  const std::shared_ptr<State> state_;
};

}  // namespace netsum

#endif  // NETSUM_API_PRIORITISED_OPERATIONS_H_
