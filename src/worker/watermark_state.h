// What an operation with watermarks (netsum/watermarks.h) shares with its caller.
//
// Thread rule: any thread, unless noted. The engine reads `available` and writes `delivered` without a lock. The lock is taken
// where input becomes available, and where an engine begins and ends the operation.
#ifndef NETSUM_SRC_WORKER_WATERMARK_STATE_H_
#define NETSUM_SRC_WORKER_WATERMARK_STATE_H_

#include <sys/types.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>

#include "netsum/status.h"
#include "netsum/watermarks.h"
#include "src/base/forked_children.h"

namespace netsum {

class Watermarks::State {
 public:
  static constexpr size_t kMostParts =
      64;  // cores that execute an operation: CommunicatorOptions::engine_threads

  State(size_t step, OnDelivered on_delivered) : step_(step), on_delivered_(std::move(on_delivered)) {}

  // Of the caller: see Watermarks.
  void make_available(size_t bytes);
  void fail(const Status& status);
  // Inputs below are readable by a thread that has read this.
  size_t available() const { return available_.load(std::memory_order_acquire); }
  size_t delivered() const { return delivered_.load(std::memory_order_acquire); }

  // False: another operation has them.
  bool take() { return !taken_.exchange(true); }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  Status failure() const;

  // Calls keep(available), now if anything is available, and then whenever more is about to become so; `keep` empty: ends that.
  void keep_input(std::function<void(size_t available)> keep);
  // Waits until `bytes` are available. kTimeout, or what the caller has failed the operation with.
  Status wait_available(size_t bytes, std::chrono::steady_clock::time_point deadline);

  // An engine of so many cores begins the operation; wake() makes all of them look at it. After a failover, another one begins.
  void begin(size_t parts, std::function<void()> wake);
  // The part of a core has delivered its results below `bytes`. One thread at a time for each part.
  void note_delivered(size_t part, size_t bytes);
  // Calls the listener if a step has been delivered. By a thread that drives, never within the submission of an operation: who
  // submits may hold a lock that the listener takes.
  void report_delivered() {
    if (on_delivered_ && is_step(delivered())) report(false);
  }
  // The engine has ended the operation, and wake() is not called any more.
  void end();
  // All results, of `bytes` in all, have been delivered. By one thread, after all calls of note_delivered().
  void end_delivered(size_t bytes);

 private:
  bool is_step(size_t bytes) const {
    return bytes - reported_.load(std::memory_order_relaxed) >= std::max<size_t>(step_, 1);
  }
  void raise_delivered(size_t bytes);
  void report(bool all);
  bool is_forked() const { return forked_children::process_id() != process_; }

  const size_t step_;
  const OnDelivered on_delivered_;
  const pid_t process_ = forked_children::process_id();
  std::atomic<size_t> available_{0}, delivered_{0};
  std::atomic<bool> failed_{false}, taken_{false};
  std::atomic<size_t> parts_{1};
  std::array<std::atomic<size_t>, kMostParts> delivered_by_part_{};
  std::atomic<size_t> reported_{0};  // written with report_mutex_

  std::mutex report_mutex_;  // one call of the listener at a time
  bool reported_all_ = false;

  mutable std::mutex mutex_;  // of the following
  std::condition_variable changed_;
  Status failure_;
  std::function<void(size_t)> keep_;
  std::function<void()> wake_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_WATERMARK_STATE_H_
