#include <algorithm>

#include "engine/engine_thread.h"
#include "engine/work_state.h"
#include "src/base/assert.h"
#include "src/base/clock.h"
#include "src/base/timeout.h"

namespace netsum {

void Work::State::finish(const Status& result) {
  std::function<void(const Status&)> to_call;
  {
    const std::lock_guard lock(mutex);
    NETSUM_ASSERT(!done);
    status = result;
    done = true;
    to_call = std::move(callback);
    callback = nullptr;
  }
  changed.notify_all();
  if (to_call) to_call(result);
}

void Work::State::wait_by(const Work& inner) {
  DrivablePart* its = nullptr;
  std::shared_ptr<const void> its_owner;
  {
    const std::lock_guard lock(inner.state_->mutex);
    its = inner.state_->part;
    its_owner = inner.state_->part_owner;
  }
  const std::lock_guard lock(mutex);
  part = its;
  part_owner = its_owner != nullptr ? std::move(its_owner) : inner.state_;
}

void Work::State::drive(int64_t deadline_us) {
  DrivablePart* mine = nullptr;
  std::shared_ptr<const void> owner;
  {
    const std::lock_guard lock(mutex);
    mine = part;
    owner = part_owner;
  }
  if (mine == nullptr) return;
  const int64_t now_us = monotonic_us();
  if (now_us - mine->submitted_us <= CoreLock::kPromptUs && !mine->awaited.exchange(true))
    mine->core_lock->predictor().note_prompt_wait();
  if (done || mine->ended) return;
  // One that polls does not make another driver leave.
  EngineThread* const engine =
      now_us < deadline_us ? mine->core_lock->lock_or_notify() : mine->core_lock->try_lock();
  if (engine != nullptr) mine->core_lock->unlock(engine->drive(*mine, done, deadline_us));
}

Status Work::State::status_in_child() {
  const std::unique_lock lock(mutex, std::try_to_lock);
  return lock && done ? status : refusal_in_child("operation", process, "wait for it there");
}

Status refusal_in_child(const std::string& what, pid_t owner, const std::string& advice) {
  return Status(ErrorCode::kAborted,
                "the " + what + " belongs to process " + std::to_string(owner) + ", from which this one (" +
                    std::to_string(forked_children::process_id()) + ") was forked since: " + advice);
}

Work ended_work(const Status& status) {
  auto state = std::make_shared<Work::State>();
  state->finish(status);
  return Work(std::move(state));
}

bool Work::done() const {
  return state_->done || state_->is_forked();
}

Status Work::wait() const {
  if (state_->is_forked()) return state_->status_in_child();
  // Terminates, because the engine ends every operation by its deadline.
  state_->drive(INT64_MAX);
  if (state_->done) return state_->status;
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->done.load(); });
  return state_->status;
}

Status Work::wait(std::chrono::milliseconds timeout) const {
  return wait_us(*this, std::chrono::microseconds(bounded(timeout)).count());
}

namespace {

// An explicit instantiation may name a private member: so the public header need not name wait_us().
const std::shared_ptr<Work::State>& state_of(const Work& work);
template <std::shared_ptr<Work::State> Work::*kMember>
struct StateOf {
  friend const std::shared_ptr<Work::State>& state_of(const Work& work) { return work.*kMember; }
};
template struct StateOf<&Work::state_>;

}  // namespace

Status wait_us(const Work& work, int64_t timeout_us) {
  Work::State& state = *state_of(work);
  if (state.is_forked()) return state.status_in_child();
  timeout_us = std::clamp<int64_t>(timeout_us, 0, std::chrono::microseconds(kLongestTimeout).count());
  const int64_t deadline_us = monotonic_us() + timeout_us;
  state.drive(deadline_us);
  std::unique_lock lock(state.mutex);
  const auto is_done = [&] { return state.done.load(); };
  const std::chrono::steady_clock::time_point deadline{std::chrono::microseconds(deadline_us)};
  // For one that polls, a system call less.
  if (!(timeout_us > 0 ? state.changed.wait_until(lock, deadline, is_done) : is_done())) {
    const bool is_short = timeout_us % 1000 != 0;
    return Status(ErrorCode::kTimeout, "the operation is still in progress after waiting for " +
                                           std::to_string(is_short ? timeout_us : timeout_us / 1000) +
                                           (is_short ? " us" : " ms"));
  }
  return state.status;
}

void Work::on_done(std::function<void(const Status&)> callback) const {
  if (state_->is_forked()) return callback(state_->status_in_child());
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->done) {
      NETSUM_ASSERT(!state_->callback);
      state_->callback = std::move(callback);
      return;
    }
  }
  callback(state_->status);
}

}  // namespace netsum
