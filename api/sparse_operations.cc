#include "api/sparse_operations.h"

#include <algorithm>
#include <utility>

#include "src/base/thread.h"
#include "src/base/timeout.h"

namespace netsum {
namespace {

using std::chrono::milliseconds;

// When there are more profiles than this, all are forgotten, at the same operation on every rank.
constexpr size_t kMostProfiles = 4096;
// Values of up to so many bytes are waited for as indices are. A request that comes meanwhile waits for their end.
constexpr size_t kFewBytes = 64 << 10;
// After which time a wait looks for requests, and whether the communicator is being closed.
constexpr milliseconds kLook(5);

}  // namespace

struct SparseOperations::Operation {
  Request request;
  std::shared_ptr<Work::State> work = std::make_shared<Work::State>();
  Clock::time_point deadline;
  std::unique_ptr<sparse::Reduction> reduction;  // once it has begun
  bool finished = false;
  std::list<std::shared_ptr<Operation>>::iterator place;  // in operations_, once it is there
};

SparseOperations::SparseOperations(Owner owner, milliseconds timeout)
    : owner_(std::move(owner)), timeout_(timeout) {}

Status SparseOperations::begin() {
  return start_thread(
      "for sparse all-reduces", [this] { run(); }, &thread_);
}

SparseOperations::~SparseOperations() {
  stop();
  const Status closed(ErrorCode::kAborted, "the communicator was closed");
  for (const OperationPtr& operation : operations_) operation->work->finish(closed);
  for (const Waiting& waiting : line_) waiting.work->finish(closed);
}

Work SparseOperations::start(Request request) {
  auto operation = std::make_shared<Operation>();
  operation->deadline = deadline_after(request.timeout.count() > 0 ? bounded(request.timeout) : timeout_);
  operation->request = std::move(request);
  return wait_in_line({.work = operation->work, .deadline = operation->deadline, .sparse = operation});
}

Work SparseOperations::submit(OperationSpec spec, milliseconds timeout) {
  bool can_start = false;
  {
    const std::lock_guard lock(mailbox_->mutex);
    can_start = !is_busy_ || stop_;
  }
  if (can_start) return owner_.submit(std::move(spec), timeout);
  return wait_in_line({.spec = std::move(spec),
                       .work = std::make_shared<Work::State>(),
                       .deadline = deadline_after(timeout.count() > 0 ? bounded(timeout) : timeout_)});
}

Work SparseOperations::wait_in_line(Waiting waiting) {
  Work work(waiting.work);
  {
    const std::lock_guard lock(mailbox_->mutex);
    is_busy_ = true;
    line_.push_back(std::move(waiting));
  }
  mailbox_->changed.notify_all();
  return work;
}

void SparseOperations::flush(Clock::time_point deadline) {
  std::unique_lock lock(mailbox_->mutex);
  mailbox_->changed.wait_until(lock, deadline, [this] { return is_quiet(); });
}

void SparseOperations::stop() {
  {
    const std::lock_guard lock(mailbox_->mutex);
    stop_ = true;
  }
  mailbox_->changed.notify_all();
  if (thread_.joinable()) thread_.join();
}

void SparseOperations::reset() {
  std::unique_lock lock(mailbox_->mutex);
  mailbox_->changed.wait(lock, [this] { return is_quiet() || stop_; });
  profiles_.clear();
  combines_bits_ = true;
  spare_parts_.clear();
  stats_ = {};
}

SparseStats SparseOperations::stats() const {
  const std::lock_guard lock(mailbox_->mutex);
  return stats_;
}

// At least a millisecond: an operation whose deadline has passed must fail in the engine, which tells the other ranks.
milliseconds SparseOperations::time_left(Clock::time_point deadline) const {
  return std::max(std::chrono::ceil<milliseconds>(deadline - Clock::now()), milliseconds(1));
}

bool SparseOperations::has_work() const {
  return stop_ || !mailbox_->events.empty() || (issuing_ == nullptr && !line_.empty());
}

void SparseOperations::run() {
  std::unique_lock lock(mailbox_->mutex);
  while (true) {
    wait(&lock);
    if (stop_) return;
    std::deque<Event> events;
    events.swap(mailbox_->events);
    lock.unlock();
    for (const Event& event : events) handle(event);
    advance();
    events.clear();  // here, since it may hold the last reference to an operation
    lock.lock();
  }
}

// While nothing can begin before an operation's end, this thread drives the engine (Work::wait()): where ranks share cores, each
// change of thread may cost milliseconds.
void SparseOperations::wait(std::unique_lock<std::mutex>* lock) {
  while (!has_work() && awaited_.valid() && operations_.size() == 1) {  // or else another one may end first
    lock->unlock();
    if (awaited_.wait(kLook).code() != ErrorCode::kTimeout || awaited_.done()) awaited_ = {};
    lock->lock();
  }
  mailbox_->changed.wait(*lock, [this] { return has_work(); });
}

void SparseOperations::handle(const Event& event) {
  sparse::Reduction& reduction = *event.operation->reduction;
  if (event.status.code() == ErrorCode::kUnsupported && reduction.use_sums()) {
    combines_bits_ = false;
    return;
  }
  if (!event.status.ok()) reduction.fail(event.status);
  reduction.ended(event.number);
  finish_if_done(event.operation);
}

// Issues what can begin now.
void SparseOperations::advance() {
  while (true) {
    if (issuing_ != nullptr && !issuing_->finished) {
      while (const sparse::SubOperation* next = issuing_->reduction->next()) issue(issuing_, *next);
      if (!issuing_->reduction->issued_all()) return;
      awaited_ = std::move(last_);
      finish_if_done(issuing_);
    }
    Waiting waiting;
    OperationPtr issued;  // ends, and with it what its request refers to, after the lock
    {
      const std::lock_guard lock(mailbox_->mutex);
      issued = std::move(issuing_);
      if (line_.empty() || stop_) {
        is_busy_ = false;
        mailbox_->changed.notify_all();
        return;
      }
      waiting = std::move(line_.front());
      line_.pop_front();
      issuing_ = waiting.sparse;
      if (issuing_ != nullptr) issuing_->place = operations_.insert(operations_.end(), issuing_);
    }
    if (waiting.sparse != nullptr) {
      begin_reduction(waiting.sparse);
    } else {
      owner_.submit(std::move(waiting.spec), time_left(waiting.deadline))
          .on_done([work = std::move(waiting.work)](const Status& status) { work->finish(status); });
    }
  }
}

void SparseOperations::begin_reduction(const OperationPtr& operation) {
  Request& request = operation->request;
  if (profiles_.size() > kMostProfiles) profiles_.clear();
  request.settings.rank = owner_.rank();
  request.settings.ranks = owner_.world_size();
  request.settings.combines_bits = combines_bits_;
  operation->reduction = std::make_unique<sparse::Reduction>(request.make_tensor(), request.settings,
                                                             &profiles_[request.key], &spare_parts_);
}

void SparseOperations::issue(const OperationPtr& operation, const sparse::SubOperation& sub_operation) {
  OperationSpec spec;
  spec.type = sub_operation.type;
  spec.op = sub_operation.op;
  spec.tensors = {sub_operation.view};
  spec.role.parameter = sub_operation.parameter;
  const Work work = owner_.submit(std::move(spec), time_left(operation->deadline));
  work.on_done([mailbox = mailbox_, operation, number = sub_operation.number](const Status& status) {
    {
      const std::lock_guard lock(mailbox->mutex);
      mailbox->events.push_back({operation, number, status});
    }
    mailbox->changed.notify_all();
  });
  if (sub_operation.kind == sparse::Kind::kCount || sub_operation.kind == sparse::Kind::kIndex)
    awaited_ = work;
  last_ = sub_operation.view.count * size_of(sub_operation.type) <= kFewBytes ? work : Work();
}

void SparseOperations::finish_if_done(const OperationPtr& operation) {
  if (!operation->reduction->done() || operation->finished) return;
  operation->finished = true;
  const Status status = operation->reduction->status();
  if (operation->reduction->is_broken()) owner_.abort(status.message());
  const SparseStats more = operation->reduction->stats();
  operation->reduction.reset();
  {
    const std::lock_guard lock(mailbox_->mutex);
    if (status.ok()) {
      stats_.operations += more.operations;
      stats_.dense += more.dense;
      stats_.elements += more.elements;
      stats_.sent_elements += more.sent_elements;
      stats_.index_bytes += more.index_bytes;
      stats_.spared_bytes += more.spared_bytes;
    }
    operations_.erase(operation->place);
  }
  if (status.ok() && operation->request.on_sent) operation->request.on_sent(more);
  operation->work->finish(status);
  mailbox_->changed.notify_all();
}

}  // namespace netsum
