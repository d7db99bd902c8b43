// What a PacketIo waits for: its descriptors, a deadline, an inbox, and an event that any thread may set.
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
#include "src/net/packet_io.h"

namespace netsum {

class WakeEvent {
 public:
  static constexpr size_t kMaxPolled = 4;

  // Error: kResourceExhausted (no descriptor left).
  // `spin`: for how long wait() may watch before it sleeps (SpinWait).
  static Result<WakeEvent> open(std::chrono::microseconds spin);

  // An epoll instance. wait() also ends while a descriptor is ready that is added to it, level-triggered.
  int epoll() const { return epoll_.get(); }
  Status add(int descriptor);  // kResourceExhausted
  void watch(Inbox* inbox) { inbox_ = inbox; }

  // Any thread. Set until a wait() has ended by it.
  void wake();
  // Waits until one of `polled` (at most kMaxPolled) or of epoll() is ready, there are packets in the inbox, wake() is called or
  // `timeout_us` has passed (< 0: no limit). Sets the revents of each. `under_way`: the thread has begun something; otherwise it
  // does not watch for longer than by default.
  void wait(std::span<pollfd> polled, int64_t timeout_us, bool under_way);
  // A thread that waits without a limit has nothing under way.
  void wait(std::span<pollfd> polled, int64_t timeout_us) { wait(polled, timeout_us, timeout_us >= 0); }

 private:
  WakeEvent(FileDescriptor fd, FileDescriptor epoll, int64_t spin_us)
      : fd_(std::move(fd)),
        epoll_(std::move(epoll)),
        spin_{SpinWait(spin_us, SpinWait::kLeastUs), SpinWait(std::min(spin_us, SpinWait::kSpinUs))} {}

  // How much of epoll() is ready within the time (null: no limit); below 0: a signal came. The event counts once.
  int take_ready(const timespec* limit);

  FileDescriptor fd_;  // edge-triggered in `epoll_`: nobody need read it
  FileDescriptor epoll_;
  Inbox* inbox_ = nullptr;
  // With something under way, and without: how long that takes says nothing about the other waits.
  std::array<SpinWait, 2> spin_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_NET_WAKE_EVENT_H_
