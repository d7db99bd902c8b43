#include "src/net/wake_event.h"

#include <sys/epoll.h>
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
  FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN | EPOLLET, .data = {}};
  if (!fd.valid() || !epoll.valid() || epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd.get(), &event) != 0) {
    return Status(ErrorCode::kResourceExhausted,
                  std::string("no descriptor to wake a socket's thread by: ") + std::strerror(errno));
  }
  return WakeEvent(std::move(fd), std::move(epoll), spin.count());
}

Status WakeEvent::add(int descriptor) {
  epoll_event event{.events = EPOLLIN, .data = {}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) == 0) return Status();
  return Status(ErrorCode::kResourceExhausted,
                std::string("cannot watch sockets by epoll: ") + std::strerror(errno));
}

void WakeEvent::wake() {
  const uint64_t one = 1;
  // Fails only if the counter is full, after more calls than a process can make.
  [[maybe_unused]] const ssize_t written = write(fd_.get(), &one, sizeof one);
}

int WakeEvent::take_ready(const timespec* limit) {
  std::array<epoll_event, 4> events;  // the event itself is among them in one of the next calls
  const auto size = static_cast<int>(events.size());
  int ready = epoll_pwait2(epoll_.get(), events.data(), size, limit, nullptr);
  if (ready < 0 && errno == ENOSYS) {  // in some sandboxes, and under valgrind
    pollfd polled = {epoll_.get(), POLLIN, 0};
    ready = ppoll(&polled, 1, limit, nullptr);
    if (ready > 0) ready = epoll_wait(epoll_.get(), events.data(), size, 0);
  }
  NETSUM_ASSERT(ready >= 0 || errno == EINTR);
  return ready;
}

void WakeEvent::wait(std::span<pollfd> polled, int64_t timeout_us, bool under_way) {
  NETSUM_ASSERT(polled.size() <= kMaxPolled);
  constexpr timespec kNow{};
  std::array<pollfd, kMaxPolled + 1> all{};
  std::copy(polled.begin(), polled.end(), all.begin());
  all[polled.size()] = {epoll_.get(), POLLIN, 0};
  const int64_t deadline_us = monotonic_us() + std::min(timeout_us, kLongestWaitUs);
  const auto ready_in = [&](const timespec* limit) {
    if (polled.empty()) return take_ready(limit);
    const int ready = ppoll(all.data(), polled.size() + 1, limit, nullptr);
    NETSUM_ASSERT(ready >= 0 || errno == EINTR);
    if (ready > 0 && all[polled.size()].revents != 0) take_ready(&kNow);
    return ready;
  };
  const auto is_ready = [&] { return (inbox_ != nullptr && inbox_->has_packets()) || ready_in(&kNow) > 0; };
  const auto sleep = [&] {
    if (inbox_ != nullptr && !inbox_->fall_asleep()) return;
    int ready = 0;
    do {
      const int64_t left_us = std::max<int64_t>(0, deadline_us - monotonic_us());
      const timespec left = {left_us / 1'000'000, left_us % 1'000'000 * 1'000};
      ready = ready_in(timeout_us < 0 ? nullptr : &left);
    } while (ready < 0);
    if (inbox_ != nullptr) inbox_->wake_up();
  };
  spin_[!under_way].wait(timeout_us, is_ready, sleep);
  std::copy_n(all.begin(), polled.size(), polled.begin());
}

}  // namespace netsum
