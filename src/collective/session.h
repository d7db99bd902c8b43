// One membership in a job, from joining to its end: control clients, the engine, the host's memory, and an
// embedded shard. A session that has failed stays failed; the communicator opens the next one.
#ifndef NETSUM_SRC_COLLECTIVE_SESSION_H_
#define NETSUM_SRC_COLLECTIVE_SESSION_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "netsum/communicator.h"
#include "src/collective/engine.h"
#include "src/collective/network_path.h"
#include "src/collective/shard.h"
#include "src/collective/shared_memory_core.h"
#include "src/collective/work_state.h"
#include "src/host/placement.h"
#include "src/host/segment.h"
#include "src/telemetry/metrics_endpoint.h"
#include "src/telemetry/trace.h"

namespace netsum {

using Clock = std::chrono::steady_clock;

struct SessionOptions {
  // Who, where and how; `rank` and `world_size` are those of the succeeded job, if there is one.
  CommunicatorOptions user;
  Succession succession;
  std::shared_ptr<Shard> shard;      // sums with the others' shards; null: at user.aggregators
  std::string on_the_hosts_because;  // why it has a shard, where aggregators are configured
  std::shared_ptr<TraceLog> trace;   // null: none
  Clock::time_point join_deadline;   // for all ranks to come
  Clock::time_point deadline;        // for all data paths to answer
  // Called, perhaps more than once, on threads of the session, when it fails. Must not block, nor destroy it.
  std::function<void(const Status&)> on_failure;
};

class Session {
 public:
  // Errors: as Communicator::connect.
  static Result<std::unique_ptr<Session>> open(SessionOptions options);
  // Leaves the job, if it has not failed; operations in flight end with kAborted.
  ~Session();

  int rank() const { return options_.rank; }
  int world_size() const { return options_.world_size; }
  // By rank, the one of the succeeded job; empty: the same.
  const std::vector<int>& former_ranks() const { return first_membership().former_ranks; }
  // By which its members know it, when they succeed it.
  uint64_t succession_id() const { return first_membership().succession_id; }
  // Operations of the succeeded job that all members have finished.
  uint64_t completed() const { return first_membership().completed; }
  uint32_t payload_bytes() const { return first_membership().payload_bytes; }
  uint32_t data_slots() const;  // per stripe, the least
  uint32_t scale_slots() const { return first_membership().scale_slots; }
  size_t stripe_count() const;

  // `tensors` and `options` are right: check_all_reduce() (tensor_check.h). `on_end` is called on a thread of the session,
  // never on the caller's: it may take a lock that the caller holds.
  Work all_reduce(std::span<const TensorView> tensors, const AllReduceOptions& options, OnEnd on_end = {});
  // Sums a single number, so that it ends when every rank has called it.
  Status sum_one(std::chrono::milliseconds timeout);
  // Ends all operations of this rank. Does not block.
  void fail(const Status& status);
  // Tells all members that the job has failed. Waits at most a second per aggregator.
  void report(const Status& status);
  Status status() const;
  CommunicatorStats stats() const;
  std::string describe() const;

 private:
  explicit Session(SessionOptions options);

  Status connect(Clock::time_point join_deadline, Clock::time_point deadline);
  Status open_metrics();
  void add_metrics(MetricsPage* page);
  std::string not_ready();
  Status open_network(Clock::time_point deadline);
  Status open_host(Clock::time_point deadline);
  Status connect_engine(WorkerOptions worker, const Memberships& memberships, uint32_t payload_bytes,
                        std::function<void(const Status&)> on_failed, Clock::time_point deadline);
  Work submit(DataType type, ReduceOp op, std::vector<TensorView> tensors, std::chrono::milliseconds timeout,
              OnEnd on_end = {});
  // Where the control plane's news goes from now on; what it has said before is repeated there.
  void tell_failures_to(std::function<void(const Status&)> fail, std::function<void(int)> left);
  void on_control_failure(const Status& status);
  void on_engine_failure(const Status& status);
  void on_rank_left(int rank);
  void add_network_stats(CommunicatorStats* stats) const;
  std::string describe_network() const;
  const Membership& first_membership() const { return controls_.front()->membership(); }

  CommunicatorOptions options_;  // with the rank and the world size of this session
  const Succession succession_;
  const std::shared_ptr<Shard> shard_;
  const std::string on_the_hosts_because_;
  const std::shared_ptr<TraceLog> trace_;  // outlives the engines
  const std::function<void(const Status&)> on_failure_;
  void watch_data_of(const Memberships& memberships);
  void watch_no_data();

  Memberships controls_;       // of the job
  Memberships host_controls_;  // of the job among hosts of those with this rank's part
  // The network's side: there unless all ranks share one host, or this one has no part of its own.
  std::unique_ptr<Engine> engine_;
  const WorkerCore* worker_ = nullptr;  // engine_'s
  ShardJob shard_job_;                  // until the end: another rank may still ask for a result
  std::string io_note_;
  const LossyIo* faults_ = nullptr;              // of engine_'s; null: none are injected
  std::unique_ptr<Engine> host_engine_;          // where some ranks share a host
  const HostCounters* host_counters_ = nullptr;  // host_engine_'s
  Placement placement_;

  std::mutex news_mutex_;
  Status control_failure_;
  int left_rank_ = kNoRank;
  std::vector<int> missing_;  // while joining
  bool connected_ = false;    // the engines are there for good
  std::function<void(const Status&)> tell_failure_;
  std::function<void(int)> tell_left_;

  // All-reduces; barriers are not among them.
  std::atomic<uint64_t> submitted_{0}, completed_{0}, failed_{0};
  std::atomic<uint64_t> gradient_bytes_{0};
  std::unique_ptr<MetricsSource> metrics_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_COLLECTIVE_SESSION_H_
