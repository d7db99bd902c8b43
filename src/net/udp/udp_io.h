// PacketIo over a UDP socket: recvmmsg/sendmmsg batches, with UDP GSO and GRO where the kernel has them.
//
// An IPv6 socket carries IPv6 only. When the route does not take segmented sends, they are switched off for
// the socket and description() says so. Everything is allocated by open_udp().
#ifndef NETSUM_SRC_NET_UDP_UDP_IO_H_
#define NETSUM_SRC_NET_UDP_UDP_IO_H_

#include <memory>

#include "src/net/packet_io.h"

namespace netsum {

struct UdpIoOptions {
  Address bind;                  // port 0: any free one
  uint32_t max_packet = 1472;    // largest datagram, bytes; larger arrivals are dropped and counted
  int receive_buffer = 8 << 20;  // bytes asked for; the kernel's limit (net.core.rmem_max) applies
  int send_buffer = 8 << 20;
  bool gso = true;  // off: one datagram per kernel send
  bool gro = true;
  bool dont_fragment = true;  // so that a wrong MTU shows as loss of large packets, not as fragments
};

// Errors: kAddressInUse, kInvalidArgument (address not on this host, max_packet out of range),
// kResourceExhausted.
Result<std::unique_ptr<PacketIo>> open_udp(const UdpIoOptions& options);

}  // namespace netsum

#endif  // NETSUM_SRC_NET_UDP_UDP_IO_H_
