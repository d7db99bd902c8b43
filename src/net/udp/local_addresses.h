// The addresses of this host at which a wildcard socket is reached, as small numbers: InPacket::local.
#ifndef NETSUM_SRC_NET_UDP_LOCAL_ADDRESSES_H_
#define NETSUM_SRC_NET_UDP_LOCAL_ADDRESSES_H_

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <vector>

#include "src/net/address.h"

namespace netsum {

class LocalAddresses {
 public:
  // A host whose routes make whole prefixes local has no end of addresses, and any datagram may name one. Beyond this many,
  // a new address takes the number of the one that was asked longest ago, among those from which nothing was sent. Numbers
  // from which something was sent keep their addresses.
  static constexpr size_t kMost = 1024;
  // Those that can lose their numbers. At fewer, new addresses get none, so that what one receive() returns stays valid until
  // it is answered.
  static constexpr size_t kLeastUnanswered = 512;
  static constexpr size_t kControlBytes = CMSG_SPACE(sizeof(in6_pktinfo));

  // Asks the kernel to say with each datagram to which address it was sent. False: it cannot.
  static bool ask(int fd, int family);

  // The number of the address that the message was sent to. 0: the kernel did not say, or there is no number for it.
  uint16_t number_of(msghdr* message);

  // Writes a control message with which the kernel sends from the address of that number, which is not 0.
  // Returns its space; `control` has room for kControlBytes.
  size_t write_source(uint16_t number, cmsghdr* control);

 private:
  struct Entry {
    Address address;
    bool answered = false;
    std::list<uint16_t>::iterator place;  // in unanswered_, if that is so
  };
  uint16_t new_number(const Address& address);

  std::map<Address, uint16_t> numbers_;
  std::vector<Entry> entries_;      // number n is entries_[n - 1]
  std::list<uint16_t> unanswered_;  // the one that was asked longest ago first
  Address last_;
  uint16_t last_number_ = 0;
};

}  // namespace netsum

#endif  // NETSUM_SRC_NET_UDP_LOCAL_ADDRESSES_H_
