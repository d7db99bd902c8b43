// Virtual time: events run in the order of their times, and events of the same time in the order of scheduling, so a run
// depends on its inputs only.
#ifndef NETSUM_EMULATE_CLOCK_H_
#define NETSUM_EMULATE_CLOCK_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace netsum::emulate {

class VirtualClock {
 public:
  using Event = std::function<void()>;

  int64_t now_us() const { return now_us_; }
  bool empty() const { return events_.empty(); }
  int64_t next_us() const { return events_.front().at_us; }

  // Runs `event` at `at_us`, or at once if that is past.
  void at(int64_t at_us, Event event) {
    size_t place = stored_.size();
    if (free_.empty()) {
      stored_.push_back(std::move(event));
    } else {
      place = free_.back();
      free_.pop_back();
      stored_[place] = std::move(event);
    }
    events_.push_back({std::max(at_us, now_us_), next_sequence_++, place});
    std::push_heap(events_.begin(), events_.end(), later);
  }

  // Runs the next event. There must be one.
  void step() {
    std::pop_heap(events_.begin(), events_.end(), later);
    const Scheduled next = events_.back();
    events_.pop_back();
    now_us_ = next.at_us;
    const Event event = std::exchange(stored_[next.place], nullptr);
    free_.push_back(next.place);
    event();
  }

 private:
  // Small, because it moves within the heap.
  struct Scheduled {
    int64_t at_us;
    uint64_t sequence;
    size_t place;  // in stored_
  };
  static bool later(const Scheduled& a, const Scheduled& b) {
    return a.at_us != b.at_us ? a.at_us > b.at_us : a.sequence > b.sequence;
  }

  int64_t now_us_ = 0;
  uint64_t next_sequence_ = 0;
  std::vector<Scheduled> events_;  // a heap, the next one in front
  std::vector<Event> stored_;
  std::vector<size_t> free_;  // places in it
};

// The clock of one machine: starts anywhere, and runs a little faster or slower than virtual time.
class LocalClock {
 public:
  explicit LocalClock(int64_t offset_us = 0, int32_t drift_ppm = 0)
      : offset_us_(offset_us), drift_ppm_(drift_ppm) {}

  int64_t local_us(int64_t true_us) const { return offset_us_ + true_us + true_us * drift_ppm_ / 1'000'000; }
  // The first moment at which it shows at least `local_us`.
  int64_t true_us(int64_t local) const {
    int64_t moment = (local - offset_us_) * 1'000'000 / (1'000'000 + drift_ppm_);
    while (local_us(moment) < local) ++moment;
    while (local_us(moment - 1) >= local) --moment;
    return moment;
  }

 private:
  int64_t offset_us_;
  int32_t drift_ppm_;
};

}  // namespace netsum::emulate

#endif  // NETSUM_EMULATE_CLOCK_H_
