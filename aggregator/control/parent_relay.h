// The jobs of an aggregator that has a parent (hierarchy). The parent makes all decisions: a member's join request is
// forwarded to the parent unchanged except for what concerns this aggregator, and the parent's events are forwarded to
// the member. When the parent has granted a job, the relay installs it in its own dataplane, which sends its sums to
// the parent's dataplane.
#ifndef NETSUM_AGGREGATOR_CONTROL_PARENT_RELAY_H_
#define NETSUM_AGGREGATOR_CONTROL_PARENT_RELAY_H_

#include <grpcpp/channel.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "aggregator/control/job_service.h"
#include "aggregator/dataplane/dataplane.h"
#include "aggregator/dataplane/slot_ranges.h"
#include "src/control/control.grpc.pb.h"

namespace netsum {

struct RelayOptions {
  std::string parent;        // "host:port", for messages
  std::string parent_token;  // the parent's aggregator token
  std::string token;         // members must present it; empty: none is required
  int max_jobs = 64;
  std::chrono::milliseconds join_timeout{60'000};
  PlaceInfo place;            // of this aggregator; its stripes are the dataplane's
  int inside_rank = kNoRank;  // whose process this aggregator is in
};

// Heartbeats need the lock: nothing that can block or take long is done with it, as in LocalJobs.
//
// Calls and streams share ownership until halt() has returned. Destroy it after halt(), and not on
// a gRPC thread. Any thread may call any method.
class ParentRelay final : public JobService, public std::enable_shared_from_this<ParentRelay> {
 public:
  // `dataplane` outlives the relay. `connect` makes a connection to the parent which ends after so many milliseconds of silence.
  ParentRelay(RelayOptions options, Dataplane* dataplane,
              std::function<std::shared_ptr<grpc::Channel>(int silence_ms)> connect);
  ~ParentRelay() override;

  void join(const control::JoinRequest& message, const Address& peer,
            const std::shared_ptr<MemberStream>& stream) override;
  Result<control::LeaveReply> leave(const MemberClaim& claim) override;
  Status report(const MemberClaim& claim, const Status& failure) override;
  Result<control::AliveReply> alive(const MemberClaim& claim, const control::Beat* beat) override;
  void drain() override;
  void stop(const Status& reason) override;
  void watch_deadlines() override;
  void run_tasks() override;
  void write_events() override {}
  void halt() override;
  bool wait_until_empty(std::chrono::steady_clock::time_point deadline) override;
  Status check_aggregator_token(const std::string& presented) override;
  std::vector<JobKey> running_jobs() override { return {}; }
  std::vector<AggregatorJobStatus> jobs(const JobLooks&) override;
  std::vector<AggregatorCounter> failures() override { return {}; }
  Result<control::TopologyReply> topology(const std::string&) override {
    return Status(ErrorCode::kUnsupported,
                  "this aggregator has a parent, which knows the plan: ask the one at " + options_.parent);
  }
  void place(const grpc::CallbackServerContext& call, PlaceInfo own,
             std::function<void(const Result<PlaceInfo>&)> done) override;
  // The jobs that were running here fail, by reports to the parent (Dataplane::set_on_lost).
  void on_dataplane_lost(const Status& reason);
  uint32_t payload_limit() override { return dataplane_->limits().capabilities.payload_bytes(); }
  bool draining() override;

 private:
  class ParentCall;  // one Join at the parent
  using SessionId = uint64_t;
  // Each is a stream of the connection to the parent, which allows 4096, with room for other calls.
  static constexpr size_t kMostSessions = 4000;

  // An index and slots of each stripe, reserved for a job from its first join here to its end. The last session or
  // grant that refers to it releases it, with the lock held.
  struct Reservation {
    explicit Reservation(ParentRelay* owner) : relay(owner) {}
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;
    ~Reservation();
    ParentRelay* const relay;
    uint16_t index = 0;
    uint16_t epoch = 0;
    uint32_t first_slot = 0;
    uint32_t slots = 0;
    bool granted = false;
  };
  // A job as the parent names it: index, epoch, key.
  using ParentJob = std::tuple<uint32_t, uint32_t, netsum_key>;

  // One member: its stream on one side, the call to the parent on the other.
  struct Session {
    JobSpec spec;
    int rank = 0;
    std::string host;           // of the rank, for messages
    std::string rack;           // of an aggregator below this one that joins for the rank; else empty
    int rack_rank = kNoRank;    // whose process that aggregator is in
    int parent_rank = kNoRank;  // ... and the parent
    bool multicast = false;     // it can receive from a multicast group
    MemberId member = 0;        // the parent's; 0: it has not answered yet
    int64_t began_us = 0;
    int64_t deadline_us = 0;  // for the parent's first event
    std::shared_ptr<MemberStream> stream;
    std::shared_ptr<ParentCall> call;  // not started while it waits
    control::Aggregator::Stub* parent = nullptr;
    int64_t liveness_us = 0;    // of the rank
    int64_t asked_us = 0;       // the first heartbeat that the parent has not answered; 0: none
    uint64_t rounds = 0;        // that the job here had completed when the parent was last suspected
    control::AliveReply reply;  // the parent's last
    std::shared_ptr<Reservation> reservation;
    std::optional<ParentJob> job;  // granted
    bool has_failed = false;       // the parent knows, or is being told
    int unanswered = 0;            // calls by which the parent learns of a failure, or that the member leaves
    bool stream_is_over = false;
    bool waits() const { return reservation == nullptr; }  // for slots or an index here
  };
  // A granted job here.
  struct Grant {
    std::shared_ptr<Reservation> reservation;
    DataplaneJob job;
    std::vector<uint16_t> member_of_rank;
    std::string plan;  // the shares, as text for status reports
    int sessions = 0;
    bool installed = false;
    std::vector<std::pair<SessionId, control::Ready>>
        waiting;  // until it is: what the parent has sent to them
  };
  // What is asked of the dataplane, which may block, in this order and without the lock.
  struct Task {
    bool install = false;  // else remove
    ParentJob key;
    DataplaneJob job;
    std::shared_ptr<Reservation> reservation;
  };

  // The error names the first rule that the request violates.
  Status check(const MemberRequest& request);
  // The request to the parent, without slots and deadline, which ParentCall::start() adds.
  control::JoinRequest request_above(const control::JoinRequest& message, const MemberRequest& request) const;
  void on_event(SessionId id, const control::Event& event, const std::string& parent_peer);
  void on_call_over(SessionId id, const grpc::Status& status, std::shared_ptr<ParentRelay> self,
                    std::shared_ptr<void> call);
  void on_stream_over(SessionId id);
  // The reservation of the job's other sessions that are not granted yet. Otherwise, if no job waits before this one
  // (`is_next`), a new one, with fewer slots than requested if there are not as many contiguous ones. Errors:
  // kResourceExhausted (no index, or no slots at all).
  Result<std::shared_ptr<Reservation>> reserve(const JobSpec& spec, bool is_next);
  // Waiting for slots (parent_relay_waiting.cc), with the lock held.
  bool may_wait(const JobSpec& spec) const;
  void notify_room();
  // Call the returned function without the lock: it starts the call to the parent.
  std::function<void()> admit(Session& session, std::shared_ptr<Reservation> reservation);
  void forget_waiting(SessionId id);
  // Admits waiting sessions that now find slots, and refuses those whose deadline has passed. Returns false if there
  // were none; otherwise it has released the lock in between.
  bool serve_waiting(std::unique_lock<std::mutex>& lock, int64_t now_us);
  // The parent has granted the session's job: the member is told when the job is installed. Error: why it cannot be summed
  // here.
  Status grant(SessionId id, Session& session, const control::Ready& ready, const std::string& parent_peer);
  Result<Grant> prepare(const Session& session, const control::Ready& ready, const std::string& parent_peer);
  // The Ready for the member, made from that of the parent.
  control::Ready ready_for(const Grant& grant, const control::Ready& above) const;
  // With the lock held: what follows from the end of the task. Call the returned function without the lock.
  std::function<void()> finish(const Task& task, const Status& installed);
  // Ends the session with the failure. Call the returned function without the lock: it tells the parent.
  std::function<void()> fail(SessionId id, Session& session, const Status& failure);
  // Whether the session belongs to `job`, by name and token, has a reservation, and is not granted yet.
  static bool waits_for(const Session& session, const JobSpec& job);
  // Whether all members that join `job` here can receive from a multicast group.
  bool all_receive_multicast(const JobSpec& job) const;
  // By rank: its member number here, or NETSUM_MEMBER_ALL if it joins elsewhere. `above`: by rank, its member number at
  // the parent, where this aggregator is member `own`.
  std::vector<uint16_t> number_members(const JobSpec& job, const std::vector<uint16_t>& above,
                                       uint16_t own) const;
  void release(const Session& session);
  Result<std::pair<SessionId, control::MemberRequest>> find(const MemberClaim& claim);
  control::MemberRequest claim_of(const Session& session) const;
  void heard_from_parent(SessionId id, const grpc::Status& status, const control::AliveReply& reply);
  // As Client::channel_for() does: the heartbeats decide for how long the parent can be stopped. Few connections for all jobs.
  control::Aggregator::Stub* parent_for(int64_t liveness_us);
  // Fails running sessions whose parent has been silent for their liveness timeout. With the lock held, which it releases in
  // between. `woken_late_us`: this process may have been stopped, with the answers unread. Returns when to look again.
  int64_t check_parent(std::unique_lock<std::mutex>& lock, int64_t now_us, int64_t woken_late_us);
  control::Aggregator::Stub* parent_of(SessionId id);
  void send_failure(SessionId id, const control::MemberRequest& claim, const Status& failure);
  // Before a call by which the parent learns that the member leaves, or has failed (`fails`): the end of the session's call
  // to the parent waits for its answer. False: the call is not to be made. The parent may handle calls in another order,
  // and a Leave that overtakes a failure would be all that the other members are told.
  bool expect_answer(SessionId id, bool fails);
  void on_answer(SessionId id, std::shared_ptr<ParentRelay> self, std::shared_ptr<void> call);
  void cancel_if_over(SessionId id);
  void call_began();
  // The last thing that a callback of gRPC does: passes on what it owns, because the last reference to the channel, which
  // the relay and the contexts of its calls hold, joins gRPC's threads.
  void call_ended(std::shared_ptr<ParentRelay> self, std::shared_ptr<void> call);

  const RelayOptions options_;
  Dataplane* const dataplane_;
  const std::function<std::shared_ptr<grpc::Channel>(int)> connect_;
  const std::string rack_;  // names this aggregator to the parent
  const netsum_key token_key_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, std::unique_ptr<control::Aggregator::Stub>> parents_;  // by silence, in ms; they stay
  bool halted_ = false;
  bool draining_ = false;
  int calls_ = 0;  // to the parent, in progress
  struct EndedCall {
    std::shared_ptr<ParentRelay> relay;
    std::shared_ptr<void> call;
  };
  std::vector<EndedCall> ended_;  // to be destroyed by watch_deadlines() or halt()
  SessionId next_session_ = 1;
  // What is not reserved.
  SlotRanges slots_;
  std::deque<std::pair<uint16_t, uint16_t>> free_indices_;  // index, epoch; longest unused first
  std::map<SessionId, Session> sessions_;
  std::deque<SessionId> waiting_;  // sessions that wait for slots, in order of arrival
  bool room_changed_ = false;      // since serve_waiting() last checked
  std::map<ParentJob, Grant> grants_;
  std::deque<Task> tasks_;
  size_t removals_ = 0;  // tasks that free room, waiting or running
  // After halt(): what is installed is still removed, unless the dataplane does not answer.
  bool no_more_tasks_ = false;
  std::chrono::steady_clock::time_point tasks_end_;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_PARENT_RELAY_H_
