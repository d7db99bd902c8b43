#include "api/late_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/work_state.h"
#include "session/session_factory.h"
#include "session/tensor_check.h"
#include "src/base/thread.h"
#include "src/base/timeout.h"
#include "src/host/local_sum.h"
#include "src/kernels/kernels.h"
#include "src/worker/mismatch.h"
#include "wire/mtu.h"

namespace netsum {
namespace {

using std::chrono::milliseconds;

// What a frame begins with. All ranks run the same release, and processors of one byte order.
struct Header {
  uint32_t signature = 0;  // of the operation; 0: rank 0's address
  uint32_t joins = 0;      // the ranks join for it; of an address: it is one, otherwise why there is none
  uint64_t bytes = 0;      // that follow
};
constexpr size_t kFrameBytes = sizeof(Header) + kLateBytes;

using Frame = std::vector<std::byte>;

Frame frame_of(const Header& header) {
  Frame frame(kFrameBytes);
  std::memcpy(frame.data(), &header, sizeof header);
  return frame;
}

Header header_of(std::span<const std::byte> all, size_t rank) {
  Header header;
  std::memcpy(&header, all.data() + rank * kFrameBytes, sizeof header);
  return header;
}

const std::byte* content_of(std::span<const std::byte> all, size_t rank) {
  return all.data() + rank * kFrameBytes + sizeof(Header);
}

bool counts(const OperationSpec& spec) {
  return spec.role.collective != Collective::kBarrier;
}

uint64_t bytes_of(const OperationSpec& spec) {
  uint64_t bytes = 0;
  for (const TensorView& tensor : spec.tensors) bytes += tensor.count * size_of(spec.type);
  return bytes;
}

// The bytes of all tensors that must be available for what this rank contributes.
size_t input_end(const OperationSpec& spec) {
  size_t end = 0, begin = 0;
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    begin += spec.tensors[i].count * size_of(spec.type);
    if (used_memory(spec, i).input != nullptr) end = begin;
  }
  return end;
}

// As in a session of one rank: the result is its input, bit for bit.
void copy_alone(const OperationSpec& spec) {
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    const TensorView view = used_memory(spec, i);
    if (view.input != nullptr && view.output != nullptr && view.input != view.output)
      std::memcpy(view.output, view.input, view.count * size_of(spec.type));
  }
}

}  // namespace

struct LateCommunicator::Apart {
  Apart(uint64_t number, const OperationSpec& spec, const CommunicatorOptions& options, bool makes_join,
        std::shared_ptr<Work::State> state)
      : operation(number, spec, options.world_size,
                  {.lane_bits = options.lane_bits,
                   .fixed_floats = options.numerics == Numerics::kFixed,
                   .floats = FloatSums::kAsTheyAre}),
        joins(makes_join),
        counts(netsum::counts(spec)),
        work(std::move(state)) {}

  const Operation operation;
  const bool joins, counts;
  const std::shared_ptr<Work::State> work;  // of one that joins, it is in waiting_, too
};

// Lets exchanges end after the communicator: it waits for those that are inside, and no other enters.
class LateCommunicator::Gate {
 public:
  bool enter() {
    const std::lock_guard lock(mutex_);
    if (!closed_) ++inside_;
    return !closed_;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    if (--inside_ == 0) empty_.notify_all();
  }
  void close() {
    std::unique_lock lock(mutex_);
    closed_ = true;
    empty_.wait(lock, [&] { return inside_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable empty_;
  bool closed_ = false;
  int inside_ = 0;
};

LateCommunicator::LateCommunicator(const CommunicatorOptions& options, LateJoin join, Connect connect)
    : CommunicatorBase(options.timeout),
      options_(options),
      join_(std::move(join)),
      connect_(std::move(connect)),
      payload_bytes_(wire::payload_for_mtu(options.mtu, 4)),
      gate_(std::make_shared<Gate>()) {}

LateCommunicator::~LateCommunicator() {
  stop();
  fail({ErrorCode::kAborted, "rank " + std::to_string(rank()) + " has left the job", rank()});
  gate_->close();
  if (joiner_.joinable()) joiner_.join();
}

// --- Apart ---------------------------------------------------------------------------------------------------

Work LateCommunicator::submit(OperationSpec&& spec, milliseconds timeout) {
  if (CommunicatorBase* const inner = joined()) return inner->hand_on(std::move(spec), timeout);
  const std::lock_guard in_order(order_mutex_);
  if (CommunicatorBase* const inner = joined()) return inner->hand_on(std::move(spec), timeout);
  auto work = std::make_shared<Work::State>();
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return ended_work(failure_);
    if (Status refusal = check_operation(spec, payload_bytes_); !refusal.ok()) return ended_work(refusal);
    if (joining_) {
      waiting_.push_back({std::move(spec), timeout, work});
      return Work(std::move(work));
    }
  }
  submit_apart(std::move(spec), timeout, work);
  return Work(std::move(work));
}

// With order_mutex_.
void LateCommunicator::submit_apart(OperationSpec spec, milliseconds timeout,
                                    const std::shared_ptr<Work::State>& work) {
  const uint64_t bytes = bytes_of(spec);
  const bool alone = bytes == 0 || world_size() == 1;
  const uint64_t number = alone ? 0 : next_number_++;
  const bool joins = !alone && (bytes > kLateBytes || number >= kLateOperations || spec.priority != 0);
  if (!joins && spec.watermarks != nullptr) {
    // An exchange takes all of the input. Operations that follow wait with this one, because they are exchanged in order.
    const milliseconds patience = timeout.count() > 0 ? bounded(timeout) : options_.timeout;
    const Status there = spec.watermarks->state().wait_available(input_end(spec), deadline_after(patience));
    if (!there.ok()) {
      fail(there);
      if (join_.abort) join_.abort(there.message());
      count_end(netsum::counts(spec), bytes, there);
      return work->finish(there);
    }
  }
  if (alone) {
    copy_alone(spec);
    if (spec.watermarks != nullptr) spec.watermarks->state().end_delivered(bytes);
    count_end(netsum::counts(spec), bytes, Status());
    return work->finish(Status());
  }
  const auto apart = std::make_shared<Apart>(number, spec, options_, joins, work);
  const Operation& operation = apart->operation;
  Frame frame = frame_of({operation.signature(), joins ? 1U : 0U, joins ? 0 : bytes});
  if (!joins)
    operation.copy_in(0, operation.count(), reinterpret_cast<uint8_t*>(frame.data() + sizeof(Header)));
  {
    std::unique_lock lock(mutex_);
    if (!failure_.ok()) {
      const Status failure = failure_;
      lock.unlock();
      return work->finish(failure);
    }
    in_exchange_.push_back(apart);
    joining_ = joins;
    if (joins) waiting_.push_back({std::move(spec), timeout, work});
  }
  exchange(frame, timeout, [this, apart](const Status& status, std::span<const std::byte> all) {
    on_exchanged(apart, status, all);
  });
}

void LateCommunicator::exchange(std::span<const std::byte> own, milliseconds timeout, Exchanged done) {
  join_.exchange(
      own, timeout.count() > 0 ? bounded(timeout) : options_.timeout,
      [gate = gate_, size = kFrameBytes * static_cast<size_t>(world_size()), done = std::move(done)](
          const Status& status, std::span<const std::byte> all) {
        if (!gate->enter()) return;
        const bool broken = status.ok() && all.size() != size;
        done(broken ? Status(ErrorCode::kMismatch, "the ranks have exchanged " + std::to_string(all.size()) +
                                                       " bytes instead of " + std::to_string(size))
                    : status,
             all);
        gate->leave();
      });
}

void LateCommunicator::on_exchanged(const std::shared_ptr<Apart>& apart, const Status& status,
                                    std::span<const std::byte> all) {
  {
    const std::lock_guard lock(mutex_);
    if (std::erase(in_exchange_, apart) == 0) return;  // it has ended with a failure
  }
  const Operation& operation = apart->operation;
  Status result = status.ok() ? compare(operation, apart->joins, all) : status;
  if (result.ok() && apart->joins)
    result = start_thread(
        "to join the job", [this] { join(); }, &joiner_);
  if (result.ok() && apart->joins) return;
  if (result.ok()) result = sum(operation, all);
  if (result.ok() && operation.has_watermarks())
    operation.watermarks().end_delivered(operation.count() * size_of(operation.type()));
  if (!result.ok()) fail(result);
  if (apart->joins) return;  // that has ended it
  count_end(apart->counts, operation.count() * size_of(operation.type()), result);
  apart->work->finish(result);
  quiet_.notify_all();
}

Status LateCommunicator::compare(const Operation& operation, bool joins,
                                 std::span<const std::byte> all) const {
  const auto call_of = [](uint32_t signature, uint32_t joining) {
    return uint64_t{signature} << 32 | joining;
  };
  const uint64_t own = call_of(operation.signature(), joins ? 1 : 0);
  std::vector<uint64_t> calls;
  for (size_t rank = 0; rank < static_cast<size_t>(world_size()); ++rank) {
    const Header header = header_of(all, rank);
    calls.push_back(call_of(header.signature, header.joins));
  }
  if (std::count(calls.begin(), calls.end(), own) == world_size()) return Status();
  return mismatch(operation, rank(), static_cast<int>(first_unusual(calls)));
}

// As the ranks of a host sum in memory.
Status LateCommunicator::sum(const Operation& operation, std::span<const std::byte> all) const {
  const DataType type = operation.type();
  const size_t count = operation.count();
  std::vector<const uint8_t*> inputs;
  for (size_t rank = 0; rank < static_cast<size_t>(world_size()); ++rank)
    inputs.push_back(reinterpret_cast<const uint8_t*>(content_of(all, rank)));
  std::vector<uint8_t> result(count * size_of(type));
  bool fits = true;
  if (operation.travels_as_floats()) {
    const int divisor = operation.op() == ReduceOp::kAvg ? world_size() : 1;
    kernels::sum_in_order(type, inputs, count, divisor, type, result.data());
  } else {
    fits = LocalSum(payload_bytes_)
               .run(operation.encoding(), sequence_of(operation, inputs, 0, count, result.data()));
  }
  if (!fits)
    return {ErrorCode::kOverflow,
            operation.describe() + ": the exact sum of an element does not fit the type"};
  operation.copy_out(result.data(), 0, count);
  return Status();
}

void LateCommunicator::count_end(bool counts, uint64_t bytes, const Status& status) {
  if (!counts) return;
  const std::lock_guard lock(mutex_);
  ++submitted_;
  bytes_ += bytes;
  ++(status.ok() ? completed_ : failed_);
}

// Ends all operations, and those to come. The first failure counts.
void LateCommunicator::fail(const Status& status) {
  std::vector<std::shared_ptr<Work::State>> ended;
  Status failure;
  {
    const std::lock_guard lock(mutex_);
    if (inner_ != nullptr) return;  // which has its own failures
    if (failure_.ok()) failure_ = status;
    failure = failure_;
    for (const auto& apart : in_exchange_) {
      if (apart->joins) continue;  // it is waiting, too
      ended.push_back(apart->work);
      if (apart->counts) ++submitted_, ++failed_;
    }
    in_exchange_.clear();
    for (const Waiting& waiting : waiting_) {
      ended.push_back(waiting.work);
      if (netsum::counts(waiting.spec)) ++submitted_, ++failed_;
    }
    waiting_.clear();
    joining_ = false;
  }
  for (const auto& work : ended) work->finish(failure);
  quiet_.notify_all();
}

// --- Joining -------------------------------------------------------------------------------------------------

void LateCommunicator::join() {
  auto connected = connect_with_others();
  if (!connected.ok()) return fail(connected.status());
  std::deque<Waiting> waiting;
  std::vector<Work> works;
  {
    const std::lock_guard in_order(order_mutex_);
    {
      std::unique_lock lock(mutex_);
      if (!failure_.ok()) {
        const Status failure = failure_;
        lock.unlock();
        (*connected)->abort(failure.message());
        return;
      }
      inner_ = std::move(connected).value();
      waiting.swap(waiting_);
    }
    for (Waiting& one : waiting) {
      works.push_back(inner_->hand_on(std::move(one.spec), one.timeout));
      one.work->wait_by(works.back());
    }
    joined_.store(inner_.get(), std::memory_order_release);
  }
  for (size_t i = 0; i < works.size(); ++i)
    works[i].on_done([work = waiting[i].work](const Status& status) { work->finish(status); });
  {
    const std::lock_guard lock(mutex_);
    joining_ = false;
  }
  quiet_.notify_all();
}

Result<std::unique_ptr<CommunicatorBase>> LateCommunicator::connect_with_others() {
  if (!may_meet_at_a_rank(options_)) return connect_(options_);
  CommunicatorOptions options = options_;
  if (rank() != 0) {
    auto root = hear_root();
    if (!root.ok()) return root.status();
    options.root = *root;
    return connect_(options);
  }
  const auto told = std::make_shared<std::atomic<bool>>(false);
  options.on_root_bound = [this, told](const std::string& address) {
    if (!told->exchange(true)) tell_root(address, /*is_address=*/true);
  };
  auto connected = connect_(options);
  if (!told->exchange(true)) tell_root(connected.status().message(), /*is_address=*/false);
  return connected;
}

void LateCommunicator::tell_root(const std::string& text, bool is_address) {
  const size_t bytes = std::min(text.size(), kLateBytes);
  Frame frame = frame_of({.joins = is_address ? 1U : 0U, .bytes = bytes});
  std::memcpy(frame.data() + sizeof(Header), text.data(), bytes);
  exchange(frame, options_.connect_timeout, [](const Status&, std::span<const std::byte>) {});
}

Result<std::string> LateCommunicator::hear_root() {
  struct Heard {
    bool is_there = false;
    Status status;
    std::string address;
  };
  const auto heard = std::make_shared<Heard>();
  exchange(frame_of({}), options_.connect_timeout,
           [this, heard](const Status& status, std::span<const std::byte> all) {
             const std::lock_guard lock(mutex_);
             heard->is_there = true;
             heard->status = status;
             if (status.ok()) {
               const Header header = header_of(all, 0);
               heard->address.assign(reinterpret_cast<const char*>(content_of(all, 0)),
                                     std::min<size_t>(header.bytes, kLateBytes));
               if (header.joins == 0)
                 heard->status = {ErrorCode::kUnreachable, "rank 0 cannot take part: " + heard->address, 0};
             }
             quiet_.notify_all();
           });
  std::unique_lock lock(mutex_);
  const bool in_time =
      quiet_.wait_for(lock, options_.connect_timeout, [&] { return heard->is_there || !failure_.ok(); });
  if (!failure_.ok()) return failure_;
  if (!in_time)
    return Status(
        ErrorCode::kTimeout,
        "waited " + std::to_string(options_.connect_timeout.count()) + " ms for rank 0 to tell its address",
        0);
  if (!heard->status.ok()) return heard->status;
  return heard->address;
}

// --- The rest ------------------------------------------------------------------------------------------------

void LateCommunicator::flush_submitted(Deadline deadline) {
  CommunicatorBase* inner = nullptr;
  {
    std::unique_lock lock(mutex_);
    quiet_.wait_until(lock, deadline, [&] { return in_exchange_.empty() && !joining_; });
    inner = inner_.get();
  }
  if (inner != nullptr) inner->flush(deadline);
}

void LateCommunicator::linger(Deadline deadline) {
  if (CommunicatorBase* const inner = joined()) inner->linger(deadline);
}

void LateCommunicator::abort_job(const std::string& reason) {
  CommunicatorBase* inner = nullptr;
  {
    const std::lock_guard lock(mutex_);
    inner = inner_.get();
  }
  if (inner != nullptr) return inner->abort(reason);
  fail({ErrorCode::kAborted, "rank " + std::to_string(rank()) + " aborted: " + reason, rank()});
  if (join_.abort) join_.abort(reason);
}

Result<Regrouped> LateCommunicator::regroup_job(const RegroupOptions& /*options*/) {
  return Status(ErrorCode::kUnsupported,
                "a communicator that joins late (join_late()) cannot regroup: make a new one");
}

Status LateCommunicator::job_status() const {
  const std::lock_guard lock(mutex_);
  return inner_ != nullptr ? inner_->status() : failure_;
}

CommunicatorStats LateCommunicator::job_stats() const {
  const std::lock_guard lock(mutex_);
  CommunicatorStats stats = inner_ != nullptr ? inner_->stats() : CommunicatorStats();
  stats.operations_submitted += submitted_;
  stats.operations += completed_;
  stats.operations_failed += failed_;
  stats.gradient_bytes += bytes_;
  return stats;
}

std::string LateCommunicator::describe_job() const {
  const std::lock_guard lock(mutex_);
  if (inner_ != nullptr) return inner_->describe() + describe_sparse();
  if (!failure_.ok()) return "not joined: " + failure_.to_string();
  return "not joined yet: the ranks exchange up to " + std::to_string(kLateOperations) +
         " operations of up to " + std::to_string(kLateBytes) +
         " bytes and sum them themselves, and join job '" + options_.job + "' at the next or a larger one";
}

}  // namespace netsum
