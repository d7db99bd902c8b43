#include "src/net/wake_event.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "src/base/assert.h"
#include "src/base/clock.h"

namespace netsum {
namespace {

constexpr int64_t kLongestWaitUs = int64_t{1} << 50;  // 35 years: keeps the sum with the clock in range

}  // namespace

Result<WakeEvent> WakeEvent::open(std::chrono::microseconds spin) {
  FileDescriptor fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd.valid()) {
    return Status(ErrorCode::kResourceExhausted,
                  std::string("no descriptor to wake a socket's thread by: ") + std::strerror(errno));
  }
  return WakeEvent(std::move(fd), spin.count());
}

void WakeEvent::wake() {
  const uint64_t one = 1;
  // Fails only if the counter is full; the event is set then, too.
  [[maybe_unused]] const ssize_t written = write(fd_.get(), &one, sizeof one);
}

void WakeEvent::wait(std::span<pollfd> polled, int64_t timeout_us, bool under_way) {
  NETSUM_ASSERT(polled.size() <= kMaxPolled);
  std::array<pollfd, kMaxPolled + 1> all{};
  std::copy(polled.begin(), polled.end(), all.begin());
  all[polled.size()] = {fd_.get(), POLLIN, 0};
  const int64_t deadline_us = monotonic_us() + std::min(timeout_us, kLongestWaitUs);
  const auto is_ready = [&] {
    constexpr timespec kNow{};
    return ppoll(all.data(), polled.size() + 1, &kNow, nullptr) > 0;
  };
  const auto sleep = [&] {
    int ready = 0;
    do {
      const int64_t left_us = std::max<int64_t>(0, deadline_us - monotonic_us());
      const timespec left = {left_us / 1'000'000, left_us % 1'000'000 * 1'000};
      ready = ppoll(all.data(), polled.size() + 1, timeout_us < 0 ? nullptr : &left, nullptr);
    } while (ready < 0 && errno == EINTR);
    NETSUM_ASSERT(ready >= 0);
  };
  spin_[!under_way].wait(timeout_us, is_ready, sleep);
  if (all[polled.size()].revents != 0) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(fd_.get(), &count, sizeof count);
  }
  std::copy_n(all.begin(), polled.size(), polled.begin());
}

}  // namespace netsum
