// The addresses of this host at which a wildcard socket is reached, as small numbers: InPacket::local.
#ifndef NETSUM_SRC_NET_UDP_LOCAL_ADDRESSES_H_
#define NETSUM_SRC_NET_UDP_LOCAL_ADDRESSES_H_

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "src/net/address.h"

namespace netsum {

class LocalAddresses {
 public:
  // More are not remembered (number 0): a host whose routes make whole prefixes local has no end of them.
  static constexpr size_t kMost = 1024;
  static constexpr size_t kControlBytes = CMSG_SPACE(sizeof(in6_pktinfo));

  // Asks the kernel to say with each datagram to which address it was sent. False: it cannot.
  static bool ask(int fd, int family);

  // The number of the address that the message was sent to. 0: the kernel did not say, or the table is full.
  uint16_t number_of(msghdr* message);

  // Writes a control message with which the kernel sends from the address of that number, which is not 0.
  // Returns its space; `control` has room for kControlBytes.
  size_t write_source(uint16_t number, cmsghdr* control) const;

 private:
  std::map<Address, uint16_t> numbers_;
  std::vector<Address> addresses_;  // number n is addresses_[n - 1]
  Address last_;
  uint16_t last_number_ = 0;
};

}  // namespace netsum

#endif  // NETSUM_SRC_NET_UDP_LOCAL_ADDRESSES_H_
