#include "torch/src/work.h"

#include <algorithm>
#include <utility>

#include "torch/src/error.h"

namespace netsum::torch_backend {
namespace {

constexpr std::chrono::hours kLongest{24 * 365};

c10::intrusive_ptr<c10::ivalue::Future> new_future(size_t lists) {
  auto type = c10::ListType::create(c10::TensorType::get());
  if (lists > 1) type = c10::ListType::create(std::move(type));
  return c10::make_intrusive<c10::ivalue::Future>(std::move(type));
}

}  // namespace

std::string CallId::to_string() const {
  return std::string(call.name) + " #" + std::to_string(sequence) + " on rank " + std::to_string(rank) +
         " of " + std::to_string(world_size);
}

CollectiveWork::CollectiveWork(const CallId& id, Buffers buffers, std::vector<Tensors> results,
                               const Tensors& profiled)
    : Work(id.rank, id.call.type, id.call.title, profiled),
      id_(id),
      buffers_(std::move(buffers)),
      results_(std::move(results)),
      future_(new_future(results_.size())) {}

bool CollectiveWork::end_on_engine(const Status& status) {
  {
    const std::lock_guard lock(ending_mutex_);
    if (!status.ok() && !error_) error_ = std::make_exception_ptr(BackendError(id_.to_string(), status));
    if (--operations_left_ > 0) return false;
  }
  // Waking the waiter here instead of on the completion thread saves a thread switch.
  if (error_ || !buffers_.must_copy_back()) finish_work();
  return true;
}

void CollectiveWork::end_on_completion() {
  if (!error_ && buffers_.must_copy_back()) {
    try {
      buffers_.copy_back();
    } catch (...) {
      error_ = std::current_exception();
    }
    finish_work();
  }
  buffers_.clear();
  if (error_) {
    future_->setError(error_);
  } else if (results_.size() > 1) {
    future_->markCompleted(c10::IValue(results_));
  } else {
    future_->markCompleted(c10::IValue(results_.empty() ? Tensors() : results_.front()));
  }
}

void CollectiveWork::finish_work() {
  finish(error_);
  finished_ = true;
}

bool CollectiveWork::isCompleted() {
  return is_forked() || Work::isCompleted();
}

// As the base class, but a small operation is carried out by this thread meanwhile. It has ended for the base class when its
// callback has run, perhaps on another thread.
bool CollectiveWork::wait(std::chrono::milliseconds timeout) {
  if (is_forked() && !finished_) {
    throw BackendError(id_.to_string(),
                       Status(ErrorCode::kAborted, "it belongs to process " + std::to_string(process_) +
                                                       ", from which this one (" + std::to_string(getpid()) +
                                                       ") was forked since: wait for it there"));
  }
  using Clock = std::chrono::steady_clock;
  if (timeout == kNoTimeout) {
    for (const netsum::Work& operation : operations_) (void)operation.wait();
    return Work::wait(kNoTimeout);
  }
  const Clock::time_point deadline = Clock::now() + std::min<std::chrono::milliseconds>(timeout, kLongest);
  const auto left = [&] {
    return std::max(std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()),
                    std::chrono::milliseconds(1));
  };
  for (const netsum::Work& operation : operations_) (void)operation.wait(left());
  return Work::wait(left());
}

std::vector<at::Tensor> CollectiveWork::result() {
  TORCH_CHECK(results_.size() <= 1, id_.to_string(),
              " has several lists of results: use get_future().value()");
  return results_.empty() ? Tensors() : results_.front();
}

}  // namespace netsum::torch_backend
