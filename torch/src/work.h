// One collective as c10d sees it.
#ifndef NETSUM_TORCH_SRC_WORK_H_
#define NETSUM_TORCH_SRC_WORK_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "netsum/communicator.h"
#include "netsum/status.h"
#include "torch/src/buffers.h"
#include "torch/src/future.h"
#include "torch/src/group_context.h"
#include "torch/src/recorder.h"

namespace netsum::torch_backend {

// A collective of c10d: its names in messages and statistics, and in profiles.
struct Call {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* name = "";
  const char* title = "";
};

// Identifies a call in error messages.
struct CallId {
  Call call;
  uint64_t sequence = 0;
  int rank = 0;
  int world_size = 1;
  std::string operator_name = {};  // of a reduction
  std::string to_string() const;   // "all_reduce #12 on rank 1 of 4"
};

// Keeps the tensors alive until the call has ended. Results that are copies are copied back before the work counts as
// completed.
//
// A call consists of one or more operations of the library. When all have ended, the work ends in two steps: on the thread
// that drives the engine, which must be fast, then on the completion thread, which never runs the callbacks of futures: these
// have threads of their own. The future is completed before wait() returns. A thread in wait() drives the engine itself, if
// the library lets it (Work::wait()).
class CollectiveWork : public c10d::Work {
 public:
  using Tensors = std::vector<at::Tensor>;

  // `buffers` are prepared. `results`: the value of the future; as in Gloo, one list is the value itself, several are a list
  // of lists. `profiled`: the tensors that a profiler sees.
  CollectiveWork(const CallId& id, std::shared_ptr<GroupContext> group, Buffers buffers,
                 std::vector<Tensors> results, const Tensors& profiled);

  const Buffers& buffers() const { return buffers_; }
  RecordedCall& recorded() { return recorded_; }
  Buffers& buffers() { return buffers_; }

  // Once, when the operations have been submitted, before callbacks call end_on_engine().
  void set_operations(const std::vector<netsum::Work>& operations);
  // There are none; end_on_completion() must then follow.
  void refuse(const Status& status);
  // One operation has ended. Returns whether it was the last; end_on_completion() must then follow.
  bool end_on_engine(const Status& status);
  void end_on_completion();
  // On the completion thread, before the end: the results below `delivered` are there.
  void copy_back_on_completion(size_t delivered);
  // Of a call without operations; end_on_completion() must then follow.
  void end_without_operations() {
    if (!buffers_.must_copy_back()) finish_work();
  }

  // In a child that was forked since the call: at once, with an error unless the work had ended. On Python's main thread,
  // signals interrupt it.
  bool wait(std::chrono::milliseconds timeout) override;
  bool isCompleted() override;
  // The current stream waits for the results; wait() does so, too.
  void synchronize() override { arrival_.block_current_stream(); }
  std::vector<at::Tensor> result() override;
  FuturePtr getFuture() override;
  uint64_t getSequencenumber() const override { return id_.sequence; }

 private:
  bool is_forked() const { return getpid() != process_; }
  std::string describe() const;
  void finish_work();
  void give_up();
  std::function<void()> complete_future();

  const CallId id_;
  const std::shared_ptr<GroupContext> group_;
  const pid_t process_ = getpid();
  std::atomic<bool> finished_ = false;
  Buffers buffers_;
  const std::vector<Tensors> results_;
  RecordedCall recorded_;
  const std::optional<c10::Device> device_;
  Arrival arrival_;  // set before the work is completed
  std::vector<netsum::Work> operations_;
  std::atomic<bool> submitted_ = false;  // and operations_ does not change any more
  std::mutex
      ending_mutex_;  // operations may end on the engine thread or, when refused, on that of the caller
  // The following four are guarded by ending_mutex_, the first three until no operations are left.
  size_t operations_left_ = 0;
  std::exception_ptr error_;  // of the operation that failed first
  Status mismatch_;           // of which error_ will be made
  FuturePtr future_;          // made when it is asked for
  std::function<void()> callbacks_;
};

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_WORK_H_
