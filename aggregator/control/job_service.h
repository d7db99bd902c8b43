// The interface behind the gRPC service: LocalJobs decides by itself, ParentRelay asks a parent aggregator.
#ifndef NETSUM_AGGREGATOR_CONTROL_JOB_SERVICE_H_
#define NETSUM_AGGREGATOR_CONTROL_JOB_SERVICE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aggregator/control/job_table.h"
#include "aggregator/control/member_stream.h"
#include "netsum/aggregator.h"
#include "netsum/status.h"

namespace netsum {

// Thread rule: any thread may call any method.
class JobService {
 public:
  virtual ~JobService() = default;

  // `stream` gets the member's events, or ends with the error if the member is refused. `peer`: the caller's address.
  virtual void join(const control::JoinRequest& request, const Address& peer,
                    const std::shared_ptr<MemberStream>& stream) = 0;
  virtual Result<control::LeaveReply> leave(const MemberClaim& claim) = 0;
  virtual Status report(const MemberClaim& claim, const Status& failure) = 0;
  // `beat`: null if the member does not tell.
  virtual Result<control::AliveReply> alive(const MemberClaim& claim, const control::Beat* beat) = 0;
  virtual void drain() = 0;
  virtual void stop(const Status& reason) = 0;

  // Each on a thread of the caller, until halt(): handles deadlines; starts and removes jobs, whose dataplane may block
  // (watch_deadlines() does it, too, if the members bring the shards); and passes events to those who log them, and may block.
  virtual void watch_deadlines() = 0;
  virtual void run_tasks() = 0;
  virtual void write_events() = 0;
  virtual void halt() = 0;

  // Returns false if `deadline` passed first.
  virtual bool wait_until_empty(std::chrono::steady_clock::time_point deadline) = 0;

  virtual Status check_aggregator_token(const std::string& presented) = 0;
  // Jobs whose progress jobs() reports, if it is given looks at them.
  virtual std::vector<JobKey> running_jobs() = 0;
  virtual std::vector<AggregatorJobStatus> jobs(const JobLooks& looks) = 0;
  // Jobs that have failed, by error code. Empty: the parent counts them.
  virtual std::vector<AggregatorCounter> failures() = 0;
  virtual Result<control::TopologyReply> topology(const std::string& job) = 0;
  // Calls `done`, now or later, with the path (src/job/place_path.h) from the topmost aggregator to this one, `own`.
  // `call` asks for it.
  virtual void place(const grpc::CallbackServerContext& call, PlaceInfo own,
                     std::function<void(const Result<PlaceInfo>&)> done) = 0;
  virtual uint32_t payload_limit() = 0;
  virtual bool draining() = 0;
};

uint64_t system_random();

// The event that tells a member that its job runs.
control::Ready to_ready(const JobGrant& grant);

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_JOB_SERVICE_H_
