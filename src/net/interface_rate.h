// The rate of a network interface, as its driver reports it.
#ifndef NETSUM_SRC_NET_INTERFACE_RATE_H_
#define NETSUM_SRC_NET_INTERFACE_RATE_H_

#include <string>

#include "netsum/status.h"
#include "src/net/address.h"

namespace netsum {

// The name of the interface that holds this address; the port is ignored. Errors: kInvalidArgument (a wildcard, or no
// address), kUnreachable (no interface of this network namespace has it).
Result<std::string> interface_with_address(const Address& local);

// Bits per second in each direction, above 0. No interface knows its traffic shaping, so a declared rate has precedence.
// Error: kUnsupported: the interface reports no rate (loopback, dummy, some virtual machines), has no carrier, or is a
// veth, bridge or tun, whose rate is nominal (veth: 10 Gbit/s).
Result<double> interface_rate_bps(const std::string& interface);

// Both in one.
Result<double> interface_rate_bps(const Address& local);

}  // namespace netsum

#endif  // NETSUM_SRC_NET_INTERFACE_RATE_H_
