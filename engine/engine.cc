#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "src/base/clock.h"

namespace netsum {
namespace {

// Larger operations take much longer than it takes to wake the engine's thread, which goes on while the caller computes.
constexpr uint64_t kMostBytesOfCaller = 256 << 10;

std::vector<std::unique_ptr<EngineCore>> only(std::unique_ptr<EngineCore> core) {
  std::vector<std::unique_ptr<EngineCore>> cores;
  cores.push_back(std::move(core));
  return cores;
}

}  // namespace

Engine::Engine(std::vector<std::unique_ptr<EngineCore>> cores, std::function<void(const Status&)> on_failed,
               TraceLog* trace)
    : on_failed_(std::move(on_failed)), trace_(trace) {
  const auto predictor = std::make_shared<WaitPredictor>();
  for (auto& core : cores) {
    const size_t index = threads_.size();
    threads_.push_back(std::make_unique<EngineThread>(
        index, std::move(core), predictor,
        EngineThread::Events{
            .on_ended = [this](RunningOperation& operation) { end(operation); },
            .on_failed = [this, index](const Status& status) { on_core_failed(index, status); },
            .explain = [this](const Status& status) { return explain(status); }}));
  }
}

Engine::Engine(std::unique_ptr<EngineCore> core, std::function<void(const Status&)> on_failed,
               TraceLog* trace)
    : Engine(only(std::move(core)), std::move(on_failed), trace) {}

Engine::~Engine() {
  stop();
}

Status Engine::start() {
  for (auto& thread : threads_)
    if (Status status = thread->begin(); !status.ok()) return status;
  return Status();
}

void Engine::stop() {
  for (auto& thread : threads_) thread->stop();
}

Status Engine::wait_connected(std::chrono::steady_clock::time_point deadline) {
  Status status;
  for (auto& thread : threads_) {
    if (status.ok()) status = thread->wait_connected(deadline);
  }
  return status;
}

Work Engine::submit(OperationSpec&& spec, OnEnd on_end, OperationCounts* counts) {
  using Start = EngineThread::Start;
  in_flight_.fetch_add(1, std::memory_order_relaxed);
  const auto operation = std::make_shared<RunningOperation>(spec, std::move(on_end), counts, threads_.size());
  for (size_t i = 0; i < threads_.size(); ++i) operation->part(i).core_lock = threads_[i]->core_lock();
  threads_.front()->core_lock()->predictor().note_submission();
  const bool small = operation->elements * size_of(spec.type) <= kMostBytesOfCaller;
  if (operation->watermarks != nullptr)
    operation->watermarks->state().begin(threads_.size(), [this] {
      for (auto& thread : threads_) thread->look();
    });
  std::unique_lock order(order_mutex_, std::defer_lock);
  if (threads_.size() > 1) order.lock();
  // A caller can drive one core only.
  size_t callers = threads_.size();
  for (size_t i = 0; i < threads_.size(); ++i) {
    const bool last = i + 1 == threads_.size();
    const Start start = !small                      ? Start::kByThread
                        : callers < threads_.size() ? Start::kHere
                                                    : Start::kHereForCaller;
    const bool is_left = last ? threads_[i]->submit(operation, std::move(spec), start)
                              : threads_[i]->submit(operation, OperationSpec(spec), start);
    if (is_left) callers = i;
  }
  DrivablePart& part = operation->part(callers % threads_.size());
  part.submitted_us = monotonic_us();
  operation->work.part = &part;
  return Work(std::shared_ptr<Work::State>(operation, &operation->work));
}

void Engine::fail(const Status& status) {
  for (auto& thread : threads_) thread->fail(status);
}

Status Engine::status() const {
  for (const auto& thread : threads_) {
    if (Status status = thread->status(); !status.ok()) return status;
  }
  return Status();
}

void Engine::set_hang(std::function<std::string()> hang) {
  const std::lock_guard lock(hang_mutex_);
  hang_ = std::move(hang);
}

// An operation that is not finished by its deadline.
Status Engine::explain(const Status& status) const {
  const std::lock_guard lock(hang_mutex_);
  const std::string hang = status.code() == ErrorCode::kTimeout && hang_ ? hang_() : "";
  return hang.empty() ? status : Status(status.code(), status.message() + "; " + hang, status.rank());
}

void Engine::flush(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(ends_mutex_);
  quiet_.wait_until(lock, deadline, [this] { return in_flight_ == 0; });
}

void Engine::peer_left(int rank) {
  for (auto& thread : threads_) thread->peer_left(rank);
}

void Engine::on_core_failed(size_t index, const Status& status) {
  for (size_t other = 0; other < threads_.size(); ++other)
    if (other != index) threads_[other]->fail(status);
  if (!reported_.exchange(true)) on_failed_(status);
}

void Engine::end(RunningOperation& operation) {
  note_end(operation);
  const EngineCore::Completion& completion = operation.completion();
  if (OperationCounts* const counts = operation.counts; counts != nullptr)
    (completion.status.ok() ? counts->completed : counts->failed).fetch_add(1, std::memory_order_relaxed);
  if (operation.watermarks != nullptr) {
    // Before the engine can cease to exist.
    operation.watermarks->state().end();
    if (completion.status.ok())
      operation.watermarks->state().end_delivered(operation.elements * size_of(operation.type));
  }
  if (operation.on_end) operation.on_end(completion.status, completion.everywhere);
  operation.on_end = nullptr;  // with what it refers to
  operation.work.finish(completion.status);
}

void Engine::note_end(const RunningOperation& operation) {
  const EngineCore::Completion& completion = operation.completion();
  const OperationCourse& course = completion.course;
  const bool ok = completion.status.ok();
  const int64_t now_us = monotonic_us();
  const std::lock_guard lock(ends_mutex_);
  (ok ? completed_ : failed_).add(now_us - operation.submitted_us);
  if (in_flight_.fetch_sub(1, std::memory_order_relaxed) == 1) quiet_.notify_all();
  if (trace_ == nullptr) return;
  trace_->add({.collective = collective_name(operation.collective),
               .number = completion.number,
               .tensor_id = operation.tensor_id,
               .type = operation.type,
               .elements = operation.elements,
               .submitted_us = operation.submitted_us,
               .first_scale_us = course.first_scale_us,
               .scales_agreed_us = course.scales_agreed_us,
               .first_data_us = course.first_data_us,
               .done_us = now_us,
               .packets = course.packets,
               .retransmissions = course.retransmissions,
               .ok = ok});
}

}  // namespace netsum
