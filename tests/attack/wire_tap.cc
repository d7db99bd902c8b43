#include "tests/attack/wire_tap.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <netpacket/packet.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace netsum::attack {

bool WireTap::open(int* error) {
  listen_ = socket(AF_PACKET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, htons(ETH_P_IP));
  send_ = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW);
  sockaddr_ll loopback{};
  loopback.sll_family = AF_PACKET;
  loopback.sll_protocol = htons(ETH_P_IP);
  loopback.sll_ifindex = static_cast<int>(if_nametoindex("lo"));
  const int buffer_bytes = 32 << 20;
  if (listen_ < 0 || send_ < 0 || setsockopt(listen_, SOL_SOCKET, SO_RCVBUFFORCE, &buffer_bytes, 4) != 0 ||
      bind(listen_, reinterpret_cast<const sockaddr*>(&loopback), sizeof loopback) != 0) {
    *error = errno;
    return false;
  }
  return true;
}

WireTap::~WireTap() {
  if (listen_ >= 0) close(listen_);
  if (send_ >= 0) close(send_);
}

std::vector<Datagram> WireTap::take(uint16_t port, size_t datagram_bytes, size_t most) {
  std::vector<Datagram> taken;
  std::vector<uint8_t> packet(1 << 16);
  while (taken.size() < most) {
    sockaddr_ll where{};
    socklen_t where_bytes = sizeof where;
    const ssize_t got =
        recvfrom(listen_, packet.data(), packet.size(), 0, reinterpret_cast<sockaddr*>(&where), &where_bytes);
    if (got < 0) break;
    const auto size = static_cast<size_t>(got);
    // On loopback each packet is seen twice, going out and coming in.
    if (where.sll_pkttype == PACKET_OUTGOING || size < sizeof(iphdr) + sizeof(udphdr)) continue;
    iphdr ip;
    udphdr udp;
    std::memcpy(&ip, packet.data(), sizeof ip);
    std::memcpy(&udp, &packet[sizeof ip], sizeof udp);
    if (ip.protocol != IPPROTO_UDP || ip.ihl != 5) continue;
    const Datagram ends{.from_port = ntohs(udp.source), .to_port = ntohs(udp.dest), .bytes = {}};
    if (ends.from_port != port && ends.to_port != port) continue;
    for (size_t at = sizeof ip + sizeof udp; at < size; at += datagram_bytes) {
      taken.push_back(ends);
      const auto begin = packet.begin() + static_cast<std::ptrdiff_t>(at);
      taken.back().bytes.assign(begin,
                                begin + static_cast<std::ptrdiff_t>(std::min(datagram_bytes, size - at)));
    }
  }
  return taken;
}

bool WireTap::send(uint16_t from_port, uint16_t to_port, std::span<const uint8_t> payload) const {
  struct {
    iphdr ip;
    udphdr udp;
  } headers{};
  headers.ip.version = 4;
  headers.ip.ihl = 5;
  headers.ip.ttl = 64;
  headers.ip.protocol = IPPROTO_UDP;
  headers.ip.saddr = headers.ip.daddr = htonl(INADDR_LOOPBACK);
  headers.udp.source = htons(from_port);
  headers.udp.dest = htons(to_port);
  headers.udp.len = htons(static_cast<uint16_t>(sizeof headers.udp + payload.size()));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  iovec parts[] = {{&headers, sizeof headers}, {const_cast<uint8_t*>(payload.data()), payload.size()}};
  msghdr message{};
  message.msg_name = &to;
  message.msg_namelen = sizeof to;
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  return sendmsg(send_, &message, 0) > 0;
}

}  // namespace netsum::attack
