// Opens a communicator's sessions, one after another, and owns what outlives them: rank and world size, the embedded
// shard, the trace, the record of wrong sums, and the id by which the members of a failed session find each other.
#ifndef NETSUM_SESSION_SESSION_FACTORY_H_
#define NETSUM_SESSION_SESSION_FACTORY_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "netsum/communicator.h"
#include "session/session.h"
#include "src/telemetry/metrics_endpoint.h"

namespace netsum {

inline constexpr const char* kHosts = "hosts";  // in CommunicatorOptions::fallback_aggregators

// Whether the ranks meet at rank 0, at once or after the loss of an aggregator: it listens at CommunicatorOptions::root.
bool may_meet_at_a_rank(const CommunicatorOptions& options);

// Thread rule: one thread at a time; any thread may call rank(), world_size() and wrong_sums().
class SessionFactory {
 public:
  explicit SessionFactory(const CommunicatorOptions& options);
  ~SessionFactory();  // waits for what is in the background: some seconds at most

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  WrongSumRecord::List wrong_sums() const { return wrong_sums_->all(); }  // of all sessions

  // Creates the trace, the endpoint of the metrics and, if it is or may be needed, the embedded shard: in this order, so that
  // other ranks notice nothing of a call that fails for one of the first two.
  Status prepare();

  // The first session. `on_failure` as in SessionOptions.
  Result<std::unique_ptr<Session>> connect(std::function<void(const Status&)> on_failure);

  // Closes the session, so that the next one can be opened, and reports `why` to its members: in the background where an
  // aggregator does not answer at once.
  void end(std::unique_ptr<Session> session, const Status& why);

  // A session with the ranks that take part. Errors: as Communicator::regroup.
  Result<std::unique_ptr<Session>> regroup(const RegroupOptions& options,
                                           std::function<void(const Status&)> on_failure = nullptr);
  // Of the last session.
  Regrouped regrouped() const;

  // A session with all members of the last one, at `aggregators` or, if empty, at the ranks' shards. `completed`: how
  // many of its operations have ended here, counted from the first without a gap.
  struct Move {
    std::vector<std::string> aggregators;
    uint64_t completed = 0;
    Clock::time_point join_deadline;
    Clock::time_point deadline;
    std::function<void(const Status&)> on_failure;
    bool fixed_floats = false;
    Meeting* meeting = nullptr;  // as in SessionOptions
  };
  Result<std::unique_ptr<Session>> move(Move move);

 private:
  SessionOptions session_options() const;
  bool sums_beside_aggregators() const;
  // This rank's shard, if it may sum for a job at these aggregators, or without any; otherwise null.
  std::shared_ptr<Shard> shard_for(const std::vector<std::string>& aggregators) const;
  Result<std::unique_ptr<Session>> open(SessionOptions options);
  // The first session of a set of members; later ones that follow it by move() refer to it.
  Result<std::unique_ptr<Session>> open_first(SessionOptions options);
  Status move_root(const RegroupOptions& options);

  CommunicatorOptions options_;  // with the rank and world size of the last session
  std::atomic<int> rank_, world_size_;
  std::shared_ptr<Shard> shard_;
  std::shared_ptr<TraceLog> trace_;
  std::shared_ptr<MetricsEndpoint> metrics_;  // which the sessions share
  const std::shared_ptr<WrongSumRecord> wrong_sums_ = std::make_shared<WrongSumRecord>();
  // Of the first session since connecting or regrouping, not of the latest: if a move fails for some ranks, all must still
  // be able to meet.
  uint64_t succession_id_ = 0;
  std::vector<int> former_ranks_;
  Status ended_by_;
  std::vector<std::thread> ending_;  // memberships
};

}  // namespace netsum

#endif  // NETSUM_SESSION_SESSION_FACTORY_H_
