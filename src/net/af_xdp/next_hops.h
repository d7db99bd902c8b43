// Which frames' headers lead to an address, looked up once and checked again now and then.
#ifndef NETSUM_SRC_NET_AF_XDP_NEXT_HOPS_H_
#define NETSUM_SRC_NET_AF_XDP_NEXT_HOPS_H_

#include <cstdint>
#include <vector>

#include "src/net/af_xdp/frame.h"
#include "src/net/af_xdp/routing.h"

namespace netsum {

class NextHops {
 public:
  // Packets leave by `interface` from `local` or not at all.
  NextHops(Routing routing, const Interface& interface, const Address& local);

  // nullptr: send this packet by the UDP socket. So go those that the interface does not lead to, those whose
  // neighbour's MAC address is not known yet, and one a second of the others: the kernel keeps verifying a
  // neighbour only while it sends to it. The pointer holds until the next call.
  const FrameHeaders* find(const Address& to, int64_t now_us);

 private:
  static constexpr size_t kMaxDestinations = 256;  // of the others all packets go by the UDP socket

  struct Hop {
    Address to;
    FrameHeaders headers;
    bool usable = false;
    int64_t check_at_us = 0;
  };
  const FrameHeaders* check(Hop* hop, int64_t now_us);

  Routing routing_;
  const Interface interface_;
  const Address local_;
  std::vector<Hop> hops_;
  size_t last_ = 0;  // found last: mostly wanted next
};

}  // namespace netsum

#endif  // NETSUM_SRC_NET_AF_XDP_NEXT_HOPS_H_
