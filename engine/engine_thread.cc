#include "engine/engine_thread.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "src/base/clock.h"
#include "src/base/thread.h"

namespace netsum {
namespace {

// Timers are delayed for at most this long while arrived packets are handled.
constexpr int64_t kTickPatienceUs = 50'000;
// Without progress. What the rank that has left has taken part in may end yet: several probes for a lost result, and pauses of
// the host whose shard has it.
constexpr int64_t kLeftGraceUs = 3'000'000;

}  // namespace

EngineThread::EngineThread(size_t index, std::unique_ptr<EngineCore> core,
                           std::shared_ptr<WaitPredictor> predictor, Events events)
    : index_(index),
      core_(std::move(core)),
      events_(std::move(events)),
      core_lock_(std::make_shared<CoreLock>(this, std::move(predictor))) {}

Status EngineThread::begin() {
  return start_thread(
      "to send and receive", [this] { loop(); }, &thread_);
}

EngineThread::~EngineThread() {
  stop();
}

void EngineThread::stop() {
  if (!thread_.joinable()) return;
  stop_.store(true, std::memory_order_release);
  notify_driver();
  thread_.join();
}

// Something for the driver has been stored.
void EngineThread::notify_driver() {
  if (!core_lock_->notify()) core_->wake();
}

Status EngineThread::wait_connected(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return connected_ || !status_.ok(); });
  if (!status_.ok()) return status_;
  if (connected_) return Status();
  return Status(ErrorCode::kUnreachable, not_connected_reason_);
}

bool EngineThread::submit(const OperationPtr& operation, OperationSpec&& spec, Start start) {
  const bool free = start != Start::kByThread && core_lock_->try_lock() != nullptr;
  if (free && !has_mail_.load(std::memory_order_acquire)) {
    start_part(operation, std::move(spec));
    if (take_end_of(operation)) {
      core_lock_->unlock({.needs_engine = !quiet() || !completions_.empty()});
      return false;
    }
    const int64_t now_us = operation->submitted_us;
    while (core_->advance(now_us)) {
    }
    core_->send(now_us);
    const bool to_caller = start == Start::kHereForCaller && !core_lock_->predictor().expects_no_wait();
    core_lock_->unlock({.needs_engine = !to_caller, .watched = to_caller});
    return to_caller;
  }
  if (free) core_lock_->unlock({});
  bool is_first = false;
  {
    const std::lock_guard lock(mutex_);
    submissions_.push_back({operation, std::move(spec)});
    is_first = !has_mail_.exchange(true, std::memory_order_acq_rel);
  }
  // Whoever stored earlier mail has notified the driver, or is about to. The driver then takes this, too.
  if (is_first) notify_driver();
  return false;
}

// With the core locked, within submit(): a part of nothing has ended at once, and need not wait for a driver.
bool EngineThread::take_end_of(const OperationPtr& operation) {
  const auto before = static_cast<std::ptrdiff_t>(completions_.size());
  core_->take_completions(&completions_);
  const auto mine = std::find_if(
      completions_.begin() + before, completions_.end(),
      [&](const auto& completion) { return operations_[completion.id - first_id_] == operation; });
  if (mine == completions_.end()) return false;
  EngineCore::Completion completion = std::move(*mine);
  take_operation(completion.id);
  completions_.erase(mine);
  if (!operation->end_part(index_, std::move(completion))) return true;
  {
    const std::lock_guard lock(mutex_);
    ended_.push_back(operation);
    has_mail_.store(true, std::memory_order_release);
  }
  core_lock_->notify();
  return true;
}

void EngineThread::fail(const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_from_outside_.ok()) return;
    failure_from_outside_ = status;
    has_mail_.store(true, std::memory_order_release);
  }
  notify_driver();
}

void EngineThread::peer_left(int rank) {
  {
    const std::lock_guard lock(mutex_);
    if (left_rank_ != kNoRank) return;
    left_rank_ = rank;
  }
  has_left_.store(true, std::memory_order_release);
  notify_driver();
}

Status EngineThread::status() const {
  const std::lock_guard lock(mutex_);
  return status_.ok() ? failure_from_outside_ : status_;
}

// Has locked the core, at first and whenever it does anything, and also when it ends.
void EngineThread::loop() {
  while (!stop_.load(std::memory_order_acquire)) {
    const bool worked = turn();
    report_failure();
    // After turn(), so that a stop() before it is noticed here, and a later one ends the wait.
    if (worked || stop_.load(std::memory_order_acquire)) continue;
    if (!leaves_to_callers()) {
      sleep(INT64_MAX);
      continue;
    }
    core_lock_->unlock({});
    do {
      core_lock_->sleep();
    } while (core_lock_->try_lock() == nullptr);
  }
  // A caller that has driven the core into a failure may close the communicator at once.
  report_failure();
  take_mail(true);
  core_->fail(Status(ErrorCode::kAborted, "the communicator was closed"));
  finish_operations();
}

void EngineThread::report_failure() {
  if (std::exchange(report_due_, false)) events_.on_failed(explained_);
}

CoreLock::Release EngineThread::drive(const DrivablePart& part, const std::atomic<bool>& done,
                                      int64_t deadline_us) {
  core_lock_->take_notifications();
  const auto ends = [&] { return part.ended || done || stop_.load(std::memory_order_acquire); };
  bool over = ends();
  while (!over) {
    const bool worked = turn();
    over = ends();
    if (deadline_us != INT64_MAX && monotonic_us() >= deadline_us) break;
    if (!worked && !over) sleep(deadline_us);
  }
  const bool in_progress = !quiet();
  // Who waits for a limited time, or polls, comes back soon. Later mail notifies nobody while there is some.
  const bool has_mail = has_mail_.load(std::memory_order_acquire);
  return {.needs_engine =
              (in_progress && over) || has_mail || report_due_ || stop_.load(std::memory_order_acquire),
          .watched = in_progress && !over};
}

// One pass over everything that the core may have to do. False: there was nothing.
bool EngineThread::turn() {
  core_->poll();
  const int64_t now_us = monotonic_us();
  const bool advanced = core_->advance(now_us);
  // Before another rank's failure takes effect, read the results that it has contributed to.
  const bool mail = has_mail_.load(std::memory_order_acquire);
  if (mail) take_mail(!advanced);
  // Timers fire after all arrived packets are handled, because an answer in the socket is not late. The delay is bounded,
  // so that deadlines also hold while packets never stop arriving.
  if (now_us - core_->next_tick_us() >= (advanced ? kTickPatienceUs : 0)) core_->on_tick(now_us);
  fail_if_peer_left(now_us);
  const bool sent = core_->send(now_us);
  note_state();
  core_->report_delivered();
  finish_operations();
  return mail || sent || (advanced && core_->expects_more());
}

// Until something arrives, a timer is due or the limit has passed.
void EngineThread::sleep(int64_t limit_us) {
  int64_t next_us = std::min(limit_us, core_->next_tick_us());
  if (!core_->idle() && core_->status().ok()) next_us = std::min(next_us, left_deadline_us_);
  core_->wait(next_us == INT64_MAX ? INT64_MAX : next_us - monotonic_us());
}

// Nothing is in progress, so the core need not be driven.
bool EngineThread::quiet() const {
  return core_->idle() && core_->next_tick_us() == INT64_MAX && core_->status().ok();
}

bool EngineThread::leaves_to_callers() {
  if (!noted_connected_ || !core_lock_->callers_wait() || !quiet()) return false;
  core_lock_->take_notifications();
  return !has_mail_.load(std::memory_order_acquire) && !stop_.load(std::memory_order_acquire);
}

void EngineThread::take_mail(bool with_failure) {
  std::vector<Submission> submissions;
  std::vector<OperationPtr> ended;
  Status failure;
  {
    const std::lock_guard lock(mutex_);
    submissions.swap(submissions_);
    ended.swap(ended_);
    with_failure |= failure_from_outside_.ok();
    if (with_failure) failure = failure_from_outside_;
    has_mail_.store(!with_failure, std::memory_order_relaxed);
  }
  if (!failure.ok() && core_->status().ok()) {
    noted_failure_ = true;  // the caller of fail() knows it: no report
    core_->fail(failure);
    const std::lock_guard lock(mutex_);
    status_ = failure;
    changed_.notify_all();
  }
  for (Submission& submission : submissions)
    start_part(std::move(submission.operation), std::move(submission.spec));
  for (const OperationPtr& operation : ended) events_.on_ended(*operation);
}

void EngineThread::start_part(OperationPtr operation, OperationSpec&& spec) {
  const uint64_t id = first_id_ + operations_.size();
  operations_.push_back(std::move(operation));
  core_->submit(id, std::move(spec));
}

EngineThread::OperationPtr EngineThread::take_operation(uint64_t id) {
  OperationPtr operation = std::move(operations_[id - first_id_]);
  for (; !operations_.empty() && operations_.front() == nullptr; ++first_id_) operations_.pop_front();
  return operation;
}

void EngineThread::fail_if_peer_left(int64_t now_us) {
  if (!has_left_.load(std::memory_order_acquire) || !core_->status().ok()) return;
  const uint64_t progress = core_->progress();
  if (left_deadline_us_ == INT64_MAX || progress != left_progress_) {
    left_progress_ = progress;
    left_deadline_us_ = now_us + kLeftGraceUs;
  }
  if (now_us < left_deadline_us_ || core_->idle()) return;
  int rank = kNoRank;
  {
    const std::lock_guard lock(mutex_);
    rank = left_rank_;
  }
  core_->fail(Status(
      ErrorCode::kPeerLost,
      "rank " + std::to_string(rank) + " has left the job: this operation cannot end without it", rank));
}

void EngineThread::finish_operations() {
  core_->take_completions(&completions_);
  for (EngineCore::Completion& completion : completions_) {
    const OperationPtr operation = take_operation(completion.id);
    if (!explained_.ok() && completion.status.message() == core_->status().message())
      completion.status = explained_;
    if (operation->end_part(index_, std::move(completion))) events_.on_ended(*operation);
  }
  completions_.clear();
}

// Reports the connection and a failure to waiting threads, once each.
void EngineThread::note_state() {
  if (!noted_connected_) {
    const bool connected = core_->connected();
    std::string reason = connected ? "" : core_->not_connected_reason();
    const std::lock_guard lock(mutex_);
    not_connected_reason_ = std::move(reason);
    noted_connected_ = connected_ = connected;
    if (connected) changed_.notify_all();
  }
  if (noted_failure_ || core_->status().ok()) return;
  noted_failure_ = report_due_ = true;
  explained_ = events_.explain ? events_.explain(core_->status()) : core_->status();
  const std::lock_guard lock(mutex_);
  status_ = explained_;
  changed_.notify_all();
}

}  // namespace netsum
