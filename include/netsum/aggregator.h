// An aggregator inside this process: the same one that `netsum aggregator` runs.
#ifndef NETSUM_AGGREGATOR_H_
#define NETSUM_AGGREGATOR_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "netsum/communicator.h"
#include "netsum/options.h"
#include "netsum/status.h"

namespace netsum {

struct AggregatorCounter {
  std::string name;  // e.g. "packets_received", "drop_bad_check"
  uint64_t value = 0;
};

struct AggregatorJobStatus {
  std::string name;
  int world_size = 0;
  std::vector<int> joined;  // ranks present
  std::string state;        // "joining", "running", "failed: ..."
  uint64_t age_ms = 0;
  std::vector<std::string> hosts;  // by rank, whence it joined; empty where nobody has
  // Joining: the ranks that are not here yet. Running: those that the oldest unfinished sum lacks, of which
  // there is nearly always one for a moment; `waiting_ms` says for how long (at least) it has been the same.
  std::vector<int> waiting_for;
  uint64_t waiting_ms = 0;
  // By rank: how long a sum waited for it, in total, while the job ran; an estimate from repeated looks.
  std::vector<uint64_t> waited_ms;
  uint64_t sums = 0;           // packets' worth of sums completed
  uint32_t payload_bytes = 0;  // of the largest of these; 0 while joining
  uint32_t slots = 0;          // per core; 0 while joining
  uint32_t open_slots = 0;     // of those, on all cores, how many have a sum under way
  // How results travel: "unicast", perhaps with why, or "multicast to GROUP:PORT". Empty while joining.
  std::string delivery;
};

struct AggregatorStatus {
  std::string version;
  std::vector<std::string> data_addresses;  // one per core
  std::vector<AggregatorJobStatus> jobs;
  std::vector<AggregatorCounter> counters;
  uint64_t unix_time_ms = 0;  // the aggregator's clock
  bool draining = false;
  std::string dataplane;        // "user-space", "xdp"
  uint32_t slots_per_core = 0;  // that jobs can be given ...
  uint32_t slots_free = 0;      // ... and that no job has, on the core with the fewest
};

class NETSUM_EXPORT Aggregator {
 public:
  // Binds, allocates all slots and starts the threads. Errors: kInvalidArgument, kAddressInUse.
  static Result<std::unique_ptr<Aggregator>> start(const AggregatorOptions& options);
  virtual ~Aggregator() = default;  // stops at once; running jobs see kAggregatorLost

  virtual std::string control_address() const = 0;  // "host:port" with the port in fact bound
  virtual AggregatorStatus status() const = 0;

  // Refuses new jobs, waits until the running ones have left or `deadline` has passed, then stops.
  // Returns true if every job had left.
  virtual bool drain(std::chrono::milliseconds deadline) = 0;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_H_
