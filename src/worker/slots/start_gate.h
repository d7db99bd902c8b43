// When a step's first operation may start, so that jobs that share links take turns (netsum plan --jobs). A step that is early
// waits for its phase. One that is late starts at once, because all ranks wait for it. Where the aggregator gives turns, only the
// first two steps wait for their phases, of which connecting is one: the turns then keep the jobs apart. No I/O: time is an argument.
#ifndef NETSUM_SRC_WORKER_SLOTS_START_GATE_H_
#define NETSUM_SRC_WORKER_SLOTS_START_GATE_H_

#include <cstdint>

namespace netsum {

class StartGate {
 public:
  // After so many late steps in succession, the next one waits for the phase.
  static constexpr int kMostLate = 8;

  // The phases are at `offset_us` + n `period_us` for all n. `period_us` > 0.
  StartGate(int64_t period_us, int64_t offset_us, bool has_turns = false)
      : period_us_(period_us), offset_us_(offset_us), has_turns_(has_turns) {}

  // An operation comes after an idle time. When it may start: `now_us`, or less than a period later. It begins a step if the
  // last step began half a period ago and the idle time is an eighth of a period. The first step waits for its phase, and so
  // does one after two idle periods.
  int64_t ready_us(int64_t now_us, int64_t idle_since_us) {
    const int64_t idle_us = now_us - idle_since_us;
    begins_ = begun_ == 0 || (now_us - began_us_ >= period_us_ / 2 && idle_us >= period_us_ / 8);
    if (!begins_) return now_us;
    const int64_t after_us = ((now_us - offset_us_) % period_us_ + period_us_) % period_us_;
    const bool early = !has_turns_ && after_us >= (period_us_ + 1) / 2;
    late_ = !has_turns_ && !early && after_us > period_us_ / 8 ? late_ + 1 : 0;
    const bool waits =
        early || begun_ < (has_turns_ ? 2 : 1) || idle_us > 2 * period_us_ || late_ > kMostLate;
    if (waits) late_ = 0;
    ++begun_;
    began_us_ = waits && after_us > 0 ? now_us + period_us_ - after_us : now_us;
    return began_us_;
  }
  // Until when the step that begins now, as ready_us() has said, may wait for its turn; `now_us`: not at all.
  int64_t turn_us(int64_t now_us) const { return begins_ && has_turns_ ? now_us + period_us_ : now_us; }

 private:
  const int64_t period_us_;
  const int64_t offset_us_;
  const bool has_turns_;
  bool begins_ = false;   // at the last ready_us()
  uint64_t begun_ = 0;    // steps
  int64_t began_us_ = 0;  // the last step
  int late_ = 0;          // steps in succession, by more than an eighth of a period
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_SLOTS_START_GATE_H_
