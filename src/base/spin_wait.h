// Waiting that watches for a moment before it sleeps. To wake a sleeper costs both sides system calls, and the sleeper 10 to
// 50 us, which is most of a small all-reduce. While it watches, a thread yields its processor to whoever else can run, and it
// sleeps as soon as that has happened. It watches only while most of its waits are brief, so that long ones cost nothing.
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
  static constexpr int64_t kSpinUs = 50;
  // A yield that took longer has let others run: there are more threads than cores, and to watch keeps them waiting.
  static constexpr int64_t kOthersUs = 10;

  // `allowed`: false if every wait is to sleep.
  explicit SpinWait(bool allowed = true) : allowed_(allowed) {}

  // What a sleeper that is woken within kSpinUs may take.
  static constexpr int64_t kBriefUs = 2 * kSpinUs;

  // Returns when `ready()` has become true, or after `sleep()`, which waits for the same. `limit_us`: when the wait must end;
  // negative: never.
  template <typename Ready, typename Sleep>
  void wait(int64_t limit_us, Ready ready, Sleep sleep) {
    const int64_t begun_us = monotonic_us();
    const int64_t spin_us = !pays() ? 0 : limit_us < 0 ? kSpinUs : std::min(limit_us, kSpinUs);
    int64_t now_us = begun_us;
    bool done = false;
    while (now_us - begun_us < spin_us && !(done = ready())) {
      sched_yield();
      const int64_t before_us = std::exchange(now_us, monotonic_us());
      if (now_us - before_us <= kOthersUs) continue;
      done = ready();  // perhaps it was one of the others that this waits for
      break;
    }
    if (!done) sleep();
    note(monotonic_us() - begun_us);
  }

  bool pays() const { return allowed_ && score_ >= kEnough; }
  // A wait has ended after that time.
  void note(int64_t us) {
    score_ = us <= kBriefUs ? std::min(score_ + 1, kMost) : std::max(score_ - kCost, 0);
  }

 private:
  // Half of the waits may be long.
  static constexpr int kCost = 1, kEnough = 4, kMost = 16;

  bool allowed_;
  int score_ = 0;
};

}  // namespace netsum

#endif  // NETSUM_SRC_BASE_SPIN_WAIT_H_
