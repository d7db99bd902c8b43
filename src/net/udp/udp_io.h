// PacketIo over a UDP socket: recvmmsg/sendmmsg batches, with UDP GSO and GRO where the kernel has them.
//
// An IPv6 socket carries IPv6 only. When the route does not take segmented sends, they are switched off for
// the socket and description() says so. Everything is allocated by open_udp().
#ifndef NETSUM_SRC_NET_UDP_UDP_IO_H_
#define NETSUM_SRC_NET_UDP_UDP_IO_H_

#include <linux/filter.h>

#include <chrono>
#include <memory>
#include <vector>

#include "src/base/spin_wait.h"
#include "src/net/multicast.h"
#include "src/net/packet_io.h"

namespace netsum {

struct UdpIoOptions {
  Address bind;                  // port 0: any free one
  uint32_t max_packet = 1472;    // largest datagram, bytes; larger arrivals are dropped and counted
  int receive_buffer = 8 << 20;  // bytes asked for; the kernel's limit (net.core.rmem_max) applies
  int send_buffer = 8 << 20;
  static constexpr size_t kMaxGroups = 8;
  bool gso = true;  // off: one datagram per kernel send
  bool gro = true;
  bool dont_fragment = true;  // so that a wrong MTU shows as loss of large packets, not as fragments
  // Above 0: packets to multicast groups leave by the interface that has `bind`, an IPv4 address that is no
  // wildcard, for so many hops.
  int multicast_ttl = 0;
  // `bind` is a wildcard and peers expect answers from the address they have sent to: InPacket::local and
  // OutPacket::local are in use. Without effect on a socket with an address of its own.
  bool answer_from_address_asked = false;
  // Above one: the port has this many sockets, at most kMaxQueues, each with its own receive buffer. They are read
  // round-robin, so a sender that fills one buffer takes little from the others. A classic BPF program, run on each
  // datagram (its byte 0 is the program's), returns the index of the socket that gets the datagram; an index out of
  // range selects any socket. For datagrams that were coalesced, the first one decides.
  static constexpr int kMaxQueues = 128;
  int queues = 1;
  std::vector<sock_filter> queue_selector;
  // Not -1: an epoll instance that watches all sockets of the port, level-triggered, until the PacketIo ends. A thread
  // that serves several ports waits on it: it is readable as long as one of them is. Nothing waits in the PacketIo itself
  // once receive() has returned 0.
  int epoll = -1;
  // That wait() may watch before it sleeps.
  std::chrono::microseconds spin{SpinWait::kSpinUs};
  // Multicast groups to receive from as well, each with its own socket; at most kMaxGroups. Other sockets of this host
  // may receive from the same groups.
  std::vector<MulticastMembership> multicast_groups;
};

// Errors: kAddressInUse, kInvalidArgument (address not on this host, max_packet or queues out of range, no
// such group), kResourceExhausted, kUnsupported (the kernel refuses the selector).
Result<std::unique_ptr<PacketIo>> open_udp(const UdpIoOptions& options);

}  // namespace netsum

#endif  // NETSUM_SRC_NET_UDP_UDP_IO_H_
