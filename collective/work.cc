#include "collective/work_state.h"
#include "src/base/assert.h"
#include "src/base/timeout.h"

namespace netsum {

void Work::State::finish(const Status& result) {
  std::function<void(const Status&)> to_call;
  {
    const std::lock_guard lock(mutex);
    NETSUM_ASSERT(!done);
    done = true;
    status = result;
    to_call = std::move(callback);
    callback = nullptr;
  }
  changed.notify_all();
  if (to_call) to_call(result);
}

Work ended_work(const Status& status) {
  auto state = std::make_shared<Work::State>();
  state->finish(status);
  return Work(std::move(state));
}

bool Work::done() const {
  const std::lock_guard lock(state_->mutex);
  return state_->done;
}

Status Work::wait() const {
  // Terminates, because the engine ends every operation by its deadline.
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->done; });
  return state_->status;
}

Status Work::wait(std::chrono::milliseconds timeout) const {
  std::unique_lock lock(state_->mutex);
  if (!state_->changed.wait_for(lock, bounded(timeout), [&] { return state_->done; })) {
    return Status(ErrorCode::kTimeout, "the operation is still in progress after waiting for " +
                                           std::to_string(timeout.count()) + " ms");
  }
  return state_->status;
}

void Work::on_done(std::function<void(const Status&)> callback) const {
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
