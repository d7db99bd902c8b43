// What a PacketIo waits for: its descriptors, a deadline, and an event that any thread may set.
#ifndef NETSUM_SRC_NET_WAKE_EVENT_H_
#define NETSUM_SRC_NET_WAKE_EVENT_H_

#include <poll.h>

#include <cstdint>
#include <span>

#include "netsum/status.h"
#include "src/base/file_descriptor.h"

namespace netsum {

class WakeEvent {
 public:
  static constexpr size_t kMaxPolled = 16;

  // Error: kResourceExhausted (no descriptor left).
  static Result<WakeEvent> open();

  // Any thread. Set until a wait() has ended by it.
  void wake();
  // Waits until one of `polled` (at most kMaxPolled) is ready, wake() is called or `timeout_us` has passed (< 0: no limit).
  // Sets the revents of each.
  void wait(std::span<pollfd> polled, int64_t timeout_us);

 private:
  explicit WakeEvent(FileDescriptor fd) : fd_(std::move(fd)) {}

  FileDescriptor fd_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_NET_WAKE_EVENT_H_
