// An operation that a communicator with failover keeps until all ranks have finished it, with copies of its inputs.
#ifndef NETSUM_API_KEPT_OPERATION_H_
#define NETSUM_API_KEPT_OPERATION_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/work_state.h"
#include "session/session.h"
#include "src/base/deadline_heap.h"
#include "src/worker/operation.h"

namespace netsum {

struct KeptOperation {
  uint64_t number = 0;
  OperationSpec spec;  // with the caller's tensors
  std::chrono::milliseconds timeout;
  Clock::time_point deadline;     // as seen by the caller, over all sessions
  size_t heap_place = kInNoHeap;  // in in_flight_
  // Copies, contiguous, of those that this rank contributes. With watermarks, input is copied before it counts as available.
  std::unique_ptr<std::byte[]> inputs;
  std::unique_ptr<std::byte[]> outputs;  // of an operation that is repeated although it has ended here
  size_t bytes = 0;
  std::shared_ptr<Work::State> outer = std::make_shared<Work::State>();
  bool ended = false;             // the caller has its result
  uint64_t ended_in_session = 0;  // the latest session in which it has ended

  KeptOperation(OperationSpec&& operation_spec, std::chrono::milliseconds timeout_of_caller);
  ~KeptOperation();
  // To repeat the operation. In-place outputs may hold results of some chunks already, so the inputs are the copies.
  OperationSpec spec_again();
  // Rounded up, so that the session does not end the operation before its deadline. An operation that has ended here is
  // repeated for other ranks, whose deadlines count then.
  std::chrono::milliseconds time_left() const;
  std::string describe() const;
  bool is_barrier() const { return spec.role.collective == Collective::kBarrier; }
  // Whether the caller may have read results already.
  bool has_given_results() const;
  // Whether its bits depend on how floats are added (Session::order_of_floats()).
  bool adds_floats() const {
    return is_floating(spec.type) && (spec.op == ReduceOp::kSum || spec.op == ReduceOp::kAvg);
  }

 private:
  // Copies the inputs at bytes [kept_, end) of all tensors together.
  void keep(size_t end);

  size_t kept_ = 0;
};

}  // namespace netsum

#endif  // NETSUM_API_KEPT_OPERATION_H_
