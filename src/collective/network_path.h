// One job's way through the network: the memberships at its aggregators, and the engine that sums there.
#ifndef NETSUM_SRC_COLLECTIVE_NETWORK_PATH_H_
#define NETSUM_SRC_COLLECTIVE_NETWORK_PATH_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "netsum/options.h"
#include "netsum/status.h"
#include "src/collective/engine.h"
#include "src/collective/network_core.h"
#include "src/collective/shard.h"
#include "src/control/client.h"
#include "src/net/lossy.h"

namespace netsum {

using Memberships = std::vector<std::unique_ptr<ControlClient>>;

// How a job follows one that has failed; as in JoinParameters.
struct Succession {
  uint64_t succeeds = 0;  // succession_id of the failed one; 0: of none
  uint64_t completed = 0;
  int min_members = 0;
  std::chrono::milliseconds gather{0};
};

struct JobMember {
  std::string job;
  int rank = 0;
  int world_size = 1;
  Succession succession;
  std::string host;  // ranks of equal names share memory; empty: with nobody
  std::function<void(const Status&)> on_failure;
  std::function<void(int rank)> on_left;
  std::function<void(const std::vector<int>&)> on_missing;
};

// Joins the job at all of options.aggregators, or at `shard`'s root if it is not null. Memberships are added
// to `memberships` one by one, those before an error stay. Who takes part is settled at the first aggregator.
Status join_job(const JobMember& member, const CommunicatorOptions& options, const Shard* shard,
                std::chrono::steady_clock::time_point deadline, Memberships* memberships);

struct NetworkPath {
  std::unique_ptr<Engine> engine;
  const WorkerCore* worker = nullptr;  // the engine's, for its counters
  ShardJob shard_job;                  // where a shard takes part
  std::string note;                    // for describe(): how packets travel; empty if by default
  const LossyIo* faults = nullptr;     // lives as long as the engine; null: none are injected
};

// Makes the engine for a job that has been joined; it connects in the background. The stripes in `worker`
// follow from the memberships. A `payload_bytes` other than 0 is used in place of the one granted. `trace` as
// Engine's.
Result<NetworkPath> open_path(const Memberships& memberships, WorkerOptions worker, uint32_t payload_bytes,
                              const CommunicatorOptions& options, Shard* shard,
                              std::function<void(const Status&)> on_failed, TraceLog* trace);

}  // namespace netsum

#endif  // NETSUM_SRC_COLLECTIVE_NETWORK_PATH_H_
