// Operations whose input arrives piece by piece, for example from a device that copies it to host memory, and whose results
// are used piece by piece.
//
// Both watermarks count bytes from the begin of the first tensor (or buffer, or part) of the call, through all of its tensors in
// order, as if these were contiguous.
//
//   available   Inputs below it can be read. The caller raises it. Nothing above it is read or sent.
//   delivered   Results below it are in the outputs, and stay as they are. What this rank does not receive counts as delivered.
//
// The operation is otherwise the same: ranks with and without watermarks take part in one operation, and the results have the
// same bits. Input that this rank does not contribute need not become available: a rank that only receives needs no
// make_available(). The memory must stay valid, and the caller must write no input below the watermark, until the operation has
// ended. Operations keep their order, so input that does not come holds up what is submitted later, on all ranks.
//
// How early: over the network, a packet is sent when its elements are available; in fixed point a scale group, with packets of 1500
// bytes 1 MB of each stripe. In the memory that the ranks of a host share, a host block at a time, and a large all_gather,
// gather, scatter, broadcast or reduce_scatter as a whole. reduce_scatter, all_gather, gather and scatter send chunks of all
// parts in turn, so a rank that contributes to several parts sends most of them when its last part becomes available.
//
//   auto watermarks = std::make_shared<Watermarks>(1 << 20, [&](size_t bytes) { copy_back_up_to(bytes); });
//   Work work = communicator->all_reduce(tensor, {.watermarks = watermarks});
//   for (size_t bytes = 0; bytes < all;) watermarks->make_available(bytes += copy_next_segment());
//   Status status = work.wait();
//
// Threads: any thread may call any method, before and during the operation; after its end, they have no effect.
#ifndef NETSUM_WATERMARKS_H_
#define NETSUM_WATERMARKS_H_

#include <cstddef>
#include <functional>
#include <memory>

#include "netsum/export.h"
#include "netsum/status.h"

namespace netsum {

// Of one operation, whose options refer to it (ReduceOptions, CollectiveOptions). The Work of a second one ends with
// kInvalidArgument.
class NETSUM_EXPORT Watermarks {
 public:
  using OnDelivered = std::function<void(size_t delivered)>;

  // Without a listener: delivered() tells.
  Watermarks();
  // `on_delivered` is called when `delivered` has grown by `step` bytes or more since the last call (0: by any), and when all
  // results are there, before the Work counts as done; not after a failure. Calls do not overlap, and `delivered` grows from call
  // to call. They come on the engine thread or on one in Work::wait(), and must neither block nor take a lock that a
  // thread holds in Work::wait(). They may call the methods of any Watermarks.
  Watermarks(size_t step, OnDelivered on_delivered);
  ~Watermarks();
  Watermarks(const Watermarks&) = delete;
  Watermarks& operator=(const Watermarks&) = delete;

  // Raises `available` to `bytes` and wakes the engine. More than the tensors have: all of them. Less than before: no effect. If
  // input never comes, the operation ends at its deadline with kTimeout, which says how much there was. With
  // FailurePolicy::kFailover, the call copies the bytes first. Until a communicator of join_late() has joined, it waits for the
  // input within the call that submits a small operation.
  void make_available(size_t bytes);
  // Input will not come, or results cannot be used: for example, the device has failed. The Work ends with `status`, which
  // breaks the communicator, and the job fails on all ranks. A status that is ok, or of kAggregatorLost or kWrongSum, which
  // would make a job move to another aggregator, becomes kAborted. The first one counts.
  void fail(const Status& status);

  size_t available() const;
  size_t delivered() const;

  class State;  // the library's part
  State& state() const { return *state_; }

 private:
  const std::unique_ptr<State> state_;
};

}  // namespace netsum

#endif  // NETSUM_WATERMARKS_H_
