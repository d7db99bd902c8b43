#include "src/net/udp/udp_io.h"

#include <array>
#include <utility>

#include "src/net/udp/receiver.h"
#include "src/net/udp/sender.h"
#include "src/net/udp/socket.h"
#include "src/net/wake_event.h"

namespace netsum {
namespace {

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
  UdpIo(UdpSocket socket, WakeEvent event, const UdpIoOptions& options)
      : socket_(std::move(socket)),
        event_(std::move(event)),
        gso_asked_(options.gso),
        sender_(socket_.fd.get(), socket_.gso),
        receiver_(socket_.fd.get(), socket_.gro, options.max_packet) {}

  void send(std::span<const OutPacket> burst) override { sender_.send(burst, &counters_); }

  size_t receive(std::span<InPacket> burst) override { return receiver_.receive(burst, &counters_); }

  void wait(int64_t timeout_us) override;

  void wake() override { event_.wake(); }

  Address local_address() const override { return socket_.local; }
  const PacketIoCounters& counters() const override { return counters_; }

  std::string_view description() const override {
    if (!gso_asked_) return describe(Feature::kOff, socket_.gro);
    if (!socket_.gso) return describe(Feature::kMissing, socket_.gro);
    return describe(sender_.gso() ? Feature::kOn : Feature::kRefused, socket_.gro);
  }

 private:
  UdpSocket socket_;
  WakeEvent event_;
  bool gso_asked_;
  PacketIoCounters counters_;
  UdpSender sender_;
  UdpReceiver receiver_;
};

void UdpIo::wait(int64_t timeout_us) {
  if (receiver_.has_leftovers()) return;
  std::array<pollfd, 1> polled = {{{socket_.fd.get(), POLLIN, 0}}};
  event_.wait(polled, timeout_us);
}

}  // namespace

Result<std::unique_ptr<PacketIo>> open_udp(const UdpIoOptions& options) {
  Result<UdpSocket> socket = open_udp_socket(options);
  if (!socket.ok()) return socket.status();
  Result<WakeEvent> event = WakeEvent::open();
  if (!event.ok()) return event.status();
  return std::unique_ptr<PacketIo>(
      std::make_unique<UdpIo>(std::move(socket).value(), std::move(event).value(), options));
}

}  // namespace netsum
