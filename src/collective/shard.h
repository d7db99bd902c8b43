// The aggregator shard that a rank embeds when no aggregator is configured, and, on rank 0, the control
// service that brings the ranks together.
#ifndef NETSUM_SRC_COLLECTIVE_SHARD_H_
#define NETSUM_SRC_COLLECTIVE_SHARD_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aggregator/control/control_service.h"
#include "aggregator/control/dataplane.h"
#include "netsum/options.h"
#include "netsum/status.h"
#include "src/control/client.h"

namespace netsum {

class Shard {
 public:
  // Binds the shard's data port and, if this rank `hosts_root`, the control service at options.root.
  static Result<std::unique_ptr<Shard>> start(const CommunicatorOptions& options, bool hosts_root);

  // Control address to join at.
  const std::string& root() const { return root_; }
  bool hosts_root() const { return control_ != nullptr; }
  // The rank that hosts the control service, as far as messages go: kNoRank if that is unknown, or ourselves.
  int root_rank() const { return root_rank_; }
  void set_root_rank(int rank) { root_rank_ = rank; }
  Address endpoint() const { return dataplane_->endpoints().front(); }
  DataplaneLimits limits() const { return dataplane_->limits(); }
  // Lets in the packets of the job, once all ranks have joined.
  Status install(const Membership& membership, int rank, int world_size);
  // Forgets all jobs.
  void remove_jobs();

  uint64_t bytes_received() const { return counter("bytes_received"); }
  uint64_t bytes_sent() const { return counter("bytes_sent"); }
  uint64_t packets_received() const { return counter("packets_received"); }
  uint64_t packets_sent() const { return counter("packets_sent"); }

  // After an orderly end: another rank may still lack a result of ours. One that does asks at least four
  // times a second, so a shard that hears nothing for longer is needed no more. Waits a second at most.
  void linger() const;

 private:
  uint64_t counter(const char* name) const;

  std::unique_ptr<Dataplane> dataplane_;
  std::unique_ptr<ControlService> control_;  // only where it is hosted
  std::string root_;
  int root_rank_ = kNoRank;
  std::vector<std::pair<uint16_t, uint16_t>> installed_;  // index and epoch
};

}  // namespace netsum

#endif  // NETSUM_SRC_COLLECTIVE_SHARD_H_
