// Opening a UDP socket with the options that the data path needs.
#ifndef NETSUM_SRC_NET_UDP_SOCKET_H_
#define NETSUM_SRC_NET_UDP_SOCKET_H_

#include <cstdint>
#include <vector>

#include "netsum/status.h"
#include "src/base/file_descriptor.h"
#include "src/net/address.h"
#include "src/net/udp/udp_io.h"

namespace netsum {

struct UdpSocket {
  FileDescriptor fd;
  Address local;     // with the port in fact bound
  bool gso = false;  // asked for, and the kernel has it
  bool gro = false;
  bool says_local = false;  // to which address each datagram was sent
};

// One socket, whatever options.queues says. Errors: as open_udp().
Result<UdpSocket> open_udp_socket(const UdpIoOptions& options);

// options.queues of them on one port.
Result<std::vector<UdpSocket>> open_udp_queues(const UdpIoOptions& options);

// Datagrams that found the receive buffer full since the socket was opened.
uint64_t overflowed(int fd);

// A socket that receives from the multicast group; `options` gives its buffers and features.
Result<UdpSocket> open_multicast_socket(const MulticastMembership& membership, const UdpIoOptions& options);

}  // namespace netsum

#endif  // NETSUM_SRC_NET_UDP_SOCKET_H_
