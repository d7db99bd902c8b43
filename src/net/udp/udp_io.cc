#include "src/net/udp/udp_io.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

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

static_assert(1 + UdpIoOptions::kMaxGroups <= WakeEvent::kMaxPolled);

class UdpIo final : public PacketIo {
 public:
  UdpIo(UdpSocket socket, std::vector<UdpSocket> groups, WakeEvent event, const UdpIoOptions& options)
      : socket_(std::move(socket)),
        groups_(std::move(groups)),
        event_(std::move(event)),
        gso_asked_(options.gso),
        sender_(socket_.fd.get(), socket_.gso) {
    receivers_.emplace_back(socket_.fd.get(), socket_.gro, options.max_packet);
    for (const UdpSocket& group : groups_)
      receivers_.emplace_back(group.fd.get(), group.gro, options.max_packet);
  }

  void send(std::span<const OutPacket> burst) override { sender_.send(burst, &counters_); }

  size_t receive(std::span<InPacket> burst) override;

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
  std::vector<UdpSocket> groups_;
  WakeEvent event_;
  bool gso_asked_;
  PacketIoCounters counters_;
  UdpSender sender_;
  std::vector<UdpReceiver> receivers_;  // of socket_, then of each group
  size_t first_ = 0;  // whose turn it is to be read first, so that a full burst starves none
};

size_t UdpIo::receive(std::span<InPacket> burst) {
  size_t received = 0;
  for (size_t i = 0; i < receivers_.size(); ++i) {
    received += receivers_[(first_ + i) % receivers_.size()].receive(burst.subspan(received), &counters_);
  }
  first_ = (first_ + 1) % receivers_.size();
  return received;
}

void UdpIo::wait(int64_t timeout_us) {
  std::array<pollfd, 1 + UdpIoOptions::kMaxGroups> polled;
  polled[0] = {socket_.fd.get(), POLLIN, 0};
  for (size_t i = 0; i < groups_.size(); ++i) polled[i + 1] = {groups_[i].fd.get(), POLLIN, 0};
  for (const UdpReceiver& receiver : receivers_) {
    if (receiver.has_leftovers()) return;
  }
  event_.wait(std::span(polled).first(receivers_.size()), timeout_us);
}

}  // namespace

Result<std::unique_ptr<PacketIo>> open_udp(const UdpIoOptions& options) {
  Result<UdpSocket> socket = open_udp_socket(options);
  if (!socket.ok()) return socket.status();
  if (options.groups.size() > UdpIoOptions::kMaxGroups) {
    return Status(ErrorCode::kInvalidArgument, "UDP socket: " + std::to_string(options.groups.size()) +
                                                   " multicast groups are more than " +
                                                   std::to_string(UdpIoOptions::kMaxGroups));
  }
  std::vector<UdpSocket> groups;
  for (const MulticastMembership& membership : options.groups) {
    Result<UdpSocket> group = open_group_socket(membership, options);
    if (!group.ok()) return group.status();
    groups.push_back(std::move(group).value());
  }
  Result<WakeEvent> event = WakeEvent::open();
  if (!event.ok()) return event.status();
  return std::unique_ptr<PacketIo>(std::make_unique<UdpIo>(std::move(socket).value(), std::move(groups),
                                                           std::move(event).value(), options));
}

}  // namespace netsum
