// Checks whether the process can listen on an address, because gRPC itself gives no reason when it fails.
#ifndef NETSUM_AGGREGATOR_CONTROL_LISTEN_H_
#define NETSUM_AGGREGATOR_CONTROL_LISTEN_H_

#include "netsum/status.h"
#include "src/net/address.h"

namespace netsum {

// Errors: kAddressInUse, kInvalidArgument (not an address of this host), kPermissionDenied (a port below
// 1024).
Status check_listen(const Address& address);

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_LISTEN_H_
