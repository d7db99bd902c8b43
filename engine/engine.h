// Runs operations over one or several EngineCores, each with a thread of its own (engine_thread.h). Every core takes all
// operations, in the same order, and does a part of each: the stripes are divided among them. An operation ends when
// all its parts have; what fails one core fails all.
//
// Threads share nothing while packets flow. An operation passes through a lock at its begin and at the end of each part.
#ifndef NETSUM_ENGINE_ENGINE_H_
#define NETSUM_ENGINE_ENGINE_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/engine_core.h"
#include "engine/engine_thread.h"
#include "engine/running_operation.h"
#include "engine/work_state.h"
#include "netsum/communicator.h"
#include "src/base/histogram.h"
#include "src/telemetry/trace.h"

namespace netsum {

class Engine {
 public:
  // `on_failed` is called once, on one of the engine's threads, when a core fails by itself (not by fail()), after the parts
  // of operations of that core have ended. `trace`, which may be null, gets a record of every operation, from the thread that drives.
  Engine(std::vector<std::unique_ptr<EngineCore>> cores, std::function<void(const Status&)> on_failed,
         TraceLog* trace = nullptr);
  Engine(std::unique_ptr<EngineCore> core, std::function<void(const Status&)> on_failed,
         TraceLog* trace = nullptr);
  ~Engine();  // as stop()

  // Starts the threads. To be called once, before anything else. kResourceExhausted: there are not as many to be had; only
  // destruction may follow.
  Status start();
  // Ends the threads; operations in flight end with kAborted. The cores stay until destruction.
  void stop();

  // Waits until every data path has answered. Errors: kUnreachable, or what fail() was called with.
  Status wait_connected(std::chrono::steady_clock::time_point deadline);

  // Any thread. The deadline is in the time base of monotonic_us(). Sends a small operation at once if the core is unlocked; never
  // calls an OnEnd.
  // `counts`, which may be null, counts the end; it outlives the engine.
  Work submit(OperationSpec&& spec, OnEnd on_end = {}, OperationCounts* counts = nullptr);
  // Any thread. The first failure counts.
  void fail(const Status& status);
  Status status() const;
  // Any thread. Waits until all operations have ended, at most until `deadline`.
  void flush(std::chrono::steady_clock::time_point deadline);
  // Any thread. `rank` has left the job in good order. Operations that still need it fail after a grace period without
  // progress: the results of its last operations may be late.
  void peer_left(int rank);

  // Any thread. What `hang` says, if anything, is added to the message of an operation that misses its deadline. When this returns,
  // the one before is called no more.
  void set_hang(std::function<std::string()> hang);

  size_t threads() const { return threads_.size(); }
  // From submission to end. Any thread.
  const Histogram& completed() const { return completed_; }
  const Histogram& failed() const { return failed_; }

 private:
  void on_core_failed(size_t index, const Status& status);
  Status explain(const Status& status) const;
  void end(RunningOperation& operation);
  void note_end(const RunningOperation& operation);

  const std::function<void(const Status&)> on_failed_;
  TraceLog* const trace_;
  std::atomic<bool> reported_{false};
  mutable std::mutex hang_mutex_;
  std::function<std::string()> hang_;
  std::mutex ends_mutex_;  // one thread at a time writes the histograms
  Histogram completed_, failed_;
  std::atomic<size_t> in_flight_{0};  // becomes 0 with ends_mutex_
  std::condition_variable quiet_;     // it has
  std::mutex order_mutex_;            // all threads get the operations in the same order
  std::vector<std::unique_ptr<EngineThread>> threads_;
};

}  // namespace netsum

#endif  // NETSUM_ENGINE_ENGINE_H_
