#include "src/collective/host_engine.h"

#include <algorithm>

#include "src/base/clock.h"
#include "src/collective/engine.h"

namespace netsum {
namespace {

constexpr int64_t kLeftGraceUs = 1'000'000;  // for what it took part in to end here, too
constexpr int64_t kLeastSleepUs = 1'000;

}  // namespace

HostEngine::HostEngine(Placement placement, int world_size, int lane_bits, uint32_t payload_bytes,
                       std::unique_ptr<Segment> segment, Engine* network,
                       std::function<void(const Status&)> on_failed, TraceLog* trace)
    : core_({.placement = std::move(placement),
             .world_size = world_size,
             .lane_bits = lane_bits,
             .payload_bytes = payload_bytes,
             .to_network = [this](PartialSum part) { to_network(std::move(part)); }},
            std::move(segment)),
      network_(network),
      on_failed_(std::move(on_failed)),
      trace_(trace),
      thread_([this] { loop(); }) {}

HostEngine::~HostEngine() {
  stop();
}

void HostEngine::stop() {
  if (!thread_.joinable()) return;
  stop_.store(true, std::memory_order_release);
  wake();
  thread_.join();
}

void HostEngine::wake() {
  core_.bell().ring(Bell::kAnything);
}

Work HostEngine::submit(DataType type, ReduceOp op, std::vector<TensorView> tensors,
                        std::chrono::milliseconds timeout, OnEnd on_end) {
  auto state = std::make_shared<Work::State>();
  const int64_t now_us = monotonic_us();
  {
    const std::lock_guard lock(mutex_);
    submissions_.push_back(
        {state, std::move(on_end), type, op, std::move(tensors), now_us, now_us + timeout.count() * 1000});
    has_mail_.store(true, std::memory_order_release);
  }
  wake();
  return Work(std::move(state));
}

void HostEngine::to_network(PartialSum part) {
  const Work work =
      network_->submit(part.type, part.op, std::move(part.views), std::move(part.joint), part.deadline_us);
  work.on_done([this, slot = part.slot](const Status& status) {
    {
      const std::lock_guard lock(mutex_);
      network_done_.emplace_back(slot, status);
      has_mail_.store(true, std::memory_order_release);
    }
    wake();
  });
}

void HostEngine::fail(const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_from_outside_.ok()) return;
    failure_from_outside_ = status;
    has_mail_.store(true, std::memory_order_release);
  }
  wake();
}

void HostEngine::peer_left(int rank) {
  {
    const std::lock_guard lock(mutex_);
    if (left_rank_ != kNoRank) return;
    left_rank_ = rank;
  }
  left_deadline_us_.store(monotonic_us() + kLeftGraceUs, std::memory_order_release);
  wake();
}

Status HostEngine::status() const {
  const std::lock_guard lock(mutex_);
  return status_.ok() ? failure_from_outside_ : status_;
}

void HostEngine::loop() {
  while (true) {
    const uint32_t rings = core_.bell().rings();  // before we look: what comes later will have rung again
    if (stop_.load(std::memory_order_acquire)) break;
    const bool worked = core_.advance();
    const bool mail = has_mail_.load(std::memory_order_acquire);
    // What all have contributed to is finished before the news of another rank's failure counts.
    if (mail) take_mail(!worked);
    const int64_t now_us = monotonic_us();
    core_.on_tick(now_us);
    fail_if_peer_left(now_us);
    finish_operations();
    if (worked || mail) continue;
    int64_t next_us = core_.next_tick_us();
    if (!core_.idle()) next_us = std::min(next_us, left_deadline_us_.load(std::memory_order_relaxed));
    core_.bell().sleep(rings, core_.awaited(), std::max(next_us - now_us, kLeastSleepUs));
  }
  take_mail(true);
  reported_ = true;  // leaving is no failure
  core_.fail(Status(ErrorCode::kAborted, "the communicator was closed"));
  finish_operations();
}

void HostEngine::take_mail(bool with_failure) {
  std::vector<Submission> submissions;
  std::vector<std::pair<uint32_t, Status>> network_done;
  Status failure;
  {
    const std::lock_guard lock(mutex_);
    submissions.swap(submissions_);
    network_done.swap(network_done_);
    with_failure |= failure_from_outside_.ok();
    if (with_failure) failure = failure_from_outside_;
    has_mail_.store(!with_failure, std::memory_order_relaxed);
  }
  if (!failure.ok() && core_.status().ok()) {
    reported_ = true;  // whoever called fail() knows
    core_.fail(failure);
  }
  for (const auto& [slot, status] : network_done) core_.on_network_done(slot, status);
  for (Submission& submission : submissions) {
    const uint64_t id = next_id_++;
    uint64_t elements = 0;
    for (const TensorView& tensor : submission.tensors) elements += tensor.count;
    works_.emplace(id, InProgress{std::move(submission.work), std::move(submission.on_end), submission.type,
                                  elements, submission.submitted_us});
    core_.submit(id, submission.type, submission.op, std::move(submission.tensors), submission.deadline_us);
  }
}

void HostEngine::fail_if_peer_left(int64_t now_us) {
  if (now_us < left_deadline_us_.load(std::memory_order_acquire) || core_.idle() || !core_.status().ok())
    return;
  int rank = kNoRank;
  {
    const std::lock_guard lock(mutex_);
    rank = left_rank_;
  }
  core_.fail(Status(
      ErrorCode::kPeerLost,
      "rank " + std::to_string(rank) + " has left the job: this operation cannot end without it", rank));
}

void HostEngine::finish_operations() {
  const bool failed = !core_.status().ok();
  if (failed) {
    // Known to all before any operation ends by it.
    const std::lock_guard lock(mutex_);
    status_ = core_.status();
  }
  core_.take_completions(&completions_);
  const int64_t now_us = completions_.empty() ? 0 : monotonic_us();
  for (const HostCore::Completion& completion : completions_) {
    const auto found = works_.find(completion.id);
    const InProgress ended = std::move(found->second);
    works_.erase(found);
    const bool ok = completion.status.ok();
    (ok ? completed_ : failed_).add(now_us - ended.submitted_us);
    if (trace_ != nullptr) {
      trace_->add({.number = completion.id,
                   .type = ended.type,
                   .elements = ended.elements,
                   .submitted_us = ended.submitted_us,
                   .done_us = now_us,
                   .ok = ok});
    }
    if (ended.on_end) ended.on_end(completion.status);
    ended.work->finish(completion.status);
  }
  completions_.clear();
  if (!failed || std::exchange(ended_, true)) return;
  if (network_ != nullptr) network_->fail(core_.status());
  if (!reported_) on_failed_(core_.status());
}

}  // namespace netsum
