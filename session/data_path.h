// Sums the operations of a job that has been joined: over the network, in the memory of this host, or both. Owns the
// engines and what they use, and closes them in the right order.
#ifndef NETSUM_SESSION_DATA_PATH_H_
#define NETSUM_SESSION_DATA_PATH_H_

#include <chrono>
#include <functional>
#include <memory>

#include "engine/engine.h"
#include "engine/failure_notifier.h"
#include "engine/shared_memory_core.h"
#include "netsum/options.h"
#include "netsum/status.h"
#include "session/job_membership.h"
#include "session/network_path.h"
#include "session/shard.h"
#include "src/host/placement.h"
#include "src/telemetry/trace.h"

namespace netsum {

// Thread rule: one thread opens and destroys it; in between, any thread may use what the accessors return.
class DataPath {
 public:
  struct Options {
    const CommunicatorOptions& user;  // with the rank and world size in this job
    const Memberships& job;
    Placement placement;
    bool succeeds_another_job = false;
    bool fixed_floats = false;  // as with Numerics::kFixed
    Shard* shard = nullptr;     // this rank's, which may get a share; null: there is none
    TraceLog* trace = nullptr;  // null: none
    FailureNotifier* failures;  // gets the engine attached
    // As of Engine, for the engine that accepts the operations.
    std::function<void(const Status&)> on_failed;
  };
  // All that `options` refers to must outlive this.
  explicit DataPath(Options options);
  ~DataPath();  // as close()

  // Makes the engines and waits until every stripe has answered. To be called once. Errors: as
  // Communicator::connect; what was opened before an error closes with this object.
  Status open(std::chrono::steady_clock::time_point deadline);

  // Ends the engines; operations in flight end with kAborted. A shard still answers for the job until destruction, because
  // another rank may ask for a result.
  void close();

  // The engine that takes the operations; null before open() has made one, and after close().
  Engine* engine() const { return host_engine_ != nullptr ? host_engine_.get() : network_.engine.get(); }
  const Placement& placement() const { return options_.placement; }
  // The path over the network; without an engine if all ranks share one host, or if this rank is not an owner.
  const NetworkPath& network() const { return network_; }
  // Null without shared memory.
  const HostCounters* host_counters() const { return host_counters_; }

 private:
  using Deadline = std::chrono::steady_clock::time_point;

  Status open_network(Deadline deadline);
  Status open_shared_memory(Deadline deadline);
  Status open_network_of_hosts(Deadline deadline);
  EncodingOptions host_encoding_options() const;
  bool network_can(bool (*can)(const Capabilities&)) const;
  EncodingOptions encoding_options() const;
  Status connect(WorkerOptions worker, const Memberships& memberships, uint32_t payload_bytes,
                 std::function<void(const Status&)> on_failed, Deadline deadline);
  void watch_results(const Memberships& memberships);
  void watch_nothing();

  const Options options_;
  // Of the job of one rank per host, in which this rank sends its portion of its host's sums.
  Memberships host_memberships_;
  NetworkPath network_;
  std::unique_ptr<Engine> host_engine_;
  const HostCounters* host_counters_ = nullptr;
};

}  // namespace netsum

#endif  // NETSUM_SESSION_DATA_PATH_H_
