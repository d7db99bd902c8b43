// An aggregator inside this process, the same as `netsum aggregator` runs. Any thread may call any method.
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

// A named count since start.
struct AggregatorCounter {
  std::string name;  // such as "packets_received" or "drop_bad_check"
  uint64_t value = 0;
};

struct AggregatorJobStatus {
  std::string name;
  int world_size = 0;
  std::vector<int> joined;  // ranks that have joined
  std::string state;        // "joining", "running", "failed: ..."
  uint64_t age_ms = 0;
  std::vector<std::string> hosts;  // by rank: the host from which it joined; empty if it has not joined
  // While joining: ranks that have not joined yet. While running: ranks that the oldest unfinished sum waits for.
  // A running job nearly always has one for a moment; `waiting_ms` is the time for which the same sum has waited at
  // least.
  std::vector<int> waiting_for;
  uint64_t waiting_ms = 0;
  // By rank: total time for which sums waited for it while the job ran, estimated by sampling.
  std::vector<uint64_t> waited_ms;
  uint64_t sums = 0;           // completed rounds, on all cores
  uint32_t payload_bytes = 0;  // of a full packet; 0 while joining
  uint32_t slots = 0;          // per core; 0 while joining
  uint32_t open_slots = 0;     // slots with an unfinished sum, on all cores
  // Delivery of results: "unicast", possibly with a reason, or "multicast to GROUP:PORT". Empty while joining.
  std::string delivery;
  // How its chunks are divided, what is the bottleneck, and how fast that is compared with a ring. Empty while joining,
  // and if another aggregator of the job has made the plan.
  std::string plan;
  // What protects its sums: "packet", "both" or "sum" (netsum::Verify). Empty: the aggregator's release does not tell.
  std::string verify;
  // What is wrong with the way between members and the aggregator, lately. Empty: nothing, or the dataplane does not count.
  struct Fault {
    std::vector<int> ranks;  // one, or those of a rack
    // "loss_to_aggregator", "loss_from_aggregator": the link loses far more packets than those of the other members. "slow": the
    // rank, its link or its processor, is late all through operations.
    std::string kind;
    double value = 0;   // the share of packets that are lost; "slow": seconds
    double others = 0;  // the median of the other members'
    // Of "slow": "host" if packets wait in the rank's sockets for its processor, "link" if they do not, "": not known.
    std::string cause;
  };
  std::vector<Fault> faults;
  // What has passed between ranks and one that sums, and what was lost, in packets since the job's begin. Ranks tell of their
  // shards by heartbeats.
  struct Path {
    std::vector<int> ranks;  // one, or those of a rack
    int shard = -1;          // it sums in the shard of this rank; -1: in the aggregator
    uint64_t kept_to = 0, lost_to = 0, kept_from = 0, lost_from = 0;
  };
  std::vector<Path> paths;
  // While running: of each rank that has not submitted an operation which another rank has submitted a second ago or earlier, what
  // is known: "rank 3 has not submitted operation 118; its main thread is at train.py:41 in forward". At most 8.
  std::vector<std::string> hangs;
  // Ranks whose shards have lost most of their share, because their links or hosts are slow.
  std::vector<int> away;
  // Tells jobs of one name apart: of equal tokens, equal while the aggregator runs. Empty: its release does not tell.
  std::string id;
};

// A port of the aggregator (AggregatorPort) and its traffic since start. Bytes are those of datagrams, without UDP, IP and
// Ethernet headers.
struct AggregatorPortStatus {
  std::string address;
  double link_rate_bps = 0;  // in each direction; 0: unknown
  uint64_t packets_received = 0;
  uint64_t bytes_received = 0;
  uint64_t packets_sent = 0;
  uint64_t bytes_sent = 0;
  Bursts received;  // of several stripes: the sums of their figures
  Bursts sent;
};

struct AggregatorStatus {
  std::string version;
  std::vector<std::string> data_addresses;  // one per stripe
  std::vector<AggregatorPortStatus> ports;  // none with XDP, which does not count by port
  std::vector<AggregatorJobStatus> jobs;
  std::vector<AggregatorCounter> counters;
  uint64_t unix_time_ms = 0;  // the aggregator's clock
  bool draining = false;      // accepts no more jobs
  std::string dataplane;      // "user-space", "xdp"
  // What can protect the sums of its jobs: "packet", "both", "sum" (netsum::Verify). Empty: its release does not tell.
  std::vector<std::string> verify_modes;
  uint32_t slots_per_core = 0;
  uint32_t slots_free = 0;  // on the core with the fewest free slots
};

class NETSUM_EXPORT Aggregator {
 public:
  // Opens the sockets, allocates all slots and starts the threads. Errors: kInvalidArgument, kAddressInUse,
  // kPermissionDenied and kUnsupported (XDP), or the error of AggregatorOptions::drop_privileges.
  static Result<std::unique_ptr<Aggregator>> start(const AggregatorOptions& options);
  virtual ~Aggregator() = default;  // stops at once; running jobs fail with kAggregatorLost

  virtual std::string control_address() const = 0;  // "host:port" with the actual port
  virtual AggregatorStatus status() const = 0;

  // Refuses new jobs, waits until all running jobs have ended or `deadline` has passed, and then stops the aggregator.
  // Returns true if all jobs had ended.
  virtual bool drain(std::chrono::milliseconds deadline) = 0;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_H_
