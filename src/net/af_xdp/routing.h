// What the kernel knows about the way to an address: by which interface, from which address, to which MAC.
#ifndef NETSUM_SRC_NET_AF_XDP_ROUTING_H_
#define NETSUM_SRC_NET_AF_XDP_ROUTING_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "netsum/status.h"
#include "src/net/af_xdp/frame.h"

struct mnl_socket;
struct nlmsghdr;

namespace netsum {

struct Interface {
  uint32_t index = 0;
  std::string name;
  MacAddress mac{};
  uint32_t mtu = 0;      // bytes
  std::string queueing;  // the root queueing discipline, as `tc` names it
};

struct Route {
  uint32_t interface = 0;
  Address source;    // with port 0
  Address next_hop;  // the gateway, or the destination itself
};

// Queries to the kernel by rtnetlink, in the network namespace in which it was opened. IPv4 only. The kernel answers
// within the call, so nothing here waits.
class Routing {
 public:
  // Error: kResourceExhausted.
  static Result<Routing> open();

  // Nothing if no unicast route leaves the host: there is none, or `to` is an address of this host or a broadcast address.
  std::optional<Route> route(const Address& to);
  // Nothing while the kernel does not know it.
  std::optional<MacAddress> neighbour(uint32_t interface, const Address& ip);
  // Errors: kUnsupported (not Ethernet, as the loopback), kUnreachable (gone or down).
  Result<Interface> interface(uint32_t index);

 private:
  struct Close {
    void operator()(mnl_socket* socket) const;
  };
  explicit Routing(mnl_socket* socket) : socket_(socket) {}

  // Sends `request` and leaves the answer in `answer_`; nullptr if the kernel refused.
  const nlmsghdr* ask(nlmsghdr* request);

  std::unique_ptr<mnl_socket, Close> socket_;
  uint32_t sequence_ = 0;
  std::unique_ptr<uint8_t[]> answer_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_NET_AF_XDP_ROUTING_H_
