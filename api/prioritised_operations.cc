#include "api/prioritised_operations.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/base/timeout.h"
#include "src/priority/order.h"

namespace netsum {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using PriorityStep = PriorityOrder::Step;

// Only sums of all ranks are cut. With watermarks, the caller counts in bytes of the whole.
bool is_divisible(const OperationSpec& spec) {
  return spec.role.collective == Collective::kAllReduce && spec.watermarks == nullptr;
}

uint64_t elements_of(const OperationSpec& spec) {
  uint64_t elements = 0;
  for (const TensorView& tensor : spec.tensors) elements += tensor.count;
  return elements;
}

PriorityOrder::Operation ordered(const OperationSpec& spec, const PrioritisedOperations::Owner& owner) {
  PriorityOrder::Operation operation{
      .priority = spec.priority,
      .elements = std::max<uint64_t>(elements_of(spec), 1),
      .element_bytes = static_cast<uint32_t>(size_of(spec.type)),
  };
  operation.grain = operation.elements;
  if (!is_divisible(spec)) return operation;
  // A scale group is cut nowhere else, and small operations may be rounded in another way.
  operation.grain = owner.chunk_elements(spec);
  operation.least = kMostInlineChunks * operation.grain;
  return operation;
}

// Elements [begin, begin + count) of the operation. Tensors lose their identity: pieces of one differ from step to step.
OperationSpec piece_of(const OperationSpec& whole, uint64_t begin, uint64_t count) {
  OperationSpec piece;
  piece.type = whole.type;
  piece.op = whole.op;
  piece.role = whole.role;
  piece.one_tensor = whole.one_tensor;
  for (const TensorView& tensor : whole.tensors) {
    const uint64_t skipped = std::min<uint64_t>(begin, tensor.count);
    const uint64_t taken = std::min<uint64_t>(tensor.count - skipped, count);
    begin -= skipped;
    if (taken == 0) continue;
    count -= taken;
    const size_t offset = skipped * size_of(whole.type);
    piece.tensors.push_back({.input = static_cast<const std::byte*>(tensor.input) + offset,
                             .output = static_cast<std::byte*>(tensor.output) + offset,
                             .count = taken});
  }
  return piece;
}

}  // namespace

struct PrioritisedOperations::State : std::enable_shared_from_this<State> {
  struct Operation {
    OperationSpec spec;
    Clock::time_point deadline;
    std::shared_ptr<Work::State> work = std::make_shared<Work::State>();
    size_t in_flight = 0;  // pieces
    bool issued = false;   // all of its pieces
  };
  struct End {
    std::shared_ptr<Work::State> work;
    Status status;
  };

  State(Owner its_owner, milliseconds default_timeout)
      : owner(std::move(its_owner)), timeout(default_timeout) {}

  void drive();
  void handle(const PriorityStep& step, const Status& status);
  void end_failed();
  OperationSpec spec_of(const PriorityStep& step);
  milliseconds time_left(const PriorityStep& step) const;
  void on_end(const PriorityStep& step, const Status& status);

  const Owner owner;
  const milliseconds timeout;
  std::mutex mutex;  // guards the following; not locked in calls of the owner and of Works
  std::condition_variable changed;
  std::optional<PriorityOrder> order;        // from the first operation with a priority on
  std::map<uint64_t, Operation> operations;  // by number
  uint64_t added = 0;
  std::vector<PriorityOrder::Report> reports;          // by rank, of the agreement in flight
  std::deque<std::pair<PriorityStep, Status>> events;  // steps that have ended
  std::vector<End> ends;                               // to tell
  size_t in_flight = 0;                                // steps
  bool driving = false;                                // by some thread
  Status failure;
};

PrioritisedOperations::PrioritisedOperations(Owner owner, milliseconds timeout)
    : state_(std::make_shared<State>(std::move(owner), timeout)) {}

Work PrioritisedOperations::submit(OperationSpec spec, milliseconds timeout) {
  if (Status refusal = state_->owner.check(spec); !refusal.ok()) return ended_work(refusal);
  const PriorityOrder::Operation operation = ordered(spec, state_->owner);
  std::unique_lock lock(state_->mutex);
  active_.store(true, std::memory_order_relaxed);
  if (!state_->failure.ok()) return ended_work(state_->failure);
  if (!state_->order) state_->order.emplace();
  state_->order->add(operation);
  State::Operation& added = state_->operations[state_->added++];
  added.spec = std::move(spec);
  added.deadline = deadline_after(timeout.count() > 0 ? bounded(timeout) : state_->timeout);
  const Work work(added.work);
  lock.unlock();
  state_->drive();
  return work;
}

void PrioritisedOperations::flush(Clock::time_point deadline) {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_until(lock, deadline, [this] { return state_->operations.empty(); });
}

void PrioritisedOperations::stop() {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->failure.ok()) state_->failure = {ErrorCode::kAborted, "the communicator was closed"};
  }
  state_->drive();
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return !state_->driving; });
}

void PrioritisedOperations::reset() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->in_flight == 0 && !state_->driving; });
  active_.store(false, std::memory_order_relaxed);
  state_->order.reset();
  state_->added = 0;
  state_->failure = {};
}

std::string PrioritisedOperations::describe() const {
  const std::lock_guard lock(state_->mutex);
  if (!state_->order) return "";
  return "; priorities with a credit of " + std::to_string(state_->order->credit_bytes()) + " bytes";
}

// Handles what has ended, and starts what can start. What ends meanwhile, in this thread or another, is left to it.
void PrioritisedOperations::State::drive() {
  std::unique_lock lock(mutex);
  if (driving) return;
  driving = true;
  while (true) {
    while (!events.empty()) {
      const auto [step, status] = std::move(events.front());
      events.pop_front();
      handle(step, status);
    }
    if (!failure.ok()) end_failed();
    if (const auto step = failure.ok() && order ? order->next() : std::nullopt) {
      OperationSpec spec = spec_of(*step);
      const milliseconds left = time_left(*step);
      ++in_flight;
      lock.unlock();
      owner.submit(std::move(spec), left)
          .on_done([state = shared_from_this(), step = *step](const Status& status) {
            state->on_end(step, status);
          });
      lock.lock();
    } else if (!ends.empty()) {
      std::vector<End> telling;
      telling.swap(ends);
      lock.unlock();
      for (const End& end : telling) end.work->finish(end.status);
      lock.lock();
    } else {
      break;
    }
  }
  driving = false;
  changed.notify_all();
}

void PrioritisedOperations::State::on_end(const PriorityStep& step, const Status& status) {
  {
    const std::lock_guard lock(mutex);
    events.emplace_back(step, status);
  }
  drive();
}

void PrioritisedOperations::State::handle(const PriorityStep& step, const Status& status) {
  --in_flight;
  if (!status.ok() && failure.ok())
    failure = {status.code(),
               "operations with priorities: " + status.message() +
                   (status.code() == ErrorCode::kMismatch ? ", with the same priorities" : ""),
               status.rank()};
  if (step.kind == PriorityOrder::Kind::kAgreement) {
    if (status.ok()) order->agreed(reports);
    return;
  }
  order->ended(step);
  const auto place = operations.find(step.operation);
  Operation& operation = place->second;
  operation.issued |= step.is_last;
  if (--operation.in_flight > 0 || !operation.issued || !failure.ok()) return;
  ends.push_back({std::move(operation.work), Status()});
  operations.erase(place);
}

// What pieces in flight still use ends with them.
void PrioritisedOperations::State::end_failed() {
  std::erase_if(operations, [this](auto& one) {
    if (one.second.in_flight > 0) return false;
    ends.push_back({std::move(one.second.work), failure});
    return true;
  });
}

OperationSpec PrioritisedOperations::State::spec_of(const PriorityStep& step) {
  OperationSpec spec;
  if (step.kind == PriorityOrder::Kind::kAgreement) {
    const auto rank = static_cast<size_t>(owner.rank());
    reports.assign(static_cast<size_t>(owner.world_size()), {});
    reports[rank] = step.report;
    spec.type = DataType::kByte;
    for (PriorityOrder::Report& report : reports) spec.tensors.push_back({&report, &report, sizeof report});
    spec.role = make_role(Collective::kAllGather, 0, owner.rank());
  } else {
    Operation& operation = operations.at(step.operation);
    ++operation.in_flight;
    const bool is_whole = step.begin == 0 && step.is_last;
    spec = is_whole ? std::move(operation.spec) : piece_of(operation.spec, step.begin, step.count);
    spec.priority = 0;
  }
  // Not the parameter, which is the root of some collectives.
  spec.role.tag = spec.role.tag * 0x9E3779B1u ^ step.signature;
  return spec;
}

// At least a millisecond: an operation whose deadline has passed must fail in the engine, which tells the other ranks. An
// agreement waits for the ranks as long as the operations that it is for.
milliseconds PrioritisedOperations::State::time_left(const PriorityStep& step) const {
  Clock::time_point deadline = Clock::time_point::max();
  if (step.kind == PriorityOrder::Kind::kPiece)
    deadline = operations.at(step.operation).deadline;
  else
    for (const auto& one : operations) deadline = std::min(deadline, one.second.deadline);
  return std::max(std::chrono::ceil<milliseconds>(deadline - Clock::now()), milliseconds(1));
}

}  // namespace netsum
