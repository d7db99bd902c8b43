// One membership in a job, from joining to its end. A session that has failed stays failed; the communicator opens the
// next one.
#ifndef NETSUM_SESSION_SESSION_H_
#define NETSUM_SESSION_SESSION_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/failure_notifier.h"
#include "engine/work_state.h"
#include "netsum/communicator.h"
#include "session/data_path.h"
#include "session/job_membership.h"
#include "session/session_stats.h"
#include "session/shard.h"
#include "session/wrong_sum_record.h"
#include "src/telemetry/metrics_endpoint.h"
#include "src/telemetry/trace.h"

namespace netsum {

using Clock = std::chrono::steady_clock;

// Of all ranks, at the first aggregator.
struct Meeting {
  bool whole = false;          // they have met there
  uint64_t succession_id = 0;  // of the session; 0: it was not granted, or this rank has not heard of it
};

struct SessionOptions {
  // `rank` and `world_size` are those of the job that this one succeeds, if there is one.
  CommunicatorOptions user;
  Succession succession;
  // Sums beside user.aggregators if the plan says so or, without any, with the others' shards alone. May be null in the
  // first case.
  std::shared_ptr<Shard> shard;
  std::string on_the_hosts_because;  // why it has a shard, where aggregators are configured
  std::shared_ptr<TraceLog> trace;   // null: none
  std::shared_ptr<WrongSumRecord> wrong_sums = std::make_shared<WrongSumRecord>();  // of the communicator
  Clock::time_point join_deadline;                                                  // for all ranks to come
  Clock::time_point deadline;  // for all data paths to answer
  // Called, perhaps more than once, on threads of the session, when it fails. Must not block, nor destroy it.
  std::function<void(const Status&)> on_failure;
  bool fixed_floats = false;  // as with Numerics::kFixed
  // What is known of a session that fails, too. May be null.
  Meeting* meeting = nullptr;
};

class Session {
 public:
  // Errors: as Communicator::connect.
  static Result<std::unique_ptr<Session>> open(SessionOptions options);
  // Leaves the job, if it has not failed; operations in flight end with kAborted.
  ~Session();
  // Of a failed job: ends all but the memberships, which do not call this session any more.
  Memberships release();

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  // By rank, its number in the succeeded job; empty: the same.
  const std::vector<int>& former_ranks() const { return first_membership().former_ranks; }
  // Identifies it to its members when they form its successor.
  uint64_t succession_id() const { return first_membership().succession_id; }
  // Operations of the succeeded job that all members have finished.
  uint64_t completed() const { return first_membership().completed; }
  // As NetworkPath::order_of_floats.
  const std::string& order_of_floats() const { return path_->network().order_of_floats; }
  // Of each packet, the bytes for lanes.
  uint32_t payload_bytes() const { return lane_room(options_, first_membership()); }

  // As WorkerOptions::lacks_words.
  const std::string& lacks_words() const { return lacks_words_; }

  // Why the operation cannot be submitted, or ok. The same on all ranks.
  Status check(const OperationSpec& spec) const;
  // Starts an operation that has passed check(). `timeout` runs from now; 0: that of the
  // communicator. `on_end` is called on a thread of the session, or on one that waits for an operation of this session, but
  // never within this call, so it may take a lock that the caller holds.
  Work submit(OperationSpec&& spec, std::chrono::milliseconds timeout, OnEnd on_end = {});
  // Sums a single number, so that it ends when every rank has called it.
  Status sum_one(std::chrono::milliseconds timeout);
  // Waits until the operations of this rank have ended, at most until `deadline`: other ranks may need its part of them.
  void flush(Clock::time_point deadline) { path_->engine()->flush(deadline); }
  // If this rank's shard sums for the job: waits until no other rank asks it for anything, at most until `deadline`.
  void linger(Clock::time_point deadline) const;
  // Ends all operations of this rank. Does not block.
  void fail(const Status& status) { path_->engine()->fail(status); }
  // Tells all members that the job has failed. Waits at most a second per aggregator.
  void report(const Status& status) { report_failure(memberships_, status); }
  Status status() const { return path_->engine()->status(); }
  CommunicatorStats stats() const;
  std::string describe() const;

 private:
  explicit Session(SessionOptions options);

  Status connect(Clock::time_point join_deadline, Clock::time_point deadline);
  Status join(Clock::time_point deadline);
  void close();
  void on_control_failure(const Status& status);
  void on_engine_failure(const Status& status);
  Status for_other_ranks(const Status& status) const;
  bool others_need_shard() const;
  void tell_progress();
  Status open_metrics();
  void add_metrics(MetricsPage* page);
  std::string why_not_ready();
  PathDescription description() const;
  WrongSumRecord::List find_wrong_sums() const;
  bool meets_at_a_rank() const { return options_.aggregators.empty(); }
  const Membership& first_membership() const { return memberships_.front()->membership(); }

  CommunicatorOptions options_;  // with the rank and the world size of this session, once it has joined
  // The same, for the metrics endpoint's thread, which reads them while the session joins.
  std::atomic<int> rank_, world_size_;
  const Succession succession_;
  const std::shared_ptr<Shard> shard_;
  const std::string on_the_hosts_because_;
  const std::shared_ptr<TraceLog> trace_;
  const std::shared_ptr<WrongSumRecord> wrong_sums_;
  const std::function<void(const Status&)> on_failure_;
  const bool fixed_floats_;

  // Each is used by those below it, and outlives them.
  OperationCounts counts_;              // of the caller's, without barriers
  std::atomic<uint64_t> submitted_{0};  // of the caller's, with barriers
  std::atomic<uint64_t> gradient_bytes_{0};
  FailureNotifier failures_;
  Memberships memberships_;
  std::string lacks_words_;
  std::unique_ptr<DataPath> path_;
  std::atomic<bool> met_{false};        // all ranks have, at the first aggregator
  std::atomic<bool> connected_{false};  // when true, the members above do not change
  // If the first sum fails, connect() tells the others why: what the engine reports is only the consequence.
  std::atomic<bool> knows_reason_{false};

  std::unique_ptr<MetricsSource> metrics_;
};

}  // namespace netsum

#endif  // NETSUM_SESSION_SESSION_H_
