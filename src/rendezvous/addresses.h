// Addresses of this machine that other machines can reach.
#ifndef NETSUM_SRC_RENDEZVOUS_ADDRESSES_H_
#define NETSUM_SRC_RENDEZVOUS_ADDRESSES_H_

#include <string>
#include <vector>

namespace netsum {

struct InterfaceAddress {
  std::string interface;  // "eth0"
  std::string address;    // "10.0.0.1", "fd00::1"
};

// Addresses of interfaces that are up, without loopback and link-local ones. IPv4 first.
std::vector<InterfaceAddress> interface_addresses();

// The machine and network namespace of this process: equal for processes that reach each other by 127.0.0.1.
std::string host_identity();

// The local address of the route to `remote`, "" if there is no route or it does not leave this machine.
std::string address_towards(const std::string& remote);

// "10.0.0.1:80", "[fd00::1]:80".
std::string with_port(const std::string& address, int port);

}  // namespace netsum

#endif  // NETSUM_SRC_RENDEZVOUS_ADDRESSES_H_
