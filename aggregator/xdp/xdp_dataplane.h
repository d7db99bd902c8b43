// The XDP dataplane: netsum.bpf.c attached to the ports of a switch or a spare host, and the thread that sets up members.
// For a worker it is an aggregator like any other.
#ifndef NETSUM_AGGREGATOR_XDP_XDP_DATAPLANE_H_
#define NETSUM_AGGREGATOR_XDP_XDP_DATAPLANE_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aggregator/dataplane/dataplane.h"
#include "netsum/options.h"
#include "netsum/status.h"
#include "src/net/address.h"
#include "src/net/multicast.h"

namespace netsum {

struct XdpDataplaneOptions {
  // An IPv4 address of this host, to which members send; port 0: any free one. The same port is held as a UDP
  // socket: packets that arrive by other interfaces are not summed.
  Address bind;
  std::vector<std::string> interfaces;  // where members' packets come in, in this network namespace
  uint32_t slots = 4096;                // 2 x payload bytes each
  int max_jobs = 64;
  uint32_t payload_bytes = 1440;  // a multiple of 32, at most NETSUM_XDP_MAX_PAYLOAD
  // A multicast group for the results of each job: one copy for each interface with members. Empty: one copy for each
  // member.
  std::optional<MulticastRange> multicast_groups = std::nullopt;
  int multicast_ttl = 1;
  JobQuota quota = {};
  std::function<Status()> drop_privileges;  // AggregatorOptions::drop_privileges
  InjectedFaults inject = {};               // `seed` has no meaning here
};

// Loads the program and attaches it in native mode. It is detached when the object, or the process, ends.
// Errors: kInvalidArgument (names the option), kPermissionDenied, kAddressInUse, kUnsupported (what the
// kernel or an interface's driver lacks; with the end of the verifier's log where it refused the program).
Result<std::unique_ptr<Dataplane>> start_xdp_dataplane(const XdpDataplaneOptions& options);

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_XDP_XDP_DATAPLANE_H_
