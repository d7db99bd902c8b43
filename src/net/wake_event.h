// What a PacketIo waits for: its descriptors, a deadline, and an event that any thread may set.
#ifndef NETSUM_SRC_NET_WAKE_EVENT_H_
#define NETSUM_SRC_NET_WAKE_EVENT_H_

#include <poll.h>

#include <array>
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
  // `spin`: wait() may watch before it sleeps (SpinWait).
  static Result<WakeEvent> open(bool spin = true);

  // Any thread. Set until a wait() has ended by it.
  void wake();
  // Waits until one of `polled` (at most kMaxPolled) is ready, wake() is called or `timeout_us` has passed (< 0: no limit).
  // Sets the revents of each.
  void wait(std::span<pollfd> polled, int64_t timeout_us);

 private:
  WakeEvent(FileDescriptor fd, bool spin) : fd_(std::move(fd)), spin_{SpinWait(spin), SpinWait(spin)} {}

  FileDescriptor fd_;
  // Without a limit, a thread has nothing under way: how long that takes says nothing about its other waits.
  std::array<SpinWait, 2> spin_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_NET_WAKE_EVENT_H_
