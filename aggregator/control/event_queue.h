// Events that are still to be sent to one member. Bounded, also if the member does not read.
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
  // Besides Joined events, which replace each other, a member gets at most four: Ready, Draining (before and after
  // Ready), and Failed.
  static constexpr size_t kMost = 16;

  // A Joined event replaces one that is last in the queue. Returns false if the queue is full and drops the event.
  bool push(control::Event event) {
    if (event.has_joined() && !events_.empty() && events_.back().has_joined()) {
      events_.back() = std::move(event);
      return true;
    }
    if (events_.size() >= kMost) return false;
    events_.push_back(std::move(event));
    return true;
  }

  control::Event pop() {  // the queue must not be empty
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
