// IPv4 multicast: a range of group addresses, and what is needed to receive from a group.
#ifndef NETSUM_SRC_NET_MULTICAST_H_
#define NETSUM_SRC_NET_MULTICAST_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "netsum/status.h"
#include "src/net/address.h"

namespace netsum {

// Consecutive group addresses.
class MulticastRange {
 public:
  // "239.1.2.0/24"; without "/bits" a single address. Error: kInvalidArgument: not a prefix, not IPv4, not
  // multicast, or reaches into 224.0.0.0/24, which belongs to the protocols of the local network.
  static Result<MulticastRange> parse(std::string_view text);

  uint32_t size() const { return size_; }
  // The `index`-th address, below size(), with port 0.
  Address at(uint32_t index) const;

 private:
  uint32_t first_ = 0;  // host byte order
  uint32_t size_ = 0;
};

// A multicast group to receive from.
struct MulticastMembership {
  Address multicast_group;  // with the port that its packets are sent to
  Address interface;        // where they arrive: a local address of that interface
  // Only packets from these addresses arrive: other threads receive those of the others. Empty: all.
  std::vector<Address> sources = {};
};

}  // namespace netsum

#endif  // NETSUM_SRC_NET_MULTICAST_H_
