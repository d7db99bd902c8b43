// Waiting that watches for a moment before it sleeps. To wake a sleeper costs both sides system calls, and the sleeper 10 to
// 50 us, which is most of a small all-reduce. While it watches, a thread yields its processor to whoever else can run, and it
// sleeps when that has happened several times. By default it watches only while most of its waits are brief, so that long ones cost
// little. If it was told to watch for longer than that, it does so after whatever it has waited for, however long waits are.
//
// Thread rule: one thread.
#ifndef NETSUM_SRC_BASE_SPIN_WAIT_H_
#define NETSUM_SRC_BASE_SPIN_WAIT_H_

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "src/base/clock.h"

namespace netsum {

class SpinWait {
 public:
  static constexpr int64_t kSpinUs = 50;  // by default
  // A yield that took longer has let others run: there are more threads than cores, and to watch keeps them waiting. But others
  // may be those that this thread waits for: it sleeps after the third such yield. The time of others does not count.
  static constexpr int64_t kOthersUs = 10;
  static constexpr int kMostYieldsToOthers = 3;

  // `watch_us`: up to kSpinUs, each wait watches for so long, while that pays; 0: never. If it is more, the thread watches
  // until it has waited for so long in vain, in one wait or in several with limits. `least_us`: what each wait watches, but for one that
  // goes on after its limit, though long ones cost that.
  explicit SpinWait(int64_t watch_us = kSpinUs, int64_t least_us = 0)
      : watch_us_(watch_us), least_us_(std::min(least_us, watch_us)) {}

  // What a sleeper that is woken within kSpinUs may take.
  static constexpr int64_t kBriefUs = 2 * kSpinUs;
  // What waits for packets that are under way watch at least. Where more threads than cores wait for each other, the waits of sleepers
  // are never brief, so none of them would begin to watch; each yield lets those run that it waits for.
  static constexpr int64_t kLeastUs = 20;

  // Returns when `ready()` has become true, or after `sleep()`, which waits for the same. `limit_us`: when the wait must end;
  // negative: never.
  template <typename Ready, typename Sleep>
  void wait(int64_t limit_us, Ready ready, Sleep sleep) {
    const int64_t begun_us = monotonic_us();
    if (!in_vain_) waiting_since_us_ = begun_us;
    const int64_t end_us = limit_us < 0 ? INT64_MAX : begun_us + std::min(limit_us, INT64_MAX - begun_us);
    const int64_t least_us = in_vain_ ? 0 : least_us_;
    int64_t until_us = is_long() ? waiting_since_us_ + watch_us_ : begun_us + (pays() ? watch_us_ : least_us);
    until_us = std::min(until_us, end_us);
    int64_t now_us = begun_us;
    bool done = false;
    int yields_to_others = 0;
    while (now_us < until_us && !(done = ready())) {
      sched_yield();
      const int64_t before_us = std::exchange(now_us, monotonic_us());
      if (now_us - before_us <= kOthersUs) continue;
      until_us = std::min(until_us + now_us - before_us, end_us);
      if (++yields_to_others < kMostYieldsToOthers) continue;
      done = ready();
      break;
    }
    if (!done) sleep();
    const int64_t took_us = monotonic_us() - begun_us;
    in_vain_ = !done && limit_us >= 0 && took_us >= limit_us;
    note(took_us);
  }

  bool pays() const { return is_long() || (watch_us_ > 0 && score_ >= kEnough); }
  // A wait has ended after that time.
  void note(int64_t us) {
    score_ = us <= kBriefUs ? std::min(score_ + 1, kMost) : std::max(score_ - kCost, 0);
  }

 private:
  // Half of the waits may be long.
  static constexpr int kCost = 1, kEnough = 4, kMost = 16;

  bool is_long() const { return watch_us_ > kSpinUs; }

  int64_t watch_us_;
  int64_t least_us_;
  int64_t waiting_since_us_ = 0;
  bool in_vain_ = false;  // the limit ended the last wait
  int score_ = 0;
};

}  // namespace netsum

#endif  // NETSUM_SRC_BASE_SPIN_WAIT_H_
