// What a PacketIo waits for: its descriptors, a deadline, and an event that any thread may set.
#ifndef NETSUM_SRC_NET_WAKE_EVENT_H_
#define NETSUM_SRC_NET_WAKE_EVENT_H_

#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <span>

#include "netsum/status.h"
#include "src/base/file_descriptor.h"
#include "src/base/spin_wait.h"

namespace netsum {

class WakeEvent {
 public:
  static constexpr size_t kMaxPolled = 16;

  // Error: kResourceExhausted (no descriptor left).
  // `spin`: for how long wait() may watch before it sleeps (SpinWait).
  static Result<WakeEvent> open(std::chrono::microseconds spin);

  // Any thread. Set until a wait() has ended by it.
  void wake();
  // Waits until one of `polled` (at most kMaxPolled) is ready, wake() is called or `timeout_us` has passed (< 0: no limit).
  // Sets the revents of each. `under_way`: the thread has begun something; otherwise it does not watch for longer than by
  // default.
  void wait(std::span<pollfd> polled, int64_t timeout_us, bool under_way);
  // A thread that waits without a limit has nothing under way.
  void wait(std::span<pollfd> polled, int64_t timeout_us) { wait(polled, timeout_us, timeout_us >= 0); }

 private:
  WakeEvent(FileDescriptor fd, int64_t spin_us)
      : fd_(std::move(fd)), spin_{SpinWait(spin_us), SpinWait(std::min(spin_us, SpinWait::kSpinUs))} {}

  FileDescriptor fd_;
  // With something under way, and without: how long that takes says nothing about the other waits.
  std::array<SpinWait, 2> spin_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_NET_WAKE_EVENT_H_
