#include "collective/engine.h"

#include <algorithm>
#include <utility>

#include "src/base/clock.h"

namespace netsum {
namespace {

// Timers are delayed for at most this long while arrived packets are handled.
constexpr int64_t kTickPatienceUs = 50'000;
constexpr int64_t kLeftGraceUs = 1'000'000;  // four probes for a lost result

}  // namespace

Engine::Engine(std::unique_ptr<EngineCore> core, std::function<void(const Status&)> on_failed,
               TraceLog* trace)
    : core_(std::move(core)), on_failed_(std::move(on_failed)), trace_(trace), thread_([this] { loop(); }) {}

Engine::~Engine() {
  stop();
}

void Engine::stop() {
  if (!thread_.joinable()) return;
  stop_.store(true, std::memory_order_release);
  core_->wake();
  thread_.join();
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
  {
    const std::lock_guard lock(mutex_);
    submissions_.push_back({state, std::move(on_end), std::move(spec), monotonic_us()});
    has_mail_.store(true, std::memory_order_release);
  }
  core_->wake();
  return Work(std::move(state));
}

void Engine::fail(const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_from_outside_.ok()) return;
    failure_from_outside_ = status;
    has_mail_.store(true, std::memory_order_release);
  }
  core_->wake();
}

void Engine::peer_left(int rank) {
  {
    const std::lock_guard lock(mutex_);
    if (left_rank_ != kNoRank) return;
    left_rank_ = rank;
  }
  left_deadline_us_.store(monotonic_us() + kLeftGraceUs, std::memory_order_release);
  core_->wake();
}

Status Engine::status() const {
  const std::lock_guard lock(mutex_);
  return status_.ok() ? failure_from_outside_ : status_;
}

void Engine::loop() {
  while (true) {
    core_->poll();
    if (stop_.load(std::memory_order_acquire)) break;
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
    if (std::exchange(report_due_, false)) on_failed_(core_->status());
    if (advanced || mail || sent) continue;
    int64_t next_us = core_->next_tick_us();
    if (!core_->idle() && core_->status().ok())
      next_us = std::min(next_us, left_deadline_us_.load(std::memory_order_relaxed));
    core_->wait(next_us == INT64_MAX ? INT64_MAX : next_us - monotonic_us());
  }
  take_mail(true);
  core_->fail(Status(ErrorCode::kAborted, "the communicator was closed"));
  finish_operations();
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
  for (Submission& submission : submissions) {
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
    if (ended.on_end) ended.on_end(completion.status, completion.chunk_map);
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
