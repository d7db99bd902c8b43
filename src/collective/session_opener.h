// Opens a communicator's sessions, one after another, and keeps what outlives them: who we are, the embedded
// shard, the trace, and the name by which the members find each other again.
#ifndef NETSUM_SRC_COLLECTIVE_SESSION_OPENER_H_
#define NETSUM_SRC_COLLECTIVE_SESSION_OPENER_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "netsum/communicator.h"
#include "src/collective/session.h"

namespace netsum {

inline constexpr const char* kHosts = "hosts";  // in CommunicatorOptions::fallback_aggregators

// Thread rule: one thread at a time, but rank() and world_size(), which any thread may call.
class SessionOpener {
 public:
  explicit SessionOpener(const CommunicatorOptions& options);

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

  // Makes the trace, and the embedded shard where one is or may be needed.
  Status prepare();

  // The first session. `on_failure` as in SessionOptions.
  Result<std::unique_ptr<Session>> connect(std::function<void(const Status&)> on_failure);

  // Closes the session, so that a next one can be opened; tells its members of `why`, if they do not know.
  void end(std::shared_ptr<Session> session, const Status& why);

  // With whoever comes. Errors: as Communicator::regroup.
  Result<std::unique_ptr<Session>> regroup(const RegroupOptions& options,
                                           std::function<void(const Status&)> on_failure = nullptr);
  // Of the last session.
  Regrouped regrouped() const;

  // With all the last session's members, at `aggregators` or, if empty, at the ranks' shards. `completed`:
  // the operations of it that have ended here, without a gap.
  struct Move {
    std::vector<std::string> aggregators;
    uint64_t completed = 0;
    Clock::time_point join_deadline;
    Clock::time_point deadline;
    std::function<void(const Status&)> on_failure;
  };
  Result<std::unique_ptr<Session>> move(Move move);

 private:
  SessionOptions session_options() const;
  Result<std::unique_ptr<Session>> open(SessionOptions options);
  // One whose members are a group of their own, from now on.
  Result<std::unique_ptr<Session>> open_first(SessionOptions options);
  Status move_root(const RegroupOptions& options);

  CommunicatorOptions options_;  // with the rank and world size of the last session
  std::atomic<int> rank_, world_size_;
  std::shared_ptr<Shard> shard_;
  std::shared_ptr<TraceLog> trace_;
  // Of the first session since connecting or regrouping. Not of the latest: if a move fails for some, all
  // must still be able to meet.
  uint64_t succession_id_ = 0;
  std::vector<int> former_ranks_;
  Status ended_by_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_COLLECTIVE_SESSION_OPENER_H_
