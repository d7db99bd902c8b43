#include "torch/src/process_group.h"

#include <Python.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "src/program/values.h"
#include "torch/src/error.h"
#include "torch/src/interruption.h"
#include "torch/src/recorded_values.h"

namespace netsum::torch_backend {
namespace {

constexpr std::chrono::milliseconds kStopDeadline{5'000};

std::atomic<bool> ghosts_have_values = false;

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

// In messages.
std::string where(const char* what, const c10d::Backend& group) {
  return std::string(what) + " on rank " + std::to_string(group.getRank()) + " of " +
         std::to_string(group.getSize());
}

}  // namespace

ProcessGroupNetsum::ProcessGroupNetsum(int rank, int size, c10::intrusive_ptr<c10d::Backend> hosts,
                                       std::shared_ptr<Communicator> communicator, bool sums_only,
                                       std::string job, std::chrono::milliseconds timeout,
                                       c10::intrusive_ptr<c10d::Store> store, bool without_network)
    : Backend(rank, size),
      hosts_(std::move(hosts)),
      store_(std::move(store)),
      options_(c10::make_intrusive<GroupOptions>("netsum", timeout)),
      job_(std::move(job)),
      sums_only_(sums_only),
      without_network_(without_network),
      real_ranks_(size),
      context_(std::make_shared<GroupContext>(rank, size, communicator, store_)),
      communicator_(std::move(communicator)) {
  init();
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  set_global_ranks(std::move(ranks));
}

ProcessGroupNetsum::~ProcessGroupNetsum() {
  shutdown();
}

void ProcessGroupNetsum::set_global_ranks(std::vector<int> ranks) {
  static std::atomic<int> groups = 0;
  recorded_ = std::make_shared<const RecordedGroup>(RecordedGroup{groups++, std::move(ranks)});
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
  submissions_.stop(kStopDeadline);
  leaving.reset();
  hosts_->shutdown();
  // Python ends threads that take its lock while it shuts down, so no callback may run then.
  completion_.stop(kStopDeadline);
  // What is left is on Gloo's threads, which wait for ranks that do not come, and for which Gloo's destructor would wait.
  if (failed && !flush(std::chrono::milliseconds(0))) c10::intrusive_ptr(hosts_).release();
  context_->callbacks().stop(kStopDeadline);
}

std::shared_ptr<Communicator> ProcessGroupNetsum::require_healthy(const char* operation) {
  std::unique_lock lock(mutex_);
  if (shut_down_) {
    throw BackendError(where(operation, *this),
                       {ErrorCode::kAborted, "the process group was shut down before this call"});
  }
  auto comm = communicator_;
  lock.unlock();
  if (comm) {
    const Status status = comm->status();
    if (!status.ok()) throw BackendError(where(operation, *this), status);
  }
  return comm;
}

void ProcessGroupNetsum::count_host_call(const char* operation) {
  require_healthy(operation);
  if (has_ghosts()) refuse_beside_ghosts(operation, "needs the hosts of all ranks");
  ++sequence_;
  const std::lock_guard lock(mutex_);
  ++calls_.hosts[operation];
}

std::chrono::milliseconds ProcessGroupNetsum::timeout_or_default(std::chrono::milliseconds timeout) const {
  return timeout == c10d::kUnsetTimeout ? options_->timeout : timeout;
}

void ProcessGroupNetsum::refuse_beside_ghosts(const char* operation, const std::string& why) const {
  throw BackendError(
      where(operation, *this),
      {ErrorCode::kUnsupported,
       "this call " + why + ", but ranks " + std::to_string(real_ranks_) + " to " +
           std::to_string(getSize() - 1) +
           " are ghosts of `netsum emulate`, which take part in collectives of dense tensors in the network "
           "and have no data: leave it out of the emulated script, or make a real rank its source"});
}

int ProcessGroupNetsum::checked_root(const Call& call, int64_t root) const {
  TORCH_CHECK_VALUE(root >= 0 && root < getSize(), "netsum ", call.name, ": invalid root rank: ", root,
                    " in a group of ", getSize(), " ranks");
  const bool sends = call.type == c10d::OpType::BROADCAST || call.type == c10d::OpType::SCATTER;
  if (sends && root >= real_ranks_)
    refuse_beside_ghosts(call.name, "has its data from rank " + std::to_string(root));
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
  const bool adds = reduction.options.op == ReduceOp::kSum || reduction.options.op == ReduceOp::kAvg;
  if (has_ghosts() && !ghosts_have_values.load() && !reduction.operator_name.empty() && adds)
    buffers.set_ratio(getSize(), real_ranks_);
  Status refusal = buffers.prepare(reduction.factor);
  if (refusal.ok()) refusal = leave_device(&buffers);
  if (!refusal.ok()) throw BackendError(id.to_string(), refusal);
  {
    const std::lock_guard lock(mutex_);
    ++calls_.netsum[call.name];
    calls_.netsum_bytes += buffers.total_bytes();
  }
  return c10::make_intrusive<CollectiveWork>(id, context_, std::move(buffers), std::move(results), profiled);
}

namespace {

// Counts the elements of `tensors`. One tensor and parts of one size need no list.
template <typename View>
program::Operation recorded_operation(program::Collective collective, std::span<const View> tensors,
                                      uint64_t View::*elements) {
  program::Operation operation{.collective = collective};
  bool equal = true;
  for (const View& tensor : tensors) {
    operation.count += tensor.*elements;
    equal &= tensor.*elements == tensors.front().*elements;
  }
  if (tensors.size() <= 1 || (equal && program::has_parts(collective))) return operation;
  for (const View& tensor : tensors) operation.parts.push_back(tensor.*elements);
  return operation;
}

// program::Operation::scales of what a rank contributes.
std::vector<uint8_t> scales_of(std::span<const TensorView> tensors, DataType type) {
  std::vector<uint8_t> scales;
  uint32_t largest = 0;  // of the elements of the latest scale, as bits of float32 without a sign
  uint64_t element = 0;
  const auto add = [&](uint32_t magnitude) {
    largest = std::max(largest, magnitude);
    if (++element % program::kScaleElements != 0) return;
    scales.push_back(static_cast<uint8_t>(largest >> 23));
    largest = 0;
  };
  for (const TensorView& tensor : tensors) {
    if (type == DataType::kFloat32) {
      const auto* const bits = static_cast<const uint32_t*>(tensor.input);
      for (size_t i = 0; i < tensor.count; ++i) add(bits[i] & 0x7fffffff);
    } else if (type == DataType::kBFloat16) {
      const auto* const bits = static_cast<const uint16_t*>(tensor.input);
      for (size_t i = 0; i < tensor.count; ++i) add(uint32_t{bits[i] & 0x7fffu} << 16);
    } else {
      const auto* const values = static_cast<const at::Half*>(tensor.input);
      for (size_t i = 0; i < tensor.count; ++i)
        add(std::bit_cast<uint32_t>(static_cast<float>(values[i])) & 0x7fffffff);
    }
  }
  if (element % program::kScaleElements != 0) scales.push_back(static_cast<uint8_t>(largest >> 23));
  return scales;
}

void append(const void* from, size_t bytes, std::vector<uint8_t>* to) {
  const auto* const first = static_cast<const uint8_t*>(from);
  to->insert(to->end(), first, first + bytes);
}

// Of a call that the hosts run: "all_reduce_coalesced" is an all_reduce.
program::Collective host_collective(std::string_view name) {
  if (name.starts_with("recv")) return program::Collective::kReceive;
  if (name == "monitored_barrier") return program::Collective::kBarrier;
  auto best = program::Collective::kAllReduce;
  size_t longest = 0;
  for (int i = 0; i < program::kCollectives; ++i) {
    const auto collective = static_cast<program::Collective>(i);
    const std::string_view one = program::collective_name(collective);
    if (!name.starts_with(one) || one.size() < longest) continue;
    best = collective;
    longest = one.size();
  }
  return best;
}

}  // namespace

void set_ghosts_have_values(bool have) {
  ghosts_have_values.store(have);
}

void ProcessGroupNetsum::write_times(const std::string& path) {
  times_ = open(path.c_str(), O_WRONLY | O_CLOEXEC);
}

// Under `netsum emulate`, ghosts may follow how long this rank computes: it tells when it submits each operation of the job.
void ProcessGroupNetsum::note_time() {
  if (!has_ghosts() || times_ < 0) return;
  const int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                          std::chrono::steady_clock::now().time_since_epoch())
                          .count();
  static_cast<void>(pwrite(times_, &now, sizeof now, static_cast<off_t>(sizeof now * noted_++)));
}

void ProcessGroupNetsum::record(CollectiveWork& work, program::Collective collective,
                                std::span<const TensorView> tensors, const ReduceOptions& options, int root) {
  note_time();
  if (!RecordedCall::is_on()) return;
  program::Operation operation = recorded_operation(collective, tensors, &TensorView::count);
  operation.type = options.type;
  operation.op = options.op;
  operation.tag = options.tag;
  operation.root = root;
  // Of a device, the data may still be on its way.
  const bool is_there = !work.buffers().device();
  if (is_there) {
    const size_t element = size_of(options.type);
    add_recorded_values(operation.count * element, [&] {
      std::vector<uint8_t> values;
      values.reserve(operation.count * element);
      for (const TensorView& tensor : tensors) append(tensor.input, tensor.count * element, &values);
      return values;
    });
  }
  const bool has_scales =
      is_there && is_floating(options.type) && (options.op == ReduceOp::kSum || options.op == ReduceOp::kAvg);
  if (has_scales)
    work.recorded().submit(recorded_, std::move(operation), [&] { return scales_of(tensors, options.type); });
  else
    work.recorded().submit(recorded_, std::move(operation));
}

void ProcessGroupNetsum::record(CollectiveWork& work, program::Collective collective,
                                std::span<const BufferView> tensors, uint32_t tag, int root) {
  note_time();
  if (!RecordedCall::is_on()) return;
  program::Operation operation = recorded_operation(collective, tensors, &BufferView::bytes);
  operation.type = DataType::kByte;
  operation.tag = tag;
  operation.root = root;
  const auto own = program::contributed_by(operation, getRank(), getSize());
  if (!work.buffers().device() && own.count > 0) {
    add_recorded_values(own.count, [&] {
      std::vector<uint8_t> values;
      values.reserve(own.count);
      uint64_t begin = 0;
      for (const BufferView& tensor : tensors) {
        if (begin >= own.begin && begin < own.begin + own.count) append(tensor.input, tensor.bytes, &values);
        begin += tensor.bytes;
      }
      return values;
    });
  }
  work.recorded().submit(recorded_, std::move(operation));
}

void ProcessGroupNetsum::record(HostWork& work, const Call& call, uint64_t bytes) {
  if (!RecordedCall::is_on()) return;
  work.recorded().submit(
      recorded_,
      {.collective = host_collective(call.name), .type = DataType::kByte, .count = bytes, .on_hosts = true});
}

void ProcessGroupNetsum::fill_parts_of_ghosts(CollectiveWork* work,
                                              const std::vector<BufferView>& views) const {
  if (!has_ghosts() || ghosts_have_values.load()) return;
  const void* const own = views[static_cast<size_t>(getRank())].input;
  for (size_t r = static_cast<size_t>(real_ranks_); r < views.size(); ++r) {
    if (views[r].output == nullptr || views[r].bytes == 0) continue;
    work->buffers().add_first_step([own, part = views[r]] { std::memcpy(part.output, own, part.bytes); });
  }
}

// --- The begin and the end of calls -------------------------------------------------------------------------------

Status ProcessGroupNetsum::lane_of(const c10::Device& device, LanePtr* lane) {
  if (getpid() != process_)
    return {ErrorCode::kAborted, "the group belongs to process " + std::to_string(process_) +
                                     ", from which this one was forked: make a group here"};
  const std::lock_guard lock(mutex_);
  LanePtr& found = lanes_[device.str()];
  if (!found) found = std::make_shared<Lane>(device, staging_limits_);
  *lane = found;
  return {};
}

Status ProcessGroupNetsum::leave_device(Buffers* buffers) {
  const auto device = buffers->device();
  if (!device) return {};
  LanePtr lane;
  if (Status status = lane_of(*device, &lane); !status.ok()) return status;
  try {
    Status status = check_not_captured(*lane);
    if (status.ok()) buffers->leave_device(std::move(lane));
    return status;
  } catch (const std::exception&) {
    const Status status = status_of_device(*device);
    context_->fail(status);
    return status;
  }
}

void ProcessGroupNetsum::stage(const char* what, Buffers* buffers) {
  require_healthy(what);
  Status status = buffers->prepare();
  if (status.ok()) status = leave_device(buffers);
  if (status.ok()) {
    const auto abandoned = [this] {
      const std::lock_guard lock(mutex_);
      return shut_down_;
    };
    try {
      status = buffers->stage_in({wait_deadline(options_->timeout), abandoned}, *buffers->lane()->gradients);
    } catch (const std::exception&) {
      status = status_of_device(*buffers->device());
    }
    // The other ranks would wait for what does not begin.
    if (!status.ok()) context_->fail(status);
  }
  if (!status.ok()) throw BackendError(where(what, *this), status);
}

void ProcessGroupNetsum::stage(const char* what, const c10::Device& device,
                               const std::function<void()>& encode, Buffers* buffers) {
  require_healthy(what);
  LanePtr lane;
  Status status = lane_of(device, &lane);
  if (status.ok()) {
    try {
      status = check_not_captured(*lane);
      if (status.ok()) encode();
    } catch (const std::exception&) {
      status = status_of_device(device);
      context_->fail(status);
    }
  }
  if (!status.ok()) throw BackendError(where(what, *this), status);
  stage(what, buffers);
}

void ProcessGroupNetsum::return_staged(const char* what, Buffers* buffers) {
  try {
    buffers->copy_back();
  } catch (const std::exception&) {
    throw BackendError(what, status_of_device(*buffers->device()));
  }
}

std::vector<std::pair<std::string, bool>> ProcessGroupNetsum::staged_devices() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<std::string, bool>> devices;
  for (const auto& [name, lane] : lanes_) devices.emplace_back(name, lane->pool->is_pinned());
  return devices;
}

Submissions::Stage ProcessGroupNetsum::staging_of(Buffers* buffers, std::chrono::milliseconds timeout) const {
  const auto deadline = wait_deadline(timeout);
  if (buffers->device()) {
    return [buffers, deadline](const std::function<bool()>& abandoned) {
      try {
        return buffers->stage_in({deadline, abandoned});
      } catch (const std::exception&) {
        return status_of_device(*buffers->device());
      }
    };
  }
  if (buffers->size() > 0) return {};
  // A barrier comes after what the caller has enqueued on the devices.
  std::vector<std::pair<c10::Device, EventPtr>> enqueued;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, lane] : lanes_)
      enqueued.emplace_back(lane->device, record_event(lane->guard.getStream(lane->device)));
  }
  if (enqueued.empty()) return {};
  return [enqueued = std::move(enqueued), deadline](const std::function<bool()>& abandoned) -> Status {
    for (const auto& [device, event] : enqueued) {
      try {
        if (Status status = wait_for(*event, device, {deadline, abandoned}); !status.ok()) return status;
      } catch (const std::exception&) {
        return status_of_device(device);
      }
    }
    return {};
  };
}

WorkPtr ProcessGroupNetsum::submit(c10::intrusive_ptr<CollectiveWork> work, std::chrono::milliseconds timeout,
                                   Submit submit) {
  context_->work_began();
  try {
    submissions_.begin({.stage = staging_of(&work->buffers(), timeout),
                        .submit = [this, work, timeout, submit = std::move(submit)]() -> Submissions::Rest {
                          const std::shared_ptr<Segments> segments = work->buffers().segments();
                          const auto deadline = wait_deadline(timeout);
                          follow(work, submit(*work));
                          if (!segments) return {};
                          return [segments, deadline](const Submissions::Abandoned& abandoned) {
                            segments->bring_rest({deadline, abandoned});
                          };
                        },
                        .refuse =
                            [work, inbox = completion_.inbox(), context = context_](const Status& status) {
                              work->refuse(status);
                              inbox->push([work] { work->end_on_completion(); });
                              context->fail(status);
                            }});
  } catch (...) {
    context_->work_ended();
    throw;
  }
  return work;
}

std::shared_ptr<Watermarks> ProcessGroupNetsum::watermarks_of(CollectiveWork& work,
                                                              std::vector<BufferView> parts) {
  const auto started = c10::intrusive_ptr<CollectiveWork>::reclaim_copy(&work);
  return work.buffers().watermarks(
      std::move(parts), [started, inbox = completion_.inbox()](size_t delivered) {
        inbox->push([started, delivered] { started->copy_back_on_completion(delivered); });
      });
}

ReduceOptions ProcessGroupNetsum::staged(CollectiveWork& work, const std::vector<TensorView>& views,
                                         ReduceOptions options) {
  if (!work.buffers().segments()) return options;
  std::vector<BufferView> parts;
  for (const TensorView& view : views)
    parts.push_back(
        {.input = view.input, .output = view.output, .bytes = view.count * size_of(options.type)});
  options.watermarks = watermarks_of(work, std::move(parts));
  return options;
}

CollectiveOptions ProcessGroupNetsum::staged(CollectiveWork& work, const std::vector<BufferView>& views,
                                             CollectiveOptions options) {
  if (work.buffers().segments()) options.watermarks = watermarks_of(work, views);
  return options;
}

void ProcessGroupNetsum::follow(const c10::intrusive_ptr<CollectiveWork>& work,
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
}

}  // namespace netsum::torch_backend
