#include "src/net/udp/udp_io.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "src/base/assert.h"
#include "src/base/clock.h"
#include "src/net/udp/receiver.h"
#include "src/net/udp/sender.h"
#include "src/net/udp/socket.h"

namespace netsum {
namespace {

constexpr int64_t kLongestWaitUs = int64_t{1} << 50;  // 35 years: keeps the sum with the clock in range

enum class Feature { kOn, kOff, kMissing, kRefused };

// Fixed texts, because the answer can change on the data path, where nothing allocates.
std::string_view describe(Feature gso, bool gro) {
  switch (gso) {
    case Feature::kOn:
      return gro ? "udp (GSO, GRO)" : "udp (GSO, no GRO)";
    case Feature::kRefused:
      return gro ? "udp (GSO refused by the route, GRO)" : "udp (GSO refused by the route, no GRO)";
    case Feature::kMissing:
      return gro ? "udp (kernel has no GSO, GRO)" : "udp (kernel has no GSO, no GRO)";
    case Feature::kOff:
      return gro ? "udp (no GSO, GRO)" : "udp (no GSO, no GRO)";
  }
  return "udp";
}

class UdpIo final : public PacketIo {
 public:
  UdpIo(UdpSocket socket, FileDescriptor wake_fd, const UdpIoOptions& options)
      : socket_(std::move(socket)),
        wake_fd_(std::move(wake_fd)),
        gso_asked_(options.gso),
        sender_(socket_.fd.get(), socket_.gso),
        receiver_(socket_.fd.get(), socket_.gro, options.max_packet) {}

  void send(std::span<const OutPacket> burst) override { sender_.send(burst, &counters_); }

  size_t receive(std::span<InPacket> burst) override { return receiver_.receive(burst, &counters_); }

  void wait(int64_t timeout_us) override;

  void wake() override {
    const uint64_t one = 1;
    // Fails only when the counter is full, and then the waiter is being woken already.
    [[maybe_unused]] const ssize_t written = write(wake_fd_.get(), &one, sizeof one);
  }

  Address local_address() const override { return socket_.local; }
  const PacketIoCounters& counters() const override { return counters_; }

  std::string_view description() const override {
    if (!gso_asked_) return describe(Feature::kOff, socket_.gro);
    if (!socket_.gso) return describe(Feature::kMissing, socket_.gro);
    return describe(sender_.gso() ? Feature::kOn : Feature::kRefused, socket_.gro);
  }

 private:
  UdpSocket socket_;
  FileDescriptor wake_fd_;
  bool gso_asked_;
  PacketIoCounters counters_;
  UdpSender sender_;
  UdpReceiver receiver_;
};

void UdpIo::wait(int64_t timeout_us) {
  if (receiver_.has_leftovers()) return;
  pollfd polled[2] = {{socket_.fd.get(), POLLIN, 0}, {wake_fd_.get(), POLLIN, 0}};
  const int64_t deadline_us = monotonic_us() + std::min(timeout_us, kLongestWaitUs);
  int ready = 0;
  do {
    const int64_t left_us = std::max<int64_t>(0, deadline_us - monotonic_us());
    const timespec left = {left_us / 1'000'000, left_us % 1'000'000 * 1'000};
    ready = ppoll(polled, 2, timeout_us < 0 ? nullptr : &left, nullptr);
  } while (ready < 0 && errno == EINTR);
  NETSUM_ASSERT(ready >= 0);
  if (polled[1].revents != 0) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(wake_fd_.get(), &count, sizeof count);
  }
}

}  // namespace

Result<std::unique_ptr<PacketIo>> open_udp(const UdpIoOptions& options) {
  Result<UdpSocket> socket = open_udp_socket(options);
  if (!socket.ok()) return socket.status();
  FileDescriptor wake_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_fd.valid()) {
    return Status(ErrorCode::kResourceExhausted,
                  std::string("UDP socket: no descriptor to wake its thread by: ") + std::strerror(errno));
  }
  return std::unique_ptr<PacketIo>(
      std::make_unique<UdpIo>(std::move(socket).value(), std::move(wake_fd), options));
}

}  // namespace netsum
