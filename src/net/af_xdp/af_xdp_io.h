// PacketIo over AF_XDP: frames by rings shared with the kernel, past its network stack, on one interface.
//
// Beside the rings there is a UDP socket with the same port. It keeps the port ours, makes the kernel find
// out MAC addresses, and carries what the rings cannot: packets to this host, by other interfaces, to
// multicast or IPv6 addresses, above the interface's MTU; and it receives what does not come by queue 0, or
// comes with IP options or in fragments. Should the interface vanish, it carries everything.
//
// Differences from a UDP socket: datagrams leave without a UDP checksum, those that come in by the ring are
// taken without looking at theirs, and frames go past queueing disciplines (tc) and packet filters.
#ifndef NETSUM_SRC_NET_AF_XDP_AF_XDP_IO_H_
#define NETSUM_SRC_NET_AF_XDP_AF_XDP_IO_H_

#include <chrono>
#include <memory>

#include "src/base/spin_wait.h"
#include "src/net/packet_io.h"

namespace netsum {

struct AfXdpIoOptions {
  // The destination of most packets: the route to it determines the interface and the local address. IPv4.
  Address remote;
  uint16_t port = 0;           // local UDP port; 0: any free one
  uint32_t max_packet = 1472;  // largest datagram, bytes; larger arrivals are dropped and counted
  // That wait() may watch before it sleeps.
  std::chrono::microseconds spin{SpinWait::kSpinUs};
};

// Whether this process may, and this kernel can, before any interface is asked. Changes nothing. Errors:
// kUnsupported, kPermissionDenied.
Status probe_af_xdp();

// Needs an Ethernet interface whose driver takes native XDP programs (veth does), without one so far and
// without traffic shaping; an MTU of at most 3804 bytes, or what the driver allows; and the privilege.
// Errors, which all mean "use UDP" and say why: kUnsupported, kPermissionDenied, kAddressInUse (interface or
// port), kUnreachable (no route), kResourceExhausted.
Result<std::unique_ptr<PacketIo>> open_af_xdp(const AfXdpIoOptions& options);

}  // namespace netsum

#endif  // NETSUM_SRC_NET_AF_XDP_AF_XDP_IO_H_
