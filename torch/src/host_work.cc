#include "torch/src/host_work.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>
#include <torch/csrc/utils/pybind.h>

#include <initializer_list>
#include <utility>

#include "torch/src/error.h"

namespace netsum::torch_backend {
namespace {

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an unknown error";
  }
}

bool contains(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words)
    if (text.find(word) != std::string::npos) return true;
  return false;
}

// Gloo's errors have no codes.
ErrorCode code_of(const std::string& text) {
  if (contains(text, {"imed out", "timeout"})) return ErrorCode::kTimeout;
  if (contains(text, {"onnection", "closed by peer", "Broken pipe", "Socket closed"}))
    return ErrorCode::kPeerLost;
  if (contains(text, {"aborted"})) return ErrorCode::kAborted;
  return ErrorCode::kUnsupported;
}

}  // namespace

Status status_of_gloo(const std::exception_ptr& error, const std::string& tensors) {
  const std::string text = text_of(error);
  const ErrorCode code = code_of(text);
  const std::string of = tensors.empty() ? "" : " of " + tensors;
  std::string message = "Gloo, which runs this call" + of + ", reports: " + text;
  if (code == ErrorCode::kUnsupported)
    message +=
        " (use tensors of a type and an operator that docs/pytorch.md lists, of equal sizes on all ranks)";
  return {code, message};
}

HostWork::HostWork(const CallId& id, std::shared_ptr<GroupContext> group, std::string tensors,
                   Buffers buffers, std::vector<Tensors> results, std::function<void(const Buffers&)> unpack)
    : Work(id.rank, id.call.type),
      id_(id),
      group_(std::move(group)),
      tensors_(std::move(tensors)),
      buffers_(std::move(buffers)),
      results_(std::move(results)),
      unpack_(std::move(unpack)),
      device_(buffers_.device()),
      future_(new_future(results_, device_)) {}

void HostWork::follow(const c10::intrusive_ptr<c10d::Work>& gloo) {
  auto self = c10::intrusive_ptr<HostWork>::reclaim_copy(this);
  group_->work_began();
  gloo->getFuture()->addCallback([self = std::move(self)](c10::ivalue::Future& ended) {
    self->end_with(ended.hasError() ? ended.exception_ptr() : nullptr);
    self->group_->work_ended();
  });
}

std::exception_ptr HostWork::named(const std::exception_ptr& error) const {
  return std::make_exception_ptr(BackendError(id_.to_string(), status_of_gloo(error, tensors_)));
}

void HostWork::fail(const Status& status, const std::string& call) {
  if (ended_) return;
  Status named = status;
  if (status.code() == ErrorCode::kMismatch)
    named = Status(status.code(), status.message() + group_->calls_at_mismatch(call), status.rank());
  if (ended_.exchange(true)) return;
  complete_with(std::make_exception_ptr(BackendError(id_.to_string(), named)));
}

void HostWork::refuse(const Status& status) {
  if (ended_.exchange(true)) return;
  buffers_.clear();
  unpack_ = nullptr;
  complete_with(std::make_exception_ptr(BackendError(id_.to_string(), status)));
}

void HostWork::end_with(std::exception_ptr error) {
  if (ended_.exchange(true)) return;
  if (error) {
    error = named(error);
  } else {
    try {
      const at::AutoDispatchBelowADInplaceOrView no_autograd;
      if (unpack_) unpack_(buffers_);
      if (buffers_.must_copy_back()) buffers_.copy_back();
      arrival_ = buffers_.arrival();
    } catch (...) {
      error = device_ ? std::make_exception_ptr(BackendError(id_.to_string(), status_of_device(*device_)))
                      : std::current_exception();
    }
  }
  buffers_.clear();
  unpack_ = nullptr;
  complete_with(error);
}

// As CollectiveWork::finish_work().
void HostWork::complete_with(const std::exception_ptr& error) {
  std::function<void()> callbacks;
  {
    const std::lock_guard lock(ending_mutex_);
    if (!error) recorded_.done();
    finish(error);
    callbacks = error ? torch_backend::fail(future_, error) : complete(future_, results_, arrival_);
  }
  group_->callbacks().push(recorded_.around(std::move(callbacks)));
}

OnInterrupt HostWork::on_interrupt() const {
  return [this](const std::string& exception) { group_->interrupted(id_.to_string(), exception); };
}

bool HostWork::wait(std::chrono::milliseconds timeout) {
  using std::chrono::milliseconds;
  const RecordedCall::Wait recorded(recorded_);
  if (point_to_point_) return wait_for_message(timeout);
  torch_backend::wait_until(wait_deadline(timeout), on_interrupt(), [this](milliseconds slice) {
    std::unique_lock lock(mutex_);
    return cv_.wait_for(lock, slice, [this] { return completed_; });
  });
  const std::lock_guard lock(ending_mutex_);
  return Work::wait(milliseconds(1));
}

bool HostWork::wait_for_message(std::chrono::milliseconds timeout) {
  const std::lock_guard lock(waiting_mutex_);
  if (isCompleted()) return Work::wait(timeout);
  std::exception_ptr error;
  bool received = true;
  try {
    received = on_python_main_thread() ? group_->messages().wait(point_to_point_, timeout, on_interrupt())
                                       : point_to_point_->wait(timeout);
  } catch (const pybind11::error_already_set&) {
    throw;  // the wait was interrupted
  } catch (...) {
    error = std::current_exception();
  }
  if (!received) return false;  // abort()
  end_with(error);
  return Work::wait(timeout);
}

int HostWork::sourceRank() const {
  return point_to_point_ ? point_to_point_->sourceRank() : Work::sourceRank();
}

void HostWork::abort() {
  if (point_to_point_) point_to_point_->abort();
}

std::vector<at::Tensor> HostWork::result() {
  TORCH_CHECK(results_.size() <= 1, id_.to_string(),
              " has several lists of results: use get_future().value()");
  return results_.empty() ? Tensors() : results_.front();
}

FuturePtr HostWork::getFuture() {
  TORCH_CHECK_NOT_IMPLEMENTED(!point_to_point_, id_.to_string(),
                              " has no future, because it ends in wait(): wait for it");
  recorded_.future_taken();
  return future_;
}

}  // namespace netsum::torch_backend
