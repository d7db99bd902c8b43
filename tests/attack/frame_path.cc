#include "tests/attack/frame_path.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "tests/conformance/frames.h"

namespace netsum::attack {
namespace {

using conformance::Bytes;
using conformance::FrameAddresses;
using conformance::FrameHeaders;

// Before each frame: what the kernel has left to the interface to do, such as checksums, or to cut a TCP segment. It
// goes on with the frame. The size of struct virtio_net_hdr, whose header is not C++.
constexpr size_t kOffload = 10;

// All frames that arrive at the interface of this namespace.
FileDescriptor open_interface(const std::string& name) {
  FileDescriptor fd(socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1, buffer_bytes = 8 << 20;
  sockaddr_ll here{};
  here.sll_family = AF_PACKET;
  here.sll_protocol = htons(ETH_P_ALL);
  here.sll_ifindex = static_cast<int>(if_nametoindex(name.c_str()));
  const bool ready = fd.valid() && here.sll_ifindex > 0 &&
                     setsockopt(fd.get(), SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) == 0 &&
                     setsockopt(fd.get(), SOL_PACKET, PACKET_VNET_HDR, &on, sizeof on) == 0 &&
                     setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUFFORCE, &buffer_bytes, sizeof on) == 0 &&
                     setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUFFORCE, &buffer_bytes, sizeof on) == 0 &&
                     bind(fd.get(), reinterpret_cast<const sockaddr*>(&here), sizeof here) == 0;
  return ready ? std::move(fd) : FileDescriptor();
}

Address address_of(uint32_t ip, uint16_t port) {
  Address address;
  address.family = 4;
  std::memcpy(address.ip.data(), &ip, sizeof ip);
  address.port = ntohs(port);
  return address;
}

// Empty unless the frame is one UDP datagram.
std::optional<FrameAddresses> addresses_of(std::span<const uint8_t> frame) {
  FrameHeaders headers;
  if (frame.size() < sizeof headers) return std::nullopt;
  std::memcpy(&headers, frame.data(), sizeof headers);
  if (headers.eth.h_proto != htons(ETH_P_IP) || headers.ip.ihl != 5 || headers.ip.protocol != IPPROTO_UDP ||
      sizeof headers.eth + ntohs(headers.ip.tot_len) > frame.size() ||
      ntohs(headers.udp.len) != ntohs(headers.ip.tot_len) - sizeof headers.ip)
    return std::nullopt;
  FrameAddresses addresses;
  std::copy(std::begin(headers.eth.h_source), std::end(headers.eth.h_source), addresses.from_mac.begin());
  std::copy(std::begin(headers.eth.h_dest), std::end(headers.eth.h_dest), addresses.to_mac.begin());
  addresses.from = address_of(headers.ip.saddr, headers.udp.source);
  addresses.to = address_of(headers.ip.daddr, headers.udp.dest);
  return addresses;
}

size_t datagram_bytes(std::span<const uint8_t> frame) {
  FrameHeaders headers;
  std::memcpy(&headers, frame.data(), sizeof headers);
  return ntohs(headers.udp.len) - sizeof headers.udp;
}

}  // namespace

Result<std::unique_ptr<FramePath>> FramePath::open(const conformance::VethLab& lab, int hosts) {
  std::unique_ptr<FramePath> path(new FramePath);
  path->buffer_.resize(kOffload + (1 << 17));
  const conformance::VethLab::Inside inside = lab.between();
  for (int host = 0; host < hosts; ++host) {
    const std::string number = std::to_string(host);
    path->links_.push_back({open_interface("h" + number), open_interface("s" + number)});
    if (!path->links_.back().to_host.valid() || !path->links_.back().to_switch.valid())
      return Status(ErrorCode::kUnsupported, std::string("cannot open a cut link: ") + std::strerror(errno));
  }
  return path;
}

// One frame.
void FramePath::pass(int host, bool to_switch, const Editor& edit) {
  const Link& link = links_[static_cast<size_t>(host)];
  const int from = (to_switch ? link.to_host : link.to_switch).get();
  const int to = (to_switch ? link.to_switch : link.to_host).get();
  const ssize_t got = recv(from, buffer_.data(), buffer_.size(), 0);
  if (got <= static_cast<ssize_t>(kOffload)) return;
  std::span<const uint8_t> whole(buffer_.data(), static_cast<size_t>(got));
  const std::span<const uint8_t> frame = whole.subspan(kOffload);
  Bytes replaced;
  if (const auto addresses = addresses_of(frame)) {
    const Passing passing{.host = host,
                          .to_switch = to_switch,
                          .from = addresses->from,
                          .to = addresses->to,
                          .datagram = frame.subspan(sizeof(FrameHeaders), datagram_bytes(frame))};
    if (const std::optional<Bytes> other = edit(passing)) {
      replaced = conformance::frame_of(*addresses, *other);
      replaced.insert(replaced.begin(), kOffload, 0);  // nothing is left to do
      whole = replaced;
    }
  }
  if (send(to, whole.data(), whole.size(), 0) < 0) ++lost_;
}

void FramePath::carry(const Editor& edit, const std::atomic<bool>& stop) {
  std::vector<pollfd> ends;
  for (const Link& link : links_) {
    ends.push_back({.fd = link.to_host.get(), .events = POLLIN, .revents = 0});
    ends.push_back({.fd = link.to_switch.get(), .events = POLLIN, .revents = 0});
  }
  while (!stop.load(std::memory_order_acquire)) {
    if (poll(ends.data(), ends.size(), 20) <= 0) continue;
    for (size_t i = 0; i < ends.size(); ++i)
      if ((ends[i].revents & POLLIN) != 0) pass(static_cast<int>(i / 2), i % 2 == 0, edit);
  }
}

}  // namespace netsum::attack
