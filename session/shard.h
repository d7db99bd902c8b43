// The aggregator shard that a rank embeds, alone or beside aggregators, and, on rank 0 of a job without aggregators, the
// control service that brings the ranks together.
#ifndef NETSUM_SESSION_SHARD_H_
#define NETSUM_SESSION_SHARD_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aggregator/control/control_service.h"
#include "aggregator/dataplane/dataplane.h"
#include "aggregator/dataplane/member_shards.h"
#include "netsum/options.h"
#include "netsum/status.h"
#include "src/control/client.h"

namespace netsum {

// A job's slots in a shard: taken until this is destroyed, which must be before the shard.
class ShardJob {
 public:
  ShardJob() = default;
  ShardJob(Dataplane* dataplane, uint16_t job, uint16_t epoch)
      : dataplane_(dataplane), job_(job), epoch_(epoch) {}
  ShardJob(ShardJob&& other) noexcept
      : dataplane_(std::exchange(other.dataplane_, nullptr)), job_(other.job_), epoch_(other.epoch_) {}
  ShardJob& operator=(ShardJob&& other) noexcept {
    std::swap(dataplane_, other.dataplane_);
    std::swap(job_, other.job_);
    std::swap(epoch_, other.epoch_);
    return *this;
  }
  ~ShardJob() {
    if (dataplane_ != nullptr) dataplane_->remove(job_, epoch_);
  }

  bool installed() const { return dataplane_ != nullptr; }
  // As JobProgress::members.
  std::vector<faults::MemberTotals> members() const {
    return dataplane_ == nullptr ? std::vector<faults::MemberTotals>()
                                 : dataplane_->progress(job_, epoch_).members;
  }

 private:
  Dataplane* dataplane_ = nullptr;
  uint16_t job_ = 0;
  uint16_t epoch_ = 0;
};

class Shard {
 public:
  // Binds the shard's data port and, if this rank `hosts_root`, the control service at options.root.
  static Result<std::unique_ptr<Shard>> start(const CommunicatorOptions& options, bool hosts_root);

  // Control address to join at, of a job without aggregators.
  const std::string& root() const { return root_; }
  bool hosts_root() const { return control_ != nullptr; }
  // The rank that hosts the control service, for messages: kNoRank if it is unknown or this rank.
  int root_rank() const { return root_rank_; }
  void set_root_rank(int rank) { root_rank_ = rank; }
  Address endpoint() const { return dataplane_->endpoints().front(); }
  DataplaneLimits limits() const { return dataplane_->limits(); }
  // Accepts the packets of the job, once all ranks have joined: this shard is its stripe `number`, and counts in `last`.
  Result<ShardJob> install(const Membership& membership, size_t number, int world_size,
                           std::shared_ptr<faults::LastContributions> last);

  // Of this rank: as Dataplane::attach_member().
  std::unique_ptr<PacketIo> attach_member(std::unique_ptr<PacketIo> io) {
    return dataplane_->attach_member(std::move(io));
  }

  // As Dataplane::counters(), of these names. All at once, because it takes system calls.
  std::vector<uint64_t> counters(const std::vector<std::string_view>& names) const;

  // After an orderly end: waits as serve_until_quiet() until no rank needs a result of this shard any more, or the
  // control service.
  void linger(const std::function<bool(std::chrono::milliseconds)>& is_over,
              std::chrono::steady_clock::time_point deadline) const;

 private:
  std::unique_ptr<Dataplane> dataplane_;
  MemberShards shards_;  // the control service's dataplane: this shard and those of the other ranks
  std::unique_ptr<ControlService> control_;  // only where it is hosted
  std::string root_;
  int root_rank_ = kNoRank;
};

}  // namespace netsum

#endif  // NETSUM_SESSION_SHARD_H_
