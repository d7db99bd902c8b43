// What one member is still to be told. Bounded, whatever others do and however slowly the member reads.
#ifndef NETSUM_AGGREGATOR_CONTROL_EVENT_QUEUE_H_
#define NETSUM_AGGREGATOR_CONTROL_EVENT_QUEUE_H_

#include <cstddef>
#include <deque>
#include <utility>

#include "src/control/control.pb.h"

namespace netsum {

// Not thread-safe.
class EventQueue {
 public:
  // An aggregator tells a member at most four things besides who is missing: that the job is ready, that the
  // aggregator drains (before and after that), and that the job has failed.
  static constexpr size_t kMost = 16;

  // Who is missing supersedes what was said of it before. False: the queue is full, and the event is dropped.
  bool push(control::Event event) {
    if (event.has_joined() && !events_.empty() && events_.back().has_joined()) {
      events_.back() = std::move(event);
      return true;
    }
    if (events_.size() >= kMost) return false;
    events_.push_back(std::move(event));
    return true;
  }

  control::Event pop() {  // not of an empty queue
    control::Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

  void clear() { events_.clear(); }
  bool empty() const { return events_.empty(); }
  size_t size() const { return events_.size(); }

 private:
  std::deque<control::Event> events_;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_EVENT_QUEUE_H_
