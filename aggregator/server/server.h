// The user-space dataplane: one thread, one UDP port and one AggregatorCore per processor core, and nothing
// shared between them. To a worker each core is a stripe of its own.
#ifndef NETSUM_AGGREGATOR_SERVER_SERVER_H_
#define NETSUM_AGGREGATOR_SERVER_SERVER_H_

#include <functional>
#include <memory>
#include <optional>

#include "aggregator/dataplane/dataplane.h"
#include "netsum/options.h"
#include "netsum/status.h"
#include "src/net/address.h"
#include "src/net/multicast.h"

namespace netsum {

struct UdpDataplaneOptions {
  Address bind;  // port 0: any free ones; otherwise `cores` ports in a row from here
  int cores = 1;
  uint32_t slots_per_core = 4096;
  int max_jobs = 64;
  // Each job has a receive queue of its own on each core (see queues.h): who sends more than is taken loses
  // its own packets, not those of others.
  bool queue_for_each_job = false;
  uint32_t payload_bytes = 1440;
  // A multicast group for the results of each job; `bind` must then be an IPv4 address of this host, not a wildcard: it
  // is where they come from, and its interface where they leave. Empty: one copy to each member.
  std::optional<MulticastRange> multicast_groups = std::nullopt;
  int multicast_ttl = 1;
  JobQuota quota = {};
  std::function<Status()> drop_privileges;  // AggregatorOptions::drop_privileges
  InjectedFaults inject = {};               // each core draws losses of its own
};

// Errors: kAddressInUse, kInvalidArgument, kResourceExhausted, kUnsupported. Stops its threads when
// destroyed.
Result<std::unique_ptr<Dataplane>> start_udp_dataplane(const UdpDataplaneOptions& options);

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_SERVER_SERVER_H_
