// JobTable behind a lock, and the streams of its members: after each call, the table's events are sent on these streams.
// The data path never takes the lock. Heartbeats do: nothing that can block or take long (plans, calls of the dataplane,
// logs, name look-ups) is done with it.
#ifndef NETSUM_AGGREGATOR_CONTROL_LOCAL_JOBS_H_
#define NETSUM_AGGREGATOR_CONTROL_LOCAL_JOBS_H_

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "aggregator/control/event_log.h"
#include "aggregator/control/job_service.h"

namespace netsum {

// The streams share ownership, because they may briefly outlive the service. Any thread may call any method.
class LocalJobs final : public JobService, public std::enable_shared_from_this<LocalJobs> {
 public:
  // `on_event` may be null.
  LocalJobs(JobTableOptions options, Dataplane* dataplane,
            std::function<void(const AggregatorEvent&)> on_event);
  ~LocalJobs() override;

  void join(const control::JoinRequest& request, const Address& peer,
            const std::shared_ptr<MemberStream>& stream) override;
  Result<control::LeaveReply> leave(const MemberClaim& claim) override;
  Status report(const MemberClaim& claim, const Status& failure) override;
  Result<control::AliveReply> alive(const MemberClaim& claim, const control::Beat* beat) override;
  void drain() override;
  void stop(const Status& reason) override;
  void watch_deadlines() override;
  void run_tasks() override;
  void write_events() override { events_.write(); }
  void halt() override;
  bool wait_until_empty(std::chrono::steady_clock::time_point deadline) override;
  Status check_aggregator_token(const std::string& presented) override;
  std::vector<JobKey> running_jobs() override;
  std::vector<AggregatorJobStatus> jobs(const JobLooks& looks) override;
  std::vector<AggregatorCounter> failures() override;
  Result<control::TopologyReply> topology(const std::string& job) override;
  void place(const grpc::CallbackServerContext&, PlaceInfo own,
             std::function<void(const Result<PlaceInfo>&)> done) override {
    done(own);
  }
  uint32_t payload_limit() override;
  bool draining() override;

 private:
  // A join that finds no room while room becomes free is tried again then.
  struct WaitingJoin {
    uint64_t stream = 0;
    MemberRequest request;
    std::shared_ptr<MemberStream> to;
  };

  template <typename Function>
  auto with_table(Function function);
  // With the lock held. Returns what the stream is to end with; ok: it has joined, or waits.
  Status try_join(WaitingJoin join);
  // False: there was none.
  bool run_task();
  void retry_joins(std::vector<std::shared_ptr<MemberStream>>* touched);
  void stream_over(uint64_t stream);

  Dataplane* const dataplane_;
  const bool tasks_do_not_block_;
  EventLog events_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool halted_ = false;
  std::chrono::steady_clock::time_point halted_at_;
  JobTable table_;
  std::unordered_map<MemberId, std::shared_ptr<MemberStream>> streams_;
  uint64_t next_stream_ = 1;
  std::unordered_map<uint64_t, MemberId> member_of_stream_;  // until the stream is over
  std::deque<WaitingJoin> waiting_joins_;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_LOCAL_JOBS_H_
