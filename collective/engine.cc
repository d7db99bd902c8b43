#include "collective/engine.h"

#include <algorithm>
#include <utility>

#include "src/base/clock.h"

namespace netsum {
namespace {

// Timers are delayed for at most this long while arrived packets are handled.
constexpr int64_t kTickPatienceUs = 50'000;
constexpr int64_t kLeftGraceUs = 1'000'000;  // four probes for a lost result
// Larger operations take much longer than it takes to wake the engine's thread, which goes on while the caller computes.
constexpr uint64_t kMostBytesOfCaller = 256 << 10;

uint64_t bytes_of(const OperationSpec& spec) {
  uint64_t bytes = 0;
  for (const TensorView& tensor : spec.tensors) bytes += tensor.count * size_of(spec.type);
  return bytes;
}

}  // namespace

Engine::Engine(std::unique_ptr<EngineCore> core, std::function<void(const Status&)> on_failed,
               TraceLog* trace)
    : core_(std::move(core)),
      on_failed_(std::move(on_failed)),
      trace_(trace),
      seat_(std::make_shared<DriverSeat>(this)),
      thread_([this] { loop(); }) {}

Engine::~Engine() {
  stop();
}

void Engine::stop() {
  if (!thread_.joinable()) return;
  stop_.store(true, std::memory_order_release);
  notify_driver();
  thread_.join();
}

// Something for the driver has been stored.
void Engine::notify_driver() {
  if (!seat_->call()) core_->wake();
}

Status Engine::wait_connected(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return connected_ || !status_.ok(); });
  if (!status_.ok()) return status_;
  if (connected_) return Status();
  return Status(ErrorCode::kUnreachable, not_connected_reason_);
}

Work Engine::submit(OperationSpec spec, OnEnd on_end) {
  auto state = std::make_shared<Work::State>();
  state->seat = seat_;
  state->submitted_us = monotonic_us();
  seat_->note_submission();
  Submission submission{state, std::move(on_end), std::move(spec), state->submitted_us};
  if (start_here(&submission)) return Work(std::move(state));
  {
    const std::lock_guard lock(mutex_);
    submissions_.push_back(std::move(submission));
    has_mail_.store(true, std::memory_order_release);
  }
  notify_driver();
  return Work(std::move(state));
}

// Starts a small operation on the caller's thread and sends its first packets, if nobody drives.
bool Engine::start_here(Submission* submission) {
  if (bytes_of(submission->spec) > kMostBytesOfCaller || seat_->take() == nullptr) return false;
  const bool first_in_line = !has_mail_.load(std::memory_order_acquire);
  if (first_in_line) {
    const int64_t now_us = submission->submitted_us;
    start(std::move(*submission));
    while (core_->advance(now_us)) {
    }
    core_->send(now_us);
  }
  seat_->leave(seat_->callers_go_on());
  if (first_in_line) seat_->watch(monotonic_us());
  return first_in_line;
}

void Engine::fail(const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_from_outside_.ok()) return;
    failure_from_outside_ = status;
    has_mail_.store(true, std::memory_order_release);
  }
  notify_driver();
}

void Engine::peer_left(int rank) {
  {
    const std::lock_guard lock(mutex_);
    if (left_rank_ != kNoRank) return;
    left_rank_ = rank;
  }
  left_deadline_us_.store(monotonic_us() + kLeftGraceUs, std::memory_order_release);
  notify_driver();
}

Status Engine::status() const {
  const std::lock_guard lock(mutex_);
  return status_.ok() ? failure_from_outside_ : status_;
}

// Has the seat, at first and whenever it does anything, and keeps it when it ends.
void Engine::loop() {
  while (!stop_.load(std::memory_order_acquire)) {
    const bool worked = turn();
    if (std::exchange(report_due_, false)) on_failed_(core_->status());
    // After turn(), so that a stop() before it is noticed here, and a later one ends the wait.
    if (worked || stop_.load(std::memory_order_acquire)) continue;
    if (!leaves_to_callers()) {
      sleep(INT64_MAX);
      continue;
    }
    seat_->leave(false);
    do {
      seat_->sleep();
    } while (seat_->take() == nullptr);
  }
  take_mail(true);
  core_->fail(Status(ErrorCode::kAborted, "the communicator was closed"));
  finish_operations();
}

void Engine::drive(const Work::State& work, int64_t deadline_us) {
  seat_->take_calls();
  const auto ends = [&] { return work.done || stop_.load(std::memory_order_acquire); };
  while (!ends() && monotonic_us() < deadline_us) {
    if (!turn() && !ends()) sleep(deadline_us);
  }
  seat_->leave(!quiet() || report_due_ || stop_.load(std::memory_order_acquire));
}

// One pass over everything that the core may have to do. False: there was nothing.
bool Engine::turn() {
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
  finish_operations();
  return advanced || mail || sent;
}

// Until something arrives, a timer is due or the limit has passed.
void Engine::sleep(int64_t limit_us) {
  int64_t next_us = std::min(limit_us, core_->next_tick_us());
  if (!core_->idle() && core_->status().ok())
    next_us = std::min(next_us, left_deadline_us_.load(std::memory_order_relaxed));
  core_->wait(next_us == INT64_MAX ? INT64_MAX : next_us - monotonic_us());
}

// Nothing is in progress, so the core need not be driven.
bool Engine::quiet() const {
  return core_->idle() && core_->next_tick_us() == INT64_MAX && core_->status().ok();
}

bool Engine::leaves_to_callers() {
  if (!noted_connected_ || !seat_->callers_wait() || !quiet()) return false;
  seat_->take_calls();
  return !has_mail_.load(std::memory_order_acquire) && !stop_.load(std::memory_order_acquire);
}

void Engine::take_mail(bool with_failure) {
  std::vector<Submission> submissions;
  Status failure;
  {
    const std::lock_guard lock(mutex_);
    submissions.swap(submissions_);
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
  for (Submission& submission : submissions) start(std::move(submission));
}

void Engine::start(Submission submission) {
  const uint64_t id = next_id_++;
  uint64_t elements = 0;
  const OperationSpec& spec = submission.spec;
  for (const TensorView& tensor : spec.tensors) elements += tensor.count;
  works_.emplace(id, InProgress{.work = std::move(submission.work),
                                .on_end = std::move(submission.on_end),
                                .collective = spec.role.collective,
                                .type = spec.type,
                                .elements = elements,
                                .tensor_id = spec.tensors.empty() ? 0 : spec.tensors.front().id,
                                .submitted_us = submission.submitted_us});
  core_->submit(id, std::move(submission.spec));
}

void Engine::fail_if_peer_left(int64_t now_us) {
  if (now_us < left_deadline_us_.load(std::memory_order_acquire) || core_->idle() || !core_->status().ok())
    return;
  int rank = kNoRank;
  {
    const std::lock_guard lock(mutex_);
    rank = left_rank_;
  }
  core_->fail(Status(
      ErrorCode::kPeerLost,
      "rank " + std::to_string(rank) + " has left the job: this operation cannot end without it", rank));
}

void Engine::finish_operations() {
  core_->take_completions(&completions_);
  const int64_t now_us = completions_.empty() ? 0 : monotonic_us();
  for (const EngineCore::Completion& completion : completions_) {
    const auto found = works_.find(completion.id);
    const InProgress ended = std::move(found->second);
    works_.erase(found);
    note_end(ended, completion, now_us);
    if (ended.on_end) ended.on_end(completion.status, completion.everywhere);
    ended.work->finish(completion.status);
  }
  completions_.clear();
}

void Engine::note_end(const InProgress& ended, const EngineCore::Completion& completion, int64_t now_us) {
  const bool ok = completion.status.ok();
  (ok ? completed_ : failed_).add(now_us - ended.submitted_us);
  if (trace_ == nullptr) return;
  const OperationCourse& course = completion.course;
  trace_->add({.collective = collective_name(ended.collective),
               .number = completion.number,
               .tensor_id = ended.tensor_id,
               .type = ended.type,
               .elements = ended.elements,
               .submitted_us = ended.submitted_us,
               .first_scale_us = course.first_scale_us,
               .scales_agreed_us = course.scales_agreed_us,
               .first_data_us = course.first_data_us,
               .done_us = now_us,
               .packets = course.packets,
               .retransmissions = course.retransmissions,
               .ok = ok});
}

// Reports the connection and a failure to waiting threads, once each.
void Engine::note_state() {
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
  const std::lock_guard lock(mutex_);
  status_ = core_->status();
  changed_.notify_all();
}

}  // namespace netsum
