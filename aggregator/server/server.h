// The user-space dataplane. A port is an address of this host, usually that of one interface; a core is a thread. Each
// stripe has a UDP socket at a port and an AggregatorCore, and nothing in common with the others. A core serves one or
// more stripes.
#ifndef NETSUM_AGGREGATOR_SERVER_SERVER_H_
#define NETSUM_AGGREGATOR_SERVER_SERVER_H_

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "aggregator/dataplane/dataplane.h"
#include "netsum/options.h"
#include "netsum/status.h"
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

struct UdpDataplaneOptions {
  static constexpr size_t kMaxStripes = 256;

  // Of one address family; a wildcard must be the only one.
  std::vector<UdpPort> ports;
  // Cores are numbered from 0, without a gap.
  std::vector<UdpStripe> stripes = {{}};
  // UDP port of the first stripe; the others have the following ones. 0: any free ones.
  uint16_t first_udp_port = 0;
  uint32_t slots_per_stripe = 4096;
  int max_jobs = 64;
  // Each job has a receive queue of its own on each stripe (see queues.h): who sends more than is taken loses
  // its own packets, not those of others.
  bool queue_for_each_job = false;
  uint32_t payload_bytes = 1440;
  // A multicast group for the results of each job; ports must then be IPv4 addresses of this host, not a wildcard: a stripe's results
  // come from its port's address, and leave by its interface. Empty: one copy to each member.
  std::optional<MulticastRange> multicast_groups = std::nullopt;
  int multicast_ttl = 1;
  JobQuota quota = {};
  std::function<Status()> drop_privileges;  // AggregatorOptions::drop_privileges
  InjectedFaults inject = {};               // each stripe draws losses of its own
};

// Errors: kAddressInUse, kInvalidArgument, kResourceExhausted, kUnsupported. Stops its threads when
// destroyed.
Result<std::unique_ptr<Dataplane>> start_udp_dataplane(const UdpDataplaneOptions& options);

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_SERVER_SERVER_H_
