#include "torch/src/process_group.h"

#include <Python.h>

#include <optional>
#include <utility>

#include "torch/src/error.h"

namespace netsum::torch_backend {
namespace {

constexpr std::chrono::milliseconds kStopDeadline{5'000};

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

std::optional<DataType> network_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DataType::kFloat32;
    case at::kBFloat16:
      return DataType::kBFloat16;
    case at::kHalf:
      return DataType::kFloat16;
    case at::kInt:
      return DataType::kInt32;
    case at::kLong:
      return DataType::kInt64;
    default:
      return std::nullopt;
  }
}

// The options of an all-reduce in the network, or nullopt if the operation must use the hosts.
std::optional<AllReduceOptions> network_options(const std::vector<at::Tensor>& tensors,
                                                const c10d::ReduceOp& op) {
  if (tensors.empty()) return std::nullopt;
  const auto type = network_type(tensors.front().scalar_type());
  if (!type) return std::nullopt;
  for (const auto& tensor : tensors) {
    const bool dense_on_cpu = tensor.device().is_cpu() && tensor.layout() == at::kStrided;
    if (!dense_on_cpu || tensor.scalar_type() != tensors.front().scalar_type()) return std::nullopt;
  }
  if (op == c10d::ReduceOp::SUM) return AllReduceOptions{.type = *type, .op = ReduceOp::kSum};
  if (op == c10d::ReduceOp::AVG && is_floating(*type)) {
    return AllReduceOptions{.type = *type, .op = ReduceOp::kAvg};
  }
  return std::nullopt;
}

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
                                       std::shared_ptr<Communicator> communicator,
                                       std::chrono::milliseconds timeout,
                                       c10::intrusive_ptr<c10d::Store> store)
    : Backend(rank, size),
      hosts_(std::move(hosts)),
      store_(std::move(store)),
      options_(c10::make_intrusive<Options>("netsum", timeout)),
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
    communicator_.reset();
  }
  leaving.reset();
  hosts_->shutdown();
  // Python ends threads that take its lock while it shuts down, so no callback may run then.
  completion_.stop(kStopDeadline);
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
  return *hosts_;
}

WorkPtr ProcessGroupNetsum::allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& opts) {
  auto comm = require_healthy("all_reduce");
  // Several tensors mean that they are summed with each other, too, as in old interfaces. Only Gloo supports this.
  auto options = tensors.size() == 1 ? network_options(tensors, opts.reduceOp) : std::nullopt;
  if (!comm || !options) {
    ++sequence_;
    return hosts_->allreduce(tensors, opts);
  }
  options->timeout = opts.timeout == c10d::kUnsetTimeout ? options_->timeout : opts.timeout;
  return reduce_in_network(std::move(comm), c10d::OpType::ALLREDUCE, "netsum:all_reduce", tensors, {},
                           *options);
}

WorkPtr ProcessGroupNetsum::allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                                const c10d::AllreduceCoalescedOptions& opts) {
  return allreduce_identified(tensors, {}, opts);
}

WorkPtr ProcessGroupNetsum::allreduce_identified(std::vector<at::Tensor>& tensors,
                                                 const std::vector<uint64_t>& ids,
                                                 const c10d::AllreduceCoalescedOptions& opts) {
  auto comm = require_healthy("all_reduce_coalesced");
  TORCH_CHECK_VALUE(ids.empty() || ids.size() == tensors.size(), "all_reduce: ", tensors.size(),
                    " tensors have ", ids.size(), " ids");
  auto options = network_options(tensors, opts.reduceOp);
  if (!comm || !options) {
    ++sequence_;
    return hosts_->allreduce_coalesced(tensors, opts);
  }
  options->timeout = opts.timeout == c10d::kUnsetTimeout ? options_->timeout : opts.timeout;
  return reduce_in_network(std::move(comm), c10d::OpType::ALLREDUCE_COALESCED, "netsum:all_reduce", tensors,
                           ids, *options);
}

WorkPtr ProcessGroupNetsum::reduce_in_network(std::shared_ptr<Communicator> communicator, c10d::OpType type,
                                              const char* profiling_title,
                                              const std::vector<at::Tensor>& tensors,
                                              const std::vector<uint64_t>& ids, AllReduceOptions options) {
  const OperationName name{.type = type, .sequence = ++sequence_, .rank = getRank(), .world_size = getSize()};
  if (const Status refusal = check_tensors(tensors); !refusal.ok())
    throw BackendError(name.to_string(), refusal);
  auto work = c10::make_intrusive<AllReduceWork>(name, profiling_title, tensors, ids);
  const auto views = work->views();
  const auto handle = communicator->all_reduce(views, options);
  // The callback passes its reference on, so that the engine thread never releases the last one.
  handle.on_done([ended = work, inbox = completion_.inbox()](const Status& status) mutable {
    ended->end_on_engine(status);
    inbox->push(std::move(ended));
  });
  return work;
}

// --- On the hosts

WorkPtr ProcessGroupNetsum::allreduce_sparse(std::vector<at::Tensor>& tensors,
                                             const c10d::AllreduceOptions& opts) {
  return hosts("all_reduce_sparse").allreduce_sparse(tensors, opts);
}

WorkPtr ProcessGroupNetsum::broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& opts) {
  return hosts("broadcast").broadcast(tensors, opts);
}

WorkPtr ProcessGroupNetsum::reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& opts) {
  return hosts("reduce").reduce(tensors, opts);
}

WorkPtr ProcessGroupNetsum::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                      std::vector<at::Tensor>& inputs, const c10d::AllgatherOptions& opts) {
  return hosts("all_gather").allgather(outputs, inputs, opts);
}

WorkPtr ProcessGroupNetsum::_allgather_base(at::Tensor& output, at::Tensor& input,
                                            const c10d::AllgatherOptions& opts) {
  return hosts("all_gather_into_tensor")._allgather_base(output, input, opts);
}

WorkPtr ProcessGroupNetsum::allgather_coalesced(std::vector<std::vector<at::Tensor>>& outputs,
                                                std::vector<at::Tensor>& inputs,
                                                const c10d::AllgatherOptions& opts) {
  return hosts("all_gather_coalesced").allgather_coalesced(outputs, inputs, opts);
}

WorkPtr ProcessGroupNetsum::allgather_into_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                            std::vector<at::Tensor>& inputs,
                                                            const c10d::AllgatherOptions& opts) {
  return hosts("all_gather_into_tensor_coalesced").allgather_into_tensor_coalesced(outputs, inputs, opts);
}

WorkPtr ProcessGroupNetsum::gather(std::vector<std::vector<at::Tensor>>& outputs,
                                   std::vector<at::Tensor>& inputs, const c10d::GatherOptions& opts) {
  return hosts("gather").gather(outputs, inputs, opts);
}

WorkPtr ProcessGroupNetsum::scatter(std::vector<at::Tensor>& outputs,
                                    std::vector<std::vector<at::Tensor>>& inputs,
                                    const c10d::ScatterOptions& opts) {
  return hosts("scatter").scatter(outputs, inputs, opts);
}

WorkPtr ProcessGroupNetsum::reduce_scatter(std::vector<at::Tensor>& outputs,
                                           std::vector<std::vector<at::Tensor>>& inputs,
                                           const c10d::ReduceScatterOptions& opts) {
  return hosts("reduce_scatter").reduce_scatter(outputs, inputs, opts);
}

WorkPtr ProcessGroupNetsum::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::ReduceScatterOptions& opts) {
  return hosts("reduce_scatter_tensor")._reduce_scatter_base(output, input, opts);
}

WorkPtr ProcessGroupNetsum::reduce_scatter_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                            std::vector<at::Tensor>& inputs,
                                                            const c10d::ReduceScatterOptions& opts) {
  return hosts("reduce_scatter_tensor_coalesced").reduce_scatter_tensor_coalesced(outputs, inputs, opts);
}

WorkPtr ProcessGroupNetsum::alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                     const c10d::AllToAllOptions& opts) {
  return hosts("all_to_all").alltoall(outputs, inputs, opts);
}

WorkPtr ProcessGroupNetsum::alltoall_base(at::Tensor& output, at::Tensor& input,
                                          std::vector<int64_t>& output_splits,
                                          std::vector<int64_t>& input_splits,
                                          const c10d::AllToAllOptions& opts) {
  return hosts("all_to_all_single").alltoall_base(output, input, output_splits, input_splits, opts);
}

WorkPtr ProcessGroupNetsum::send(std::vector<at::Tensor>& tensors, int destination, int tag) {
  return hosts("send").send(tensors, destination, tag);
}

WorkPtr ProcessGroupNetsum::recv(std::vector<at::Tensor>& tensors, int source, int tag) {
  return hosts("recv").recv(tensors, source, tag);
}

WorkPtr ProcessGroupNetsum::recvAnysource(std::vector<at::Tensor>& tensors, int tag) {
  return hosts("recv_anysource").recvAnysource(tensors, tag);
}

WorkPtr ProcessGroupNetsum::barrier(const c10d::BarrierOptions& opts) {
  return hosts("barrier").barrier(opts);
}

void ProcessGroupNetsum::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  hosts("monitored_barrier").monitoredBarrier(opts, wait_all_ranks);
}

}  // namespace netsum::torch_backend
