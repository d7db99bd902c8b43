// The data path of a job over the network: its stripes, the packet I/O, and the engine.
#ifndef NETSUM_COLLECTIVE_NETWORK_PATH_H_
#define NETSUM_COLLECTIVE_NETWORK_PATH_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collective/engine.h"
#include "collective/job_membership.h"
#include "collective/job_stripes.h"
#include "collective/network_core.h"
#include "collective/shard.h"
#include "netsum/options.h"
#include "netsum/status.h"
#include "src/net/lossy.h"

namespace netsum {

struct NetworkPath {
  std::unique_ptr<Engine> engine;
  const WorkerCore* worker = nullptr;  // the engine's, for its counters
  std::vector<JobStripe> stripes;      // the worker's, in its order
  ShardJob shard_job;                  // where a shard takes part
  std::string note;                    // for describe(): how packets travel; empty if by default
  const LossyIo* faults = nullptr;     // lives as long as the engine; null: none are injected
};

// Makes the engine for a job that has been joined; it connects in the background. The stripes in `worker` and their
// weights follow from the memberships. A `payload_bytes` other than 0 is used in place of the one granted. `trace` as
// Engine's.
Result<NetworkPath> open_path(const Memberships& memberships, WorkerOptions worker, uint32_t payload_bytes,
                              const CommunicatorOptions& options, Shard* shard,
                              std::function<void(const Status&)> on_failed, TraceLog* trace);

}  // namespace netsum

#endif  // NETSUM_COLLECTIVE_NETWORK_PATH_H_
