// Runs one EngineCore for an Engine: passes operations and failures to it, and completions back. The thread drives the core,
// or a caller does who waits for an operation (core_lock.h).
#ifndef NETSUM_ENGINE_ENGINE_THREAD_H_
#define NETSUM_ENGINE_ENGINE_THREAD_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/core_lock.h"
#include "engine/engine_core.h"
#include "engine/running_operation.h"
#include "netsum/status.h"

namespace netsum {

class EngineThread {
 public:
  using OperationPtr = std::shared_ptr<RunningOperation>;
  struct Events {
    // All parts of the operation have ended. By the thread that drives, never within submit().
    std::function<void(RunningOperation&)> on_ended;
    // As Engine's, on this thread.
    std::function<void(const Status&)> on_failed;
    // What is known beside the failure of the core; null: nothing.
    std::function<Status(const Status&)> explain;
  };

  // It runs the part number `index` of all operations.
  EngineThread(size_t index, std::unique_ptr<EngineCore> core, std::shared_ptr<WaitPredictor> predictor,
               Events events);
  ~EngineThread();  // as stop()

  // Starts the thread. To be called once, before anything else. kResourceExhausted: there is none; only destruction may follow.
  Status begin();
  // These are as those of Engine.
  void stop();
  Status wait_connected(std::chrono::steady_clock::time_point deadline);
  void fail(const Status& status);
  Status status() const;
  void peer_left(int rank);
  // Any thread: there may be something to send, because input has become available.
  void look() { notify_driver(); }

  const std::shared_ptr<CoreLock>& core_lock() const { return core_lock_; }

  // Who starts a part, and drives the core afterwards. If the core is locked, always the thread.
  enum class Start {
    kByThread,
    kHere,           // the caller, and the thread goes on
    kHereForCaller,  // the caller, and the core is left to it
  };
  // Any thread; a caller at a time. True: the part is in progress, and the core has been left to the caller.
  bool submit(const OperationPtr& operation, OperationSpec&& spec, Start start);

  // Only with the core locked. Drives the core until the part has ended, `done`, the deadline has passed or the thread stops; at least
  // once. The caller unlocks the core as the result says, and from then on this may not exist any more.
  CoreLock::Release drive(const DrivablePart& part, const std::atomic<bool>& done, int64_t deadline_us);

 private:
  struct Submission {
    OperationPtr operation;
    OperationSpec spec;
  };

  void loop();
  bool turn();
  void sleep(int64_t limit_us);
  bool quiet() const;
  bool leaves_to_callers();
  void notify_driver();
  bool take_end_of(const OperationPtr& operation);
  void start_part(OperationPtr operation, OperationSpec&& spec);
  OperationPtr take_operation(uint64_t id);
  void take_mail(bool with_failure);
  void fail_if_peer_left(int64_t now_us);
  void finish_operations();
  void note_state();
  // By the thread itself, not by a caller that drives: it may take as long as a call to the control plane.
  void report_failure();

  const size_t index_;
  const std::unique_ptr<EngineCore> core_;
  const Events events_;
  const std::shared_ptr<CoreLock> core_lock_;

  // With the core locked.
  // The first has the id first_id_, and is in progress; null: has ended.
  std::deque<OperationPtr> operations_;
  uint64_t first_id_ = 0;
  std::vector<EngineCore::Completion> completions_;
  bool noted_connected_ = false;
  bool noted_failure_ = false;
  Status explained_;  // the core's status, once it is noted
  // A rank has left: until when operations go on without progress, and what it was before.
  int64_t left_deadline_us_ = INT64_MAX;
  uint64_t left_progress_ = 0;
  // on_failed is still to be called: after the operations have ended, by the thread, because it may take time.
  bool report_due_ = false;

  // The mailbox. `has_mail_` lets the driver check it without the lock.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> has_mail_{false};
  std::atomic<bool> stop_{false};
  std::vector<Submission> submissions_;
  std::vector<OperationPtr> ended_;  // within a submit(), which must not end them
  Status failure_from_outside_;
  int left_rank_ = kNoRank;
  std::atomic<bool> has_left_{false};
  bool connected_ = false;
  Status status_;
  std::string not_connected_reason_ = "its deadline had passed before the first packet was sent";

  std::thread thread_;
};

}  // namespace netsum

#endif  // NETSUM_ENGINE_ENGINE_THREAD_H_
