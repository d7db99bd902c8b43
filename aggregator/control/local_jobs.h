// JobTable behind a lock, and the streams of its members: after each call, the table's events are sent on these streams.
// The data path never takes the lock.
#ifndef NETSUM_AGGREGATOR_CONTROL_LOCAL_JOBS_H_
#define NETSUM_AGGREGATOR_CONTROL_LOCAL_JOBS_H_

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "aggregator/control/job_service.h"

namespace netsum {

// The streams share ownership, because they may briefly outlive the service. Any thread may call any method.
class LocalJobs final : public JobService, public std::enable_shared_from_this<LocalJobs> {
 public:
  // `on_event` may be null. It is called with the lock held, so that events stay in order.
  LocalJobs(JobTableOptions options, Dataplane* dataplane,
            std::function<void(const AggregatorEvent&)> on_event);
  ~LocalJobs() override;

  void join(const control::JoinRequest& request, const Address& peer,
            const std::shared_ptr<MemberStream>& stream) override;
  Status leave(const MemberClaim& claim) override;
  Status report(const MemberClaim& claim, const Status& failure) override;
  Status alive(const MemberClaim& claim) override;
  void drain() override;
  void stop(const Status& reason) override;
  void watch_deadlines() override;
  void halt() override;
  bool wait_until_empty(std::chrono::steady_clock::time_point deadline) override;
  Status check_aggregator_token(const std::string& presented) override;
  std::vector<AggregatorJobStatus> jobs() override;
  std::vector<AggregatorCounter> failures() override;
  Result<control::TopologyReply> topology(const std::string& job) override;
  void place(const grpc::CallbackServerContext&, PlaceInfo own,
             std::function<void(const Result<PlaceInfo>&)> done) override {
    done(own);
  }
  uint32_t payload_limit() override;
  bool draining() override;

 private:
  template <typename Function>
  auto with_table(Function function);
  void stream_over(MemberId id);

  Dataplane* const dataplane_;
  const std::function<void(const AggregatorEvent&)> on_event_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool halted_ = false;
  JobTable table_;
  std::unordered_map<MemberId, std::shared_ptr<MemberStream>> streams_;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_LOCAL_JOBS_H_
