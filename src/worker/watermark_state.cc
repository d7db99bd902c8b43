#include "src/worker/watermark_state.h"

#include <algorithm>
#include <string>
#include <utility>

namespace netsum {

Watermarks::Watermarks() : Watermarks(0, {}) {}

Watermarks::Watermarks(size_t step, OnDelivered on_delivered)
    : state_(std::make_unique<State>(step, std::move(on_delivered))) {}

Watermarks::~Watermarks() = default;

void Watermarks::make_available(size_t bytes) {
  state_->make_available(bytes);
}

void Watermarks::fail(const Status& status) {
  state_->fail(status);
}

size_t Watermarks::available() const {
  return state_->available();
}

size_t Watermarks::delivered() const {
  return state_->delivered();
}

// In a child, nothing executes the operation, and a thread that the child lacks may have locked the mutex.
void Watermarks::State::make_available(size_t bytes) {
  if (is_forked()) return;
  const std::lock_guard lock(mutex_);
  if (bytes <= available_.load(std::memory_order_relaxed)) return;
  if (keep_) keep_(bytes);
  available_.store(bytes, std::memory_order_release);
  changed_.notify_all();
  if (wake_) wake_();
}

void Watermarks::State::fail(const Status& status) {
  if (is_forked()) return;
  const std::lock_guard lock(mutex_);
  if (failed_.load(std::memory_order_relaxed)) return;
  const bool moves_the_job =
      status.code() == ErrorCode::kAggregatorLost || status.code() == ErrorCode::kWrongSum;
  failure_ = status.ok() || moves_the_job
                 ? Status(ErrorCode::kAborted, "the caller has failed the operation: " + status.to_string())
                 : status;
  failed_.store(true, std::memory_order_release);
  changed_.notify_all();
  if (wake_) wake_();
}

Status Watermarks::State::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Watermarks::State::keep_input(std::function<void(size_t)> keep) {
  const std::lock_guard lock(mutex_);
  keep_ = std::move(keep);
  const size_t there = available_.load(std::memory_order_relaxed);
  if (keep_ && there > 0) keep_(there);
}

Status Watermarks::State::wait_available(size_t bytes, std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  const auto is_there = [&] { return failed_.load(std::memory_order_relaxed) || available() >= bytes; };
  if (changed_.wait_until(lock, deadline, is_there)) return failure_;
  return {ErrorCode::kTimeout, "this rank has made available " + std::to_string(available()) +
                                   " bytes of the input, and " + std::to_string(bytes) + " are needed"};
}

void Watermarks::State::begin(size_t parts, std::function<void()> wake) {
  const std::lock_guard lock(mutex_);
  for (auto& delivered : delivered_by_part_) delivered.store(0, std::memory_order_relaxed);
  parts_.store(parts, std::memory_order_relaxed);
  wake_ = std::move(wake);
}

// Of two cores that advance at the same time, one at least sees what both have delivered, because each stores before it reads.
void Watermarks::State::note_delivered(size_t part, size_t bytes) {
  delivered_by_part_[part].store(bytes, std::memory_order_seq_cst);
  size_t least = bytes;
  for (size_t i = 0; i < parts_.load(std::memory_order_relaxed); ++i)
    least = std::min(least, delivered_by_part_[i].load(std::memory_order_seq_cst));
  raise_delivered(least);
}

void Watermarks::State::raise_delivered(size_t bytes) {
  size_t before = delivered_.load(std::memory_order_relaxed);
  while (before < bytes && !delivered_.compare_exchange_weak(before, bytes, std::memory_order_acq_rel)) {
  }
}

void Watermarks::State::report(bool all) {
  const std::lock_guard lock(report_mutex_);
  const size_t bytes = delivered();
  if (reported_all_ || (!all && !is_step(bytes))) return;
  reported_all_ = all;
  if (all && bytes > 0 && bytes == reported_.load(std::memory_order_relaxed))
    return;  // the last step has told it
  reported_.store(bytes, std::memory_order_relaxed);
  on_delivered_(bytes);
}

void Watermarks::State::end() {
  const std::lock_guard lock(mutex_);
  wake_ = nullptr;
}

void Watermarks::State::end_delivered(size_t bytes) {
  raise_delivered(bytes);
  if (on_delivered_) report(true);
}

}  // namespace netsum
