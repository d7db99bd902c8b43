#include "torch/src/process_group.h"

#include <Python.h>

#include <optional>
#include <utility>

#include "torch/src/error.h"

namespace netsum::torch_backend {
namespace {

constexpr std::chrono::milliseconds kStopDeadline{5'000};

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Releases Python's lock, if this thread holds it, while this thread waits for others that may need it.
class WithoutPythonLock {
 public:
  WithoutPythonLock() {
    if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) saved_ = PyEval_SaveThread();
  }
  ~WithoutPythonLock() {
    if (saved_ != nullptr) PyEval_RestoreThread(saved_);
  }
  WithoutPythonLock(const WithoutPythonLock&) = delete;
  WithoutPythonLock& operator=(const WithoutPythonLock&) = delete;

 private:
  PyThreadState* saved_ = nullptr;
};

}  // namespace

ProcessGroupNetsum::ProcessGroupNetsum(int rank, int size, c10::intrusive_ptr<c10d::Backend> hosts,
                                       std::shared_ptr<Communicator> communicator, bool sums_only,
                                       std::string job, std::chrono::milliseconds timeout,
                                       c10::intrusive_ptr<c10d::Store> store)
    : Backend(rank, size),
      hosts_(std::move(hosts)),
      store_(std::move(store)),
      options_(c10::make_intrusive<GroupOptions>("netsum", timeout)),
      job_(std::move(job)),
      sums_only_(sums_only),
      context_(std::make_shared<GroupContext>(rank, size, communicator, store_)),
      communicator_(std::move(communicator)) {
  init();
}

ProcessGroupNetsum::~ProcessGroupNetsum() {
  shutdown();
}

std::shared_ptr<Communicator> ProcessGroupNetsum::communicator() const {
  std::lock_guard lock(mutex_);
  return communicator_;
}

CommunicatorStats ProcessGroupNetsum::stats() const {
  std::unique_lock lock(mutex_);
  const auto comm = communicator_;
  if (!comm) return last_stats_;
  lock.unlock();
  return comm->stats();
}

SparseStats ProcessGroupNetsum::sparse_stats() const {
  std::unique_lock lock(mutex_);
  const auto comm = communicator_;
  if (!comm) return last_sparse_stats_;
  lock.unlock();
  return netsum::sparse_stats(*comm);
}

ProcessGroupNetsum::CallCounts ProcessGroupNetsum::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

void ProcessGroupNetsum::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  hosts_->setTimeout(timeout);
}

void ProcessGroupNetsum::setSequenceNumberForGroup() {
  hosts_->setSequenceNumberForGroup();
}

c10d::ErrorType ProcessGroupNetsum::getError() {
  const auto comm = communicator();
  if (!comm) return c10d::ErrorType::SUCCESS;
  switch (comm->status().code()) {
    case ErrorCode::kOk:
      return c10d::ErrorType::SUCCESS;
    case ErrorCode::kTimeout:
      return c10d::ErrorType::TIMEOUT;
    case ErrorCode::kPeerLost:
    case ErrorCode::kAggregatorLost:
    case ErrorCode::kMismatch:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

void ProcessGroupNetsum::abort() {
  WithoutPythonLock unlocked;
  if (const auto comm = communicator()) {
    comm->abort("rank " + std::to_string(getRank()) + " aborted the process group");
  }
  hosts_->abort();
}

void ProcessGroupNetsum::shutdown() {
  WithoutPythonLock unlocked;
  std::shared_ptr<Communicator> leaving;
  {
    std::lock_guard lock(mutex_);
    if (shut_down_) return;
    shut_down_ = true;
    leaving = communicator_;
    if (leaving) last_stats_ = leaving->stats();
    if (leaving) last_sparse_stats_ = netsum::sparse_stats(*leaving);
    communicator_.reset();
  }
  const bool failed = leaving && !leaving->status().ok();
  leaving.reset();
  hosts_->shutdown();
  // Python ends threads that take its lock while it shuts down, so no callback may run then.
  completion_.stop(kStopDeadline);
  // What is left is on Gloo's threads, which wait for ranks that do not come, and for which Gloo's destructor would wait.
  if (failed && !flush(std::chrono::milliseconds(0))) c10::intrusive_ptr(hosts_).release();
  context_->callbacks().stop(kStopDeadline);
}

std::shared_ptr<Communicator> ProcessGroupNetsum::require_healthy(const char* operation) {
  const auto where = [&] {
    return std::string(operation) + " on rank " + std::to_string(getRank()) + " of " +
           std::to_string(getSize());
  };
  std::unique_lock lock(mutex_);
  if (shut_down_) {
    throw BackendError(where(), {ErrorCode::kAborted, "the process group was shut down before this call"});
  }
  auto comm = communicator_;
  lock.unlock();
  if (comm) {
    const Status status = comm->status();
    if (!status.ok()) throw BackendError(where(), status);
  }
  return comm;
}

c10d::Backend& ProcessGroupNetsum::hosts(const char* operation) {
  require_healthy(operation);
  ++sequence_;
  const std::lock_guard lock(mutex_);
  ++calls_.hosts[operation];
  return *hosts_;
}

std::chrono::milliseconds ProcessGroupNetsum::timeout_or_default(std::chrono::milliseconds timeout) const {
  return timeout == c10d::kUnsetTimeout ? options_->timeout : timeout;
}

int ProcessGroupNetsum::checked_root(const Call& call, int64_t root) const {
  TORCH_CHECK_VALUE(root >= 0 && root < getSize(), "netsum ", call.name, ": invalid root rank: ", root,
                    " in a group of ", getSize(), " ranks");
  return static_cast<int>(root);
}

c10::intrusive_ptr<CollectiveWork> ProcessGroupNetsum::begin(const Call& call, Buffers buffers,
                                                             std::vector<Tensors> results,
                                                             const Tensors& profiled,
                                                             const NetworkReduction& reduction) {
  const CallId id{.call = call,
                  .sequence = ++sequence_,
                  .rank = getRank(),
                  .world_size = getSize(),
                  .operator_name = reduction.operator_name};
  if (reduction.divides) buffers.set_divisor(getSize());
  if (const Status refusal = buffers.prepare(reduction.factor); !refusal.ok())
    throw BackendError(id.to_string(), refusal);
  {
    const std::lock_guard lock(mutex_);
    ++calls_.netsum[call.name];
    calls_.netsum_bytes += buffers.total_bytes();
  }
  return c10::make_intrusive<CollectiveWork>(id, context_, std::move(buffers), std::move(results), profiled);
}

WorkPtr ProcessGroupNetsum::follow(c10::intrusive_ptr<CollectiveWork> work,
                                   const std::vector<Work>& operations) {
  work->set_operations(operations);
  if (operations.empty()) {
    work->end_without_operations();
    completion_.inbox()->push([work] { work->end_on_completion(); });
  }
  for (const Work& operation : operations) {
    // The callback passes its reference on, so that the engine thread never releases the last one.
    operation.on_done([ending = work, inbox = completion_.inbox()](const Status& status) mutable {
      auto ended = std::move(ending);
      if (!ended->end_on_engine(status)) return;
      inbox->push([work = std::move(ended)] { work->end_on_completion(); });
    });
  }
  return work;
}

}  // namespace netsum::torch_backend
