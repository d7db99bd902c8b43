#include "torch/src/work.h"

#include <utility>

#include "torch/src/call_text.h"
#include "torch/src/error.h"
#include "torch/src/interruption.h"

namespace netsum::torch_backend {
std::string CallId::to_string() const {
  return std::string(call.name) + " #" + std::to_string(sequence) + " on rank " + std::to_string(rank) +
         " of " + std::to_string(world_size);
}

CollectiveWork::CollectiveWork(const CallId& id, std::shared_ptr<GroupContext> group, Buffers buffers,
                               std::vector<Tensors> results, const Tensors& profiled)
    : Work(id.rank, id.call.type, id.call.title, profiled),
      id_(id),
      group_(std::move(group)),
      buffers_(std::move(buffers)),
      results_(std::move(results)),
      device_(buffers_.device()) {}

void CollectiveWork::set_operations(const std::vector<netsum::Work>& operations) {
  const std::lock_guard lock(mutex_);
  operations_ = operations;
  operations_left_ = operations.size();
  submitted_ = true;
  cv_.notify_all();
}

void CollectiveWork::refuse(const Status& status) {
  error_ = std::make_exception_ptr(BackendError(id_.to_string(), status));
  finish_work();
}

bool CollectiveWork::end_on_engine(const Status& status) {
  {
    const std::lock_guard lock(ending_mutex_);
    if (status.code() == ErrorCode::kMismatch && !error_ && mismatch_.ok()) {
      mismatch_ = status;
    } else if (!status.ok() && !error_) {
      error_ = std::make_exception_ptr(BackendError(id_.to_string(), status));
    }
    if (--operations_left_ > 0) return false;
  }
  // Waking the waiter here instead of on the completion thread saves a thread switch.
  if (mismatch_.ok() && (error_ ? !buffers_.segments() : !buffers_.must_copy_back())) finish_work();
  return true;
}

void CollectiveWork::copy_back_on_completion(size_t delivered) {
  if (finished_) return;
  try {
    buffers_.copy_back(delivered);
  } catch (const std::exception&) {
    // The device goes on reporting it, at the end of the work, too.
  }
}

void CollectiveWork::end_on_completion() {
  if (!mismatch_.ok()) {
    const std::string calls = group_->calls_at_mismatch(describe());
    error_ = std::make_exception_ptr(BackendError(
        id_.to_string(), Status(ErrorCode::kMismatch, mismatch_.message() + calls, mismatch_.rank())));
  } else if (!error_ && buffers_.must_copy_back()) {
    try {
      buffers_.copy_back();
      arrival_ = buffers_.arrival();
    } catch (...) {
      error_ = device_ ? std::make_exception_ptr(BackendError(id_.to_string(), status_of_device(*device_)))
                       : std::current_exception();
    }
  }
  if (!finished_) {
    if (error_) give_up();
    finish_work();
  }
  buffers_.clear();
  group_->callbacks().push(std::move(callbacks_));
  group_->work_ended();
}

void CollectiveWork::give_up() {
  try {
    buffers_.give_up();
    arrival_ = buffers_.arrival();
  } catch (const std::exception&) {
    // The device has failed: nothing is being copied any more.
  }
}

// Under the lock, which wait() takes at its end: the work has ended when its future is done, and the future is done when wait()
// returns.
void CollectiveWork::finish_work() {
  const std::lock_guard lock(ending_mutex_);
  finished_ = true;
  if (!error_) recorded_.done();
  finish(error_);
  if (future_) callbacks_ = recorded_.around(complete_future());
}

// With the lock. Returns the callbacks.
std::function<void()> CollectiveWork::complete_future() {
  return error_ ? fail(future_, error_) : complete(future_, results_, arrival_);
}

FuturePtr CollectiveWork::getFuture() {
  const std::lock_guard lock(ending_mutex_);
  recorded_.future_taken();
  if (!future_) {
    future_ = new_future(results_, device_);
    if (finished_) complete_future();
  }
  return future_;
}

std::string CollectiveWork::describe() const {
  at::Tensor first = buffers_.first();
  if (!first.defined() && !results_.empty()) first = results_.front().front();
  const CallText text{.name = id_.call.name, .first = first, .operator_name = id_.operator_name};
  return text.to_string();
}

bool CollectiveWork::isCompleted() {
  return is_forked() || (Work::isCompleted() && arrival_.has_come());
}

// As the base class, but a small operation is carried out by this thread meanwhile. It has ended for the base class when its
// callback has run, perhaps on another thread.
bool CollectiveWork::wait(std::chrono::milliseconds timeout) {
  using std::chrono::milliseconds;
  if (is_forked() && !finished_) {
    throw BackendError(id_.to_string(),
                       Status(ErrorCode::kAborted, "it belongs to process " + std::to_string(process_) +
                                                       ", from which this one (" + std::to_string(getpid()) +
                                                       ") was forked since: wait for it there"));
  }
  const RecordedCall::Wait recorded(recorded_);
  const OnInterrupt on_interrupt = [this](const std::string& exception) {
    group_->interrupted(id_.to_string(), exception);
  };
  const auto deadline = wait_deadline(timeout);
  const bool submitted =
      submitted_ || torch_backend::wait_until(deadline, on_interrupt, [this](milliseconds slice) {
        std::unique_lock lock(mutex_);
        return cv_.wait_for(lock, slice, [this] { return submitted_ || completed_; });
      });
  // Later the operations do not change.
  for (size_t i = 0; submitted && i < operations_.size(); ++i) {
    const netsum::Work& operation = operations_[i];
    torch_backend::wait_until(deadline, on_interrupt, [&operation](milliseconds slice) {
      (void)operation.wait(slice);
      return operation.done();
    });
  }
  torch_backend::wait_until(deadline, on_interrupt, [this](milliseconds slice) {
    std::unique_lock lock(mutex_);
    return cv_.wait_for(lock, slice, [this] { return completed_; });
  });
  const std::lock_guard lock(ending_mutex_);
  // Results that had come before an error may still be on their way to the device.
  if (exception()) {
    try {
      arrival_.block_current_stream();
    } catch (const std::exception&) {
      // The device has failed: nothing is being copied any more.
    }
  }
  return Work::wait(milliseconds(1));
}

std::vector<at::Tensor> CollectiveWork::result() {
  TORCH_CHECK(results_.size() <= 1, id_.to_string(),
              " has several lists of results: use get_future().value()");
  return results_.empty() ? Tensors() : results_.front();
}

}  // namespace netsum::torch_backend
