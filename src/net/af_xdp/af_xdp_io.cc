#include "src/net/af_xdp/af_xdp_io.h"

#include <algorithm>
#include <array>
#include <utility>

#include "src/base/clock.h"
#include "src/net/af_xdp/next_hops.h"
#include "src/net/af_xdp/rings.h"
#include "src/net/af_xdp/steering.h"
#include "src/net/udp/receiver.h"
#include "src/net/udp/sender.h"
#include "src/net/udp/socket.h"
#include "src/net/wake_event.h"

namespace netsum {
namespace {

constexpr uint32_t kIpUdpBytes = kFrameHeaderBytes - kEthernetBytes;
constexpr size_t kBurst = 256;  // frames taken from the ring in one receive()
// A thread that always finds frames in the ring never waits, and only waiting reports packets of the UDP socket. So the
// socket is also read after this many bursts.
constexpr uint32_t kReceivesPerLook = 64;

struct Parts {
  UdpSocket socket;
  Address local;
  Interface interface;
  Routing routing;
  std::unique_ptr<XskRings> rings;
  Steering steering;
  WakeEvent event;
};

class AfXdpIo final : public PacketIo {
 public:
  AfXdpIo(Parts parts, uint32_t max_packet)
      : socket_(std::move(parts.socket)),
        local_(parts.local),
        max_packet_(max_packet),
        max_sent_(parts.interface.mtu - kIpUdpBytes),
        description_(std::string(parts.rings->zero_copy() ? "af_xdp (zero-copy, " : "af_xdp (copy mode, ") +
                     parts.interface.name + ")"),
        event_(std::move(parts.event)),
        sender_(socket_.fd.get(), socket_.gso),
        receiver_(socket_.gro, max_packet),
        hops_(std::move(parts.routing), parts.interface, parts.local),
        rings_(std::move(parts.rings)),
        steering_(std::move(parts.steering)) {}

  void send(std::span<const OutPacket> burst) override;
  size_t receive(std::span<InPacket> burst) override;
  void wait(int64_t timeout_us) override;
  void wake() override { event_.wake(); }
  void watch(Inbox* inbox) override { event_.watch(inbox); }

  Address local_address() const override { return local_; }
  const PacketIoCounters& counters() const override { return counters_; }
  uint64_t overflowed() const override { return rings_->overflowed() + netsum::overflowed(socket_.fd.get()); }
  std::string_view description() const override {
    return rings_->interface_lost() ? "udp (the interface of af_xdp is gone)"
                                    : std::string_view(description_);
  }

 private:
  // The headers for sending the packet by the ring; nullptr: send it by the UDP socket.
  const FrameHeaders* way_of(const OutPacket& packet, int64_t now_us);
  void push(const OutPacket& packet, const FrameHeaders& headers);
  void flush() { counters_.send_calls.add(rings_->flush()); }
  size_t receive_from_ring(std::span<InPacket> burst);

  UdpSocket socket_;
  const Address local_;
  const uint32_t max_packet_;
  const uint32_t max_sent_;  // longest datagram that the interface takes
  const std::string description_;
  WakeEvent event_;
  PacketIoCounters counters_;
  UdpSender sender_;
  UdpReceiver receiver_;
  NextHops hops_;
  std::unique_ptr<XskRings> rings_;
  Steering steering_;  // after the rings: it goes before them
  bool socket_is_readable_ = false;
  uint32_t receives_since_look_ = 0;
};

const FrameHeaders* AfXdpIo::way_of(const OutPacket& packet, int64_t now_us) {
  if (rings_->interface_lost() || packet.size > max_sent_) return nullptr;
  return hops_.find(packet.to, now_us);
}

void AfXdpIo::push(const OutPacket& packet, const FrameHeaders& headers) {
  uint8_t* frame = rings_->next_frame();
  if (frame == nullptr) {
    flush();
    frame = rings_->next_frame();
  }
  if (frame == nullptr) {
    counters_.send_refused.add();
    return;
  }
  rings_->push(headers.write(packet.data, packet.size, frame));
  counters_.packets_sent.add();
  counters_.bytes_sent.add(packet.size);
}

void AfXdpIo::send(std::span<const OutPacket> burst) {
  const int64_t now_us = monotonic_us();
  while (!burst.empty()) {
    if (const FrameHeaders* headers = way_of(burst[0], now_us)) {
      push(burst[0], *headers);
      burst = burst.subspan(1);
      continue;
    }
    size_t run = 1;
    const FrameHeaders* next = nullptr;
    while (run < burst.size() && (next = way_of(burst[run], now_us)) == nullptr) ++run;
    // Frames already in the ring are sent first, so that packets to one destination stay in order.
    flush();
    sender_.send(burst.first(run), &counters_);
    burst = burst.subspan(run);
    if (next == nullptr) continue;
    push(burst[0], *next);
    burst = burst.subspan(1);
  }
  flush();
}

size_t AfXdpIo::receive_from_ring(std::span<InPacket> burst) {
  std::array<const uint8_t*, kBurst> frames;
  counters_.receive_calls.add();
  const size_t count = rings_->receive(std::span(frames).first(std::min(burst.size(), kBurst)));
  size_t filled = 0;
  for (size_t i = 0; i < count; ++i) {
    const InPacket packet = read_frame(frames[i]);
    if (packet.size > max_packet_) {
      counters_.truncated.add();
      continue;
    }
    burst[filled++] = packet;
    counters_.packets_received.add();
    counters_.bytes_received.add(packet.size);
  }
  return filled;
}

size_t AfXdpIo::receive(std::span<InPacket> burst) {
  if (burst.empty()) return 0;
  const size_t filled = receive_from_ring(burst);
  if (++receives_since_look_ >= kReceivesPerLook) socket_is_readable_ = true;
  if (filled == burst.size() || !(socket_is_readable_ || receiver_.has_leftovers())) return filled;
  receives_since_look_ = 0;
  const size_t by_socket = receiver_.receive(socket_.fd.get(), burst.subspan(filled), &counters_);
  socket_is_readable_ = by_socket > 0;
  return filled + by_socket;
}

void AfXdpIo::wait(int64_t timeout_us) {
  if (receiver_.has_leftovers() || rings_->has_arrivals()) return;
  std::array<pollfd, 2> polled = {{{socket_.fd.get(), POLLIN, 0}, {rings_->fd(), POLLIN, 0}}};
  event_.wait(polled, timeout_us);
  if ((polled[0].revents & POLLIN) != 0) socket_is_readable_ = true;
}

// Frames bypass queueing disciplines, which is not acceptable if one limits the rate or drops packets on purpose. These do
// neither.
bool may_pass_by(const std::string& queueing) {
  static constexpr std::string_view kHarmless[] = {"",      "noqueue", "noop", "mq",       "pfifo_fast",
                                                   "pfifo", "bfifo",   "fq",   "fq_codel", "codel"};
  return std::find(std::begin(kHarmless), std::end(kHarmless), queueing) != std::end(kHarmless);
}

Status check(const AfXdpIoOptions& options, const Interface& interface) {
  if (!may_pass_by(interface.queueing)) {
    return Status(ErrorCode::kUnsupported, interface.name + " has the queueing discipline " +
                                               interface.queueing +
                                               ", which AF_XDP would go past: see `tc qdisc`");
  }
  const uint32_t most = XskRings::kMaxFrame - kEthernetBytes;
  if (interface.mtu > most) {
    return Status(ErrorCode::kUnsupported,
                  "the MTU of " + interface.name + " is " + std::to_string(interface.mtu) +
                      "; a frame must fit into one chunk, so it can be " + std::to_string(most) + " at most");
  }
  if (options.max_packet == 0 || options.max_packet + kIpUdpBytes > most) {
    return Status(ErrorCode::kUnsupported, "packets of " + std::to_string(options.max_packet) +
                                               " bytes do not fit; the longest that do have " +
                                               std::to_string(most - kIpUdpBytes) + " bytes");
  }
  return Status();
}

}  // namespace

Status probe_af_xdp() {
  const Status socket = XskRings::probe();
  return socket.ok() ? Steering::load({}).status() : socket;
}

Result<std::unique_ptr<PacketIo>> open_af_xdp(const AfXdpIoOptions& options) {
  if (options.remote.family != 4) {
    return Status(ErrorCode::kUnsupported, options.remote.to_string() + " is not IPv4");
  }
  Result<Routing> routing = Routing::open();
  if (!routing.ok()) return routing.status();
  const std::optional<Route> route = routing->route(options.remote);
  if (!route) {
    return Status(ErrorCode::kUnreachable, "no route leads from an interface to " +
                                               options.remote.to_string() +
                                               ": it is on this host, or `ip route` lacks an entry");
  }
  Result<Interface> interface = routing->interface(route->interface);
  if (!interface.ok()) return interface.status();
  if (const Status status = check(options, interface.value()); !status.ok()) return status;

  UdpIoOptions beside;
  beside.bind.family = 4;
  beside.bind.port = options.port;
  beside.max_packet = options.max_packet;
  Result<UdpSocket> socket = open_udp_socket(beside);
  if (!socket.ok()) return socket.status();
  Address local = route->source;
  local.port = socket->local.port;
  Result<WakeEvent> event = WakeEvent::open(options.spin);
  if (!event.ok()) return event.status();
  Result<std::unique_ptr<XskRings>> rings = XskRings::open(interface->name);
  if (!rings.ok()) return rings.status();
  Result<Steering> steering = Steering::load(local);
  if (!steering.ok()) return steering.status();
  const Status attached = steering->attach(interface.value(), rings.value()->fd());
  if (!attached.ok()) return attached;
  Parts parts{.socket = std::move(socket).value(),
              .local = local,
              .interface = interface.value(),
              .routing = std::move(routing).value(),
              .rings = std::move(rings).value(),
              .steering = std::move(steering).value(),
              .event = std::move(event).value()};
  return std::unique_ptr<PacketIo>(std::make_unique<AfXdpIo>(std::move(parts), options.max_packet));
}

}  // namespace netsum
