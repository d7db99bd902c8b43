// One collective that Gloo runs, as c10d sees it.
#ifndef NETSUM_TORCH_SRC_HOST_WORK_H_
#define NETSUM_TORCH_SRC_HOST_WORK_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "netsum/status.h"
#include "torch/src/buffers.h"
#include "torch/src/future.h"
#include "torch/src/group_context.h"
#include "torch/src/interruption.h"
#include "torch/src/recorder.h"
#include "torch/src/work.h"

namespace netsum::torch_backend {

// What Gloo has reported, about a call with `tensors` ("float64[3], SUM"), as an error of the library.
Status status_of_gloo(const std::exception_ptr& error, const std::string& tensors);

// Gloo works on the buffers, whose results are copied back before the work counts as completed. The callbacks of the future run
// on the group's threads, not on Gloo's: it has two, of which a callback that waits for another collective may not take one.
class HostWork final : public c10d::Work {
 public:
  using Tensors = std::vector<at::Tensor>;

  // `buffers` are prepared. `results`: as of CollectiveWork. `tensors`: in messages. `unpack`, which may be empty, is called when
  // Gloo has ended, before results are copied back.
  HostWork(const CallId& id, std::shared_ptr<GroupContext> group, std::string tensors, Buffers buffers,
           std::vector<Tensors> results, std::function<void(const Buffers&)> unpack);

  const Buffers& buffers() const { return buffers_; }
  Buffers& buffers() { return buffers_; }
  RecordedCall& recorded() { return recorded_; }

  // Once, one of these three. Ends with `gloo`, a collective.
  void follow(const c10::intrusive_ptr<c10d::Work>& gloo);
  // Ends in a wait() that sees the end of `gloo`, a send or a receive: Gloo completes these only there.
  void follow_in_wait(c10::intrusive_ptr<c10d::Work> gloo) { point_to_point_ = std::move(gloo); }
  // There is nothing for Gloo to do.
  void end() { end_with(nullptr); }
  // Gloo has not been called, or has refused the call.
  void refuse(const Status& status);
  // The operation that announces the call (announcement.h) has failed. Gloo may still use the buffers. May block.
  void fail(const Status& status, const std::string& call);

  // On Python's main thread, signals interrupt it.
  bool wait(std::chrono::milliseconds timeout) override;
  bool isCompleted() override { return Work::isCompleted() && arrival_.has_come(); }
  void synchronize() override { arrival_.block_current_stream(); }
  int sourceRank() const override;
  void abort() override;
  std::vector<at::Tensor> result() override;
  FuturePtr getFuture() override;
  uint64_t getSequencenumber() const override { return id_.sequence; }

 private:
  std::exception_ptr named(const std::exception_ptr& error) const;
  // `error`: of Gloo, or null.
  void end_with(std::exception_ptr error);
  void complete_with(const std::exception_ptr& error);
  OnInterrupt on_interrupt() const;
  bool wait_for_message(std::chrono::milliseconds timeout);

  const CallId id_;
  const std::shared_ptr<GroupContext> group_;
  std::atomic<bool> ended_ = false;
  const std::string tensors_;
  Buffers buffers_;
  std::vector<Tensors> results_;
  std::function<void(const Buffers&)> unpack_;
  const std::optional<c10::Device> device_;
  Arrival arrival_;  // set before the work is completed
  const FuturePtr future_;
  RecordedCall recorded_;
  std::mutex ending_mutex_;
  std::mutex waiting_mutex_;  // one thread at a time waits for point_to_point_
  c10::intrusive_ptr<c10d::Work> point_to_point_;
};

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_HOST_WORK_H_
