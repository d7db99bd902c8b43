// CoreLock: exactly one thread polls a core, the engine thread or a caller in Work::wait(). The engine thread unlocks the core
// when nothing is in progress and callers have lately waited for their operations at once. It then sleeps until it is
// notified. So a small operation needs no other thread.
//
// Who unlocks the core decides whether the engine thread must continue. A caller may submit and never wait; a watchdog, a timer
// that ticks while callers submit operations, then wakes the engine thread.
//
// Outlives its engine, because a Work may. Thread rule: any thread, unless noted.
#ifndef NETSUM_ENGINE_CORE_LOCK_H_
#define NETSUM_ENGINE_CORE_LOCK_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "src/base/file_descriptor.h"

namespace netsum {

class EngineThread;

// Predicts whether callers wait for their operations at once, from what they have done lately. The threads of an engine share
// it. Any thread.
class WaitPredictor {
 public:
  // Of each operation: that it was submitted and, if so, that a caller soon waited for it.
  void note_submission() { add(-kCost); }
  void note_prompt_wait() { add(kCost + 1); }
  bool expects_wait() const { return level_.load(std::memory_order_relaxed) >= kEnough; }
  // After a submission: whether they have stopped waiting.
  bool expects_no_wait() const { return level_.load(std::memory_order_relaxed) < kEnough - kCost; }

 private:
  // One operation without a waiter outweighs three with one, because it may be late by the watchdog's time.
  static constexpr int kCost = 3, kEnough = 8, kMost = 16;

  void add(int change) {
    const int level = level_.load(std::memory_order_relaxed) + change;
    level_.store(std::clamp(level, 0, kMost), std::memory_order_relaxed);
  }

  std::atomic<int> level_{0};  // an estimate: a lost update does not matter
};

class CoreLock {
 public:
  // After which time a tick of the watchdog finds that no thread polls for an operation, how long it ticks, and for how many
  // ticks after the last operation. To set the timer for each operation would cost it a system call, which programs the processor's timer.
  static constexpr int64_t kAloneUs = 500, kTickUs = 2'000;
  static constexpr int kIdleTicks = 8;
  // A caller that begins to wait within this time after submit() has not done anything else. What submit() takes does not
  // count: it sends packets, and where ranks share a core, others run then.
  static constexpr int64_t kPromptUs = 200;

  // Locked by the engine thread.
  CoreLock(EngineThread* engine, std::shared_ptr<WaitPredictor> predictor);

  // Null: another thread has locked it. The engine exists until unlock().
  EngineThread* try_lock() {
    if (locked_.exchange(true, std::memory_order_seq_cst)) return nullptr;
    alone_since_us_.store(0, std::memory_order_relaxed);
    return engine_;
  }
  // As try_lock(). If it returns null, unlock() of the other thread wakes the engine thread.
  EngineThread* lock_or_notify();
  struct Release {
    // Operations are in progress, or there is something that only the engine thread does.
    bool needs_engine = false;
    // Perhaps no thread polls for an operation. The watchdog wakes the engine thread if none has locked the core in kAloneUs
    // or, as it ticks, up to kTickUs more.
    bool watched = false;
  };
  // The engine may end, and cease to exist, before this returns: the caller must share the ownership of the lock.
  void unlock(Release how);

  // There is something new for the thread that polls. Returns false if the core is locked, so that that thread may have to be
  // woken; otherwise the engine thread has been woken. It also continues if the other thread unlocks without having noticed.
  bool notify();
  // By the thread that polls, which looks at everything new after this.
  void take_notifications() { notified_.exchange(false, std::memory_order_acq_rel); }

  // The engine thread, without the lock. Returns when it has been notified, or by the watchdog.
  void sleep();
  WaitPredictor& predictor() { return *predictor_; }
  // Whether the engine thread may expect callers to poll.
  bool callers_wait() const { return can_sleep_ && predictor_->expects_wait(); }

 private:
  void wake();
  void watch(int64_t now_us);
  bool ends_sleep_at_tick();
  void set_timer(int64_t interval_us);  // 0: it does not tick

  EngineThread* const engine_;
  const std::shared_ptr<WaitPredictor> predictor_;
  std::atomic<bool> locked_{true};
  std::atomic<bool> notified_{false};
  FileDescriptor wake_fd_, timer_;
  const bool can_sleep_;                    // the descriptors could be made
  std::atomic<int64_t> alone_since_us_{0};  // 0: a thread polls, or need not
  std::atomic<bool> watched_{false};        // since the last tick
  std::atomic<bool> ticking_{false};
  int idle_ticks_ = 0;
};

// An engine thread's part of an operation, which a caller who waits for the operation may drive.
struct DrivablePart {
  std::shared_ptr<CoreLock> core_lock;
  int64_t submitted_us = 0;           // when submit() ended
  std::atomic<bool> awaited = false;  // a caller has begun to wait
  std::atomic<bool> ended = false;
};

}  // namespace netsum

#endif  // NETSUM_ENGINE_CORE_LOCK_H_
