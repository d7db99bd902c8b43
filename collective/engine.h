// Runs an EngineCore: passes operations and failures to it, and completions back. The engine's thread drives the core, or a
// caller does who waits for an operation (driver_seat.h).
#ifndef NETSUM_COLLECTIVE_ENGINE_H_
#define NETSUM_COLLECTIVE_ENGINE_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "collective/driver_seat.h"
#include "collective/engine_core.h"
#include "collective/work_state.h"
#include "netsum/communicator.h"
#include "src/base/histogram.h"
#include "src/telemetry/trace.h"

namespace netsum {

class Engine {
 public:
  // `on_failed` is called once, on the engine's thread, when the core fails by itself (not by fail()), after all
  // operations have ended. `trace`, which may be null, gets a record of every operation, from whoever drives.
  Engine(std::unique_ptr<EngineCore> core, std::function<void(const Status&)> on_failed,
         TraceLog* trace = nullptr);
  ~Engine();  // as stop()

  // Ends the thread; operations in flight end with kAborted. The core stays until destruction.
  void stop();

  // Waits until every data path has answered. Errors: kUnreachable, or what fail() was called with.
  Status wait_connected(std::chrono::steady_clock::time_point deadline);

  // Any thread. The deadline is in the time base of monotonic_us(). Sends a small operation at once if nobody drives; never
  // calls an OnEnd.
  Work submit(OperationSpec spec, OnEnd on_end = {});
  // Any thread. The first failure counts.
  void fail(const Status& status);
  Status status() const;
  // Only with the seat of this engine, which it gives up. Drives the core until `work` is done, the deadline has passed or
  // the engine stops.
  void drive(const Work::State& work, int64_t deadline_us);
  // Any thread. `rank` has left the job in good order. Operations that still need it fail after a grace period, during
  // which the results of its last operations arrive.
  void peer_left(int rank);

  // From submission to end. Any thread.
  const Histogram& completed() const { return completed_; }
  const Histogram& failed() const { return failed_; }

 private:
  struct Submission {
    std::shared_ptr<Work::State> work;
    OnEnd on_end;
    OperationSpec spec;
    int64_t submitted_us;
  };
  struct InProgress {
    std::shared_ptr<Work::State> work;
    OnEnd on_end;
    Collective collective;
    DataType type;
    uint64_t elements;
    uint64_t tensor_id;  // of the first tensor
    int64_t submitted_us;
  };

  void loop();
  bool turn();
  void sleep(int64_t limit_us);
  bool quiet() const;
  bool leaves_to_callers();
  void notify_driver();
  bool start_here(Submission* submission);
  void start(Submission submission);
  void take_mail(bool with_failure);
  void fail_if_peer_left(int64_t now_us);
  void finish_operations();
  void note_end(const InProgress& ended, const EngineCore::Completion& completion, int64_t now_us);
  void note_state();

  const std::unique_ptr<EngineCore> core_;
  const std::function<void(const Status&)> on_failed_;
  TraceLog* const trace_;
  Histogram completed_, failed_;
  const std::shared_ptr<DriverSeat> seat_;

  // Used by whoever has the seat.
  std::unordered_map<uint64_t, InProgress> works_;
  uint64_t next_id_ = 0;
  std::vector<EngineCore::Completion> completions_;
  bool noted_connected_ = false;
  bool noted_failure_ = false;
  // on_failed_ is still to be called: after the operations have ended, by the engine's thread, because it may take time.
  bool report_due_ = false;

  // The mailbox. `has_mail_` lets the driver check it without the lock.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> has_mail_{false};
  std::atomic<bool> stop_{false};
  std::vector<Submission> submissions_;
  Status failure_from_outside_;
  int left_rank_ = kNoRank;
  std::atomic<int64_t> left_deadline_us_{INT64_MAX};
  bool connected_ = false;
  Status status_;
  std::string not_connected_reason_ = "its deadline had passed before the first packet was sent";

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace netsum

#endif  // NETSUM_COLLECTIVE_ENGINE_H_
