// Passes events to the function that logs them, which may be slow or block, on a thread of its own.
#ifndef NETSUM_AGGREGATOR_CONTROL_EVENT_LOG_H_
#define NETSUM_AGGREGATOR_CONTROL_EVENT_LOG_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "netsum/options.h"

namespace netsum {

// Thread rule: any thread may call any method.
class EventLog {
 public:
  static constexpr size_t kMost = 4096;  // events that wait; further ones are left out, and counted

  // `write` may be null.
  explicit EventLog(std::function<void(const AggregatorEvent&)> write) : write_(std::move(write)) {}

  // Never waits for `write`.
  void push(AggregatorEvent event) {
    if (!write_) return;
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= kMost) {
      ++left_out_;
      return;
    }
    waiting_.push_back(std::move(event));
    changed_.notify_all();
  }

  // Writes until halt(), and then what has been pushed before, on a thread of the caller.
  void write() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return halted_ || !waiting_.empty() || left_out_ > 0; });
      std::deque<AggregatorEvent> events = std::exchange(waiting_, {});
      if (const uint64_t count = std::exchange(left_out_, 0); count > 0) {
        AggregatorEvent& note = events.emplace_back();
        note.kind = AggregatorEvent::Kind::kEventsLeftOut;
        note.reason =
            std::to_string(count) + " events are not in this log, which was not written fast enough";
      }
      if (events.empty()) return;
      writing_ = true;
      lock.unlock();
      for (const AggregatorEvent& event : events) write_(event);
      lock.lock();
      writing_ = false;
      changed_.notify_all();
    }
  }

  // Waits until all events are written, at most for `patience`.
  void flush(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, patience, [&] { return waiting_.empty() && !writing_; });
  }

  void halt() {
    const std::lock_guard lock(mutex_);
    halted_ = true;
    changed_.notify_all();
  }

 private:
  const std::function<void(const AggregatorEvent&)> write_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<AggregatorEvent> waiting_;
  uint64_t left_out_ = 0;
  bool writing_ = false;
  bool halted_ = false;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_EVENT_LOG_H_
