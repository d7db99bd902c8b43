// Hosts on one Ethernet, as nameless network namespaces joined by veth pairs and a bridge. They vanish with
// the object, or with the process.
#ifndef NETSUM_TESTS_CONFORMANCE_VETH_NETWORK_H_
#define NETSUM_TESTS_CONFORMANCE_VETH_NETWORK_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "netsum/status.h"
#include "src/base/file_descriptor.h"
#include "src/net/address.h"

namespace netsum {

class VethNetwork {
 public:
  // Errors: kPermissionDenied (a test may skip then), kInternal.
  // Host i has 10.77.0.(i+1)/24 on its interface e<i>; the switch has 10.77.0.254 on its bridge.
  // `known_neighbours`: the hosts know each other's MAC addresses from the start.
  static Result<std::unique_ptr<VethNetwork>> make(int hosts, int mtu, bool known_neighbours);

  Address address(int host, uint16_t port = 0) const;
  Address switch_address(uint16_t port = 0) const;

  // Runs `body` on a thread that is in the host's (the switch's) namespace. Sockets that it opens stay there.
  void in_host(int host, const std::function<void()>& body) const;
  void in_switch(const std::function<void()>& body) const;
  // An iproute2 command there, e.g. "link set e0 down".
  Status ip_in_host(int host, const std::string& command) const;

 private:
  VethNetwork() = default;

  FileDescriptor switch_;
  std::vector<FileDescriptor> hosts_;
};

}  // namespace netsum

#endif  // NETSUM_TESTS_CONFORMANCE_VETH_NETWORK_H_
