// The one device of this plug-in: a network interface.
#ifndef NETSUM_NCCL_DEVICE_H_
#define NETSUM_NCCL_DEVICE_H_

#include <cstdint>
#include <string>

#include "src/rendezvous/addresses.h"
#include "src/rendezvous/join.h"

namespace netsum::nccl {

struct Device {
  std::string name;     // of the interface
  std::string address;  // at which peers reach this process
  std::string pci;      // path in /sys; "" if the interface is virtual
  uint64_t id = 0;      // of the interface, stable on this host
  int speed_mbps = 10'000;
};

// Whether NCCL_SOCKET_IFNAME selects the interface: a list of prefixes, "=" before it asks for equal names, "^" for all
// others. An empty list selects all but "docker".
bool selects(const std::string& list, const std::string& interface);

// Chooses the first interface that NCCL_SOCKET_IFNAME selects, loopback if there is none. The result is the same during
// the life of the process.
const Device& device();

}  // namespace netsum::nccl

#endif  // NETSUM_NCCL_DEVICE_H_
