// What this_host() is made of.
#ifndef NETSUM_SRC_HOST_HOST_IDENTITY_H_
#define NETSUM_SRC_HOST_HOST_IDENTITY_H_

#include <cstdint>
#include <string>

namespace netsum {

// Machines that were copied while they ran have one boot id, and the initial network namespace has the same number everywhere.
// On one network they differ in the Ethernet address of their first interface.
struct HostIdentity {
  std::string boot_id;
  uint64_t network_namespace = 0;
  std::string ethernet;  // "": no interface has one
  uint64_t user = 0;
  std::string name() const;
};

}  // namespace netsum

#endif  // NETSUM_SRC_HOST_HOST_IDENTITY_H_
