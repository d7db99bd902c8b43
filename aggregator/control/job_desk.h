// The table of jobs behind a lock, joined to the streams of its members: every call hands on to the streams
// what the table wants told. The lock is the control plane's own; the data path never takes it.
#ifndef NETSUM_AGGREGATOR_CONTROL_JOB_DESK_H_
#define NETSUM_AGGREGATOR_CONTROL_JOB_DESK_H_

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "aggregator/control/job_table.h"
#include "aggregator/control/member_stream.h"

namespace netsum {

// Shared with the streams, which may outlive the service by a moment. Any thread may call any method.
class JobDesk : public std::enable_shared_from_this<JobDesk> {
 public:
  JobDesk(JobTableOptions options, Dataplane* dataplane);

  Status create(const JobRequest& request, int64_t deadline_us);
  // Ends `stream` with the refusal, or makes it the member's.
  void join(const MemberRequest& request, const std::shared_ptr<MemberStream>& stream);
  Status leave(const MemberClaim& claim);
  Status report(const MemberClaim& claim, const Status& failure);
  void drain();
  void stop(const Status& reason);

  // Fails late jobs until halt().
  void watch_deadlines();
  void halt();

  // Returns false if `deadline` passed first.
  bool wait_until_empty(std::chrono::steady_clock::time_point deadline);

  Status check_aggregator_token(const std::string& presented);
  std::vector<AggregatorJobStatus> jobs();
  uint32_t payload_limit();
  bool draining();

 private:
  template <typename Function>
  auto with_table(Function function);
  void stream_over(MemberId id);

  std::mutex mutex_;
  std::condition_variable changed_;
  bool halted_ = false;
  JobTable table_;
  std::unordered_map<MemberId, std::shared_ptr<MemberStream>> streams_;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_JOB_DESK_H_
