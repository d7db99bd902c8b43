// The shared part of a Work handle.
#ifndef NETSUM_ENGINE_WORK_STATE_H_
#define NETSUM_ENGINE_WORK_STATE_H_

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "engine/core_lock.h"
#include "netsum/communicator.h"
#include "src/base/forked_children.h"

namespace netsum {

struct Work::State {
  std::mutex mutex;
  std::condition_variable changed;
  Status status;                   // set once, before `done`
  std::atomic<bool> done = false;  // set with the lock
  std::function<void(const Status&)> callback;
  const pid_t process = forked_children::process_id();  // which ends it

  // Of the operation; null: a thread that waits cannot drive it.
  DrivablePart* part = nullptr;
  std::shared_ptr<const void> part_owner;  // null: `part` lives as long as this

  // From now on, a thread that waits for this drives the engine of `inner`, whose end also ends this operation.
  void wait_by(const Work& inner);
  void finish(const Status& result);
  // In a child that was forked since it was started, where nothing ends it: its status, if it had ended. Never blocks: a thread
  // that the child lacks may have locked the mutex.
  bool is_forked() const { return forked_children::process_id() != process; }
  Status status_in_child();
  // By a thread that is going to wait until the deadline: drives the engine, if no other thread does.
  void drive(int64_t deadline_us);
};

// Called with the status of an operation by the thread that drives the engine (its own, or one in Work::wait(); never within
// submit()), after the engine's last access to the tensors and before the Work counts as done. All ranks have finished the
// operations below number `everywhere` that have ended here; 0: unknown. Must not block.
using OnEnd = std::function<void(const Status& status, uint64_t everywhere)>;

// For a child, of what belongs to the process `owner`: "the <what> belongs to process ...: <advice>".
Status refusal_in_child(const std::string& what, pid_t owner, const std::string& advice);
// As Work::wait(), for a time in microseconds.
Status wait_us(const Work& work, int64_t timeout_us);
// An operation that ended before it was started.
Work ended_work(const Status& status);

}  // namespace netsum

#endif  // NETSUM_ENGINE_WORK_STATE_H_
