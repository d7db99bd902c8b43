// The data path of a job over the network: its stripes, and the engine whose threads they are divided among, each with
// packet I/O of its own.
#ifndef NETSUM_SESSION_NETWORK_PATH_H_
#define NETSUM_SESSION_NETWORK_PATH_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/network_core.h"
#include "netsum/options.h"
#include "netsum/status.h"
#include "session/job_membership.h"
#include "session/job_stripes.h"
#include "session/shard.h"
#include "src/bursts/meter.h"
#include "src/net/lossy.h"
#include "src/net/multicast.h"

namespace netsum {

struct NetworkPath {
  std::unique_ptr<Engine> engine;
  struct OneStripe : JobStripe {
    const Stripe* stripe = nullptr;  // the engine's, for its counters
  };
  std::vector<OneStripe> stripes;
  std::vector<const WorkerCore*> workers;  // the engine's, one for each thread
  ShardJob shard_job;                      // where a shard takes part
  std::string note;  // for describe(): how packets travel, and by how many threads; empty if by default
  // How floats are added, as far as this rank knows: the member of each rank. Empty: not at all, but in fixed point. Of ranks that
  // all share one host, too, though they have no path.
  std::string order_of_floats;
  std::vector<const PacketIoCounters*> packets;      // of each thread; live as long as the engine
  std::vector<const bursts::Meter*> sent, received;  // likewise
  std::vector<const LossyIo*> faults;                // live as long as the engine; empty: none are injected
};

// `worker` with the stripes of a job that has been joined, and what else follows from the memberships. *job_stripes: what they
// are in the job. A `payload_bytes` other than 0 is used in place of the one granted.
Result<WorkerOptions> worker_of(const Memberships& memberships, WorkerOptions worker, uint32_t payload_bytes,
                                const CommunicatorOptions& options, std::vector<JobStripe>* job_stripes);
// By which the results of the stripes come, on the interfaces that lead to the aggregators.
Result<std::vector<MulticastMembership>> multicast_groups(const std::vector<StripeOptions>& stripes);

// Makes the engine for a job that has been joined; it connects in the background. The stripes in `worker` and their
// weights follow from the memberships. A `payload_bytes` other than 0 is used in place of the one granted. `ranks_here`: that
// use the link and the cores of this host. `trace` as Engine's.
Result<NetworkPath> open_path(const Memberships& memberships, WorkerOptions worker, uint32_t payload_bytes,
                              const CommunicatorOptions& options, size_t ranks_here, Shard* shard,
                              std::function<void(const Status&)> on_failed, TraceLog* trace);

// An XDP program answers HELLOs by a socket, but redirects results to the interface that leads to the member. Error:
// kUnsupported, if this host's may drop them: it does, if it is the other end of the program's own link.
Status check_reception(const Memberships& memberships);

}  // namespace netsum

#endif  // NETSUM_SESSION_NETWORK_PATH_H_
