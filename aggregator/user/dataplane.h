// The user-space dataplane. A port is an address of this host, usually that of one interface; a core is a thread. Each
// stripe has its own UDP socket at a port and its own AggregatorCore; stripes share no state. A core serves one or more
// stripes.
#ifndef NETSUM_AGGREGATOR_USER_DATAPLANE_H_
#define NETSUM_AGGREGATOR_USER_DATAPLANE_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "aggregator/dataplane/dataplane.h"
#include "netsum/options.h"
#include "netsum/status.h"
#include "src/base/spin_wait.h"
#include "src/net/address.h"
#include "src/net/multicast.h"

namespace netsum {

struct UdpPort {
  Address address;      // its port number is not used
  double rate_bps = 0;  // of its link, for DataplanePort
};

struct UdpStripe {
  size_t port = 0;
  size_t core = 0;
};

struct UserDataplaneOptions {
  static constexpr size_t kMaxStripes = 256;

  // Of one address family; a wildcard must be the only one.
  std::vector<UdpPort> ports;
  // Cores are numbered from 0, without a gap.
  std::vector<UdpStripe> stripes = {{}};
  std::chrono::microseconds spin{SpinWait::kSpinUs};  // that threads may watch before they sleep
  bool pin = false;  // core i stays on the i-th processor core that this process may use
  // UDP port of the first stripe; the others have the following ones. 0: any free ones.
  uint16_t first_udp_port = 0;
  uint32_t slots_per_stripe = 4096;
  int max_jobs = 64;
  // Each job has its own receive queue on each stripe (queues.h), so that a job that sends too fast loses only its own
  // packets.
  bool queue_for_each_job = false;
  uint32_t payload_bytes = 1440;
  // Results of each job are sent to a multicast group of this range. Ports must then be IPv4 addresses of this host, not a
  // wildcard, because a stripe's results have its port's address as source, and leave by its interface. Empty: one copy
  // to each member.
  std::optional<MulticastRange> multicast_groups = std::nullopt;
  int multicast_ttl = 1;
  bool members_in_process =
      false;  // Dataplane::attach_member() makes links, of one stripe at an address that is no wildcard
  JobQuota quota = {};
  std::function<Status()> drop_privileges;  // AggregatorOptions::drop_privileges
  InjectedFaults inject = {};               // each stripe has its own random sequence
};

// Errors: kAddressInUse, kInvalidArgument (also if fewer processor cores than cores to pin), kResourceExhausted,
// kUnsupported. Stops its threads when
// destroyed.
Result<std::unique_ptr<Dataplane>> start_user_dataplane(const UserDataplaneOptions& options);

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_USER_DATAPLANE_H_
