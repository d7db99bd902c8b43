// Which thread drives an engine's core: the engine's own, or a caller that submits an operation or waits for one. Whoever
// has the seat has the core to itself. The engine's thread gives it up when nothing is in progress and callers have lately
// waited for their operations at once; it then sleeps until it is called. So a small operation needs no other thread.
//
// A caller that leaves says whether the engine's thread has to go on. One that submits and does not wait would leave an
// operation to nobody: the watchdog, a timer that ticks while callers submit operations, wakes the engine's thread then.
//
// Outlives its engine, because a Work may. Thread rule: any thread, unless noted.
#ifndef NETSUM_ENGINE_DRIVER_SEAT_H_
#define NETSUM_ENGINE_DRIVER_SEAT_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "src/base/file_descriptor.h"

namespace netsum {

class EngineThread;

// Whether callers have lately waited for their operations at once. The threads of an engine share it. Any thread.
class CallerScore {
 public:
  // Of each operation: that it was submitted and, if so, that a caller soon waited for it.
  void note_submission() { add(-kCost); }
  void note_prompt_wait() { add(kCost + 1); }
  bool callers_wait() const { return score_.load(std::memory_order_relaxed) >= kEnough; }
  // After a submission: whether they do no longer.
  bool callers_go_on() const { return score_.load(std::memory_order_relaxed) < kEnough - kCost; }

 private:
  // One operation without a waiter takes three with one, because it may be late by the watchdog's time.
  static constexpr int kCost = 3, kEnough = 8, kMost = 16;

  void add(int change) {
    const int score = score_.load(std::memory_order_relaxed) + change;
    score_.store(std::clamp(score, 0, kMost), std::memory_order_relaxed);
  }

  std::atomic<int> score_{0};  // an estimate: a lost update does not matter
};

class DriverSeat {
 public:
  // After which time a tick of the watchdog finds that an operation is without a driver, how long it ticks, and for how many ticks
  // after the last operation. To set the timer for each operation would cost it a system call, which programs the processor's timer.
  static constexpr int64_t kAloneUs = 500, kTickUs = 2'000;
  static constexpr int kIdleTicks = 8;
  // A caller that begins to wait within this time after submit() has not done anything else. What submit() takes does not
  // count: it sends packets, and where ranks share a core, others run then.
  static constexpr int64_t kPromptUs = 200;

  // The engine's thread has the seat.
  DriverSeat(EngineThread* engine, std::shared_ptr<CallerScore> score);

  // Null: another thread has the seat. The engine exists until leave().
  EngineThread* take() {
    if (taken_.exchange(true, std::memory_order_seq_cst)) return nullptr;
    alone_since_us_.store(0, std::memory_order_relaxed);
    return engine_;
  }
  // As take(). If it returns null, the driver passes the seat on to the engine's thread when it leaves.
  EngineThread* take_or_call();
  struct Leaving {
    // Operations are in progress, or there is something that only the engine's thread does.
    bool needs_engine = false;
    // An operation may have no driver. The watchdog wakes the engine's thread if nobody has taken the seat in kAloneUs or, as it
    // ticks, up to kTickUs more.
    bool watched = false;
  };
  // The engine may end, and cease to exist, before this returns: the caller must share the ownership of the seat.
  void leave(Leaving how);

  // There is something new for the driver. Returns false if a thread has the seat and may have to be woken; otherwise the
  // engine's thread has been woken. Even if the driver leaves without having noticed, the engine's thread goes on.
  bool call();
  // By the driver, which looks at everything new after this.
  void take_calls() { called_.exchange(false, std::memory_order_acq_rel); }

  // The engine's thread, without the seat. Returns when it has been called, or by the watchdog.
  void sleep();
  CallerScore& score() { return *score_; }
  // Whether the engine's thread may expect callers to drive.
  bool callers_wait() const { return can_sleep_ && score_->callers_wait(); }

 private:
  void ring();
  void watch(int64_t now_us);
  bool ends_sleep_at_tick();
  void set_timer(int64_t interval_us);  // 0: it does not tick

  EngineThread* const engine_;
  const std::shared_ptr<CallerScore> score_;
  std::atomic<bool> taken_{true};
  std::atomic<bool> called_{false};
  FileDescriptor bell_, timer_;
  const bool can_sleep_;                    // the descriptors could be made
  std::atomic<int64_t> alone_since_us_{0};  // 0: no operation is without a driver
  std::atomic<bool> watched_{false};        // since the last tick
  std::atomic<bool> ticking_{false};
  int idle_ticks_ = 0;
};

// An engine thread's part of an operation, which a caller who waits for the operation may drive.
struct DrivablePart {
  std::shared_ptr<DriverSeat> seat;
  int64_t submitted_us = 0;           // when submit() ended
  std::atomic<bool> awaited = false;  // a caller has begun to wait
  std::atomic<bool> ended = false;
};

}  // namespace netsum

#endif  // NETSUM_ENGINE_DRIVER_SEAT_H_
