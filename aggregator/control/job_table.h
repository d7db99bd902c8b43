// The jobs of one aggregator: decides which ranks may join, what each job is granted, and which events its members get.
// Without side effects: time and randomness are parameters, and it returns what is to be sent as events. Not thread-safe:
// LocalJobs calls it with its lock held. Heartbeats need this lock, so what takes long or may block (plans, and calls of the
// dataplane) is a task, which is run without it: take_task(), JobTask::run(), finish().
//
//   queued --(there is room)--> joining --(all ranks are here)--> starting --(planned, installed)--> running --(all have left)--> gone
//     |                            |                                 |                                |
//     +----------------------------+--(see below)--------------------+--------------------------------+--> failed
//                                                                            failed --(all streams have ended)--> gone
//
// A job fails when a member's stream breaks, a member reports a failure, a deadline passes, a member is silent for too
// long, or the aggregator stops. A queued or joining job whose last member leaves is gone, too.
//
// A job for which there is no room (slots, or an index) is refused, queued, or told to sum in its own hosts, as its
// specification asks (WhenFull). Queued jobs are admitted in order of arrival, before all later jobs.
//
// A failed job, or a job that a member has left, releases its name at once: later joins under this name form a new job.
// Joins that name the job that they succeed (JobSpec::succeeds) form a separate job, which may start without the ranks
// that do not join.
#ifndef NETSUM_AGGREGATOR_CONTROL_JOB_TABLE_H_
#define NETSUM_AGGREGATOR_CONTROL_JOB_TABLE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "aggregator/control/job_plans.h"
#include "aggregator/control/job_task.h"
#include "aggregator/control/job_watch.h"
#include "aggregator/dataplane/dataplane.h"
#include "aggregator/dataplane/slot_ranges.h"
#include "netsum/aggregator.h"
#include "netsum/options.h"
#include "netsum/status.h"
#include "src/control/control.pb.h"
#include "src/job/job_spec.h"
#include "src/net/address.h"
#include "src/plan/job_plan.h"

namespace netsum {

// Identifies one membership. Random, so that a member cannot end another member's membership.
using MemberId = uint64_t;

// Slots for block scales, in addition to a job's data slots: one scale packet covers many data packets. Their number
// limits how many small operations can be in flight, and how far (1 MB each) the scan runs ahead of the data.
inline constexpr uint32_t kScaleSlots = 16;
inline constexpr size_t kMaxHostBytes = 128;
inline constexpr size_t kMaxTurnedAway = 1024;
// Limits of what strangers can make the table remember.
inline constexpr size_t kMaxSharingBytes = 16 << 10;       // of one request
inline constexpr size_t kMaxSharingBytesOfAll = 64 << 20;  // of all members
inline constexpr size_t kMaxEndedJobs = 4096;
// The least that CommunicatorOptions::liveness_timeout can be.
inline constexpr int64_t kLeastLivenessUs = 20'000;

struct MemberRequest {
  JobSpec job;
  uint32_t rank = 0;
  int64_t deadline_us = 0;     // how long the member waits for the others; 0: as long as the table allows
  std::string shard_endpoint;  // of the member's embedded shard; empty: it has none
  uint32_t shard_payload_bytes = 0;
  uint32_t shard_slots = 0;
  std::string host;  // ranks of equal names share memory; empty: with nobody
  Address peer;      // the remote end of the member's control connection
  // Hierarchy: the name of the aggregator below that joins for the rank, and its limits (see control.proto). Empty: the
  // rank joins directly.
  std::string rack;
  uint32_t rack_payload_bytes = 0;
  uint32_t rack_slots = 0;
  uint32_t rack_stripes = 0;
  int rack_rank = kNoRank;                  // whose process that aggregator is in
  Capabilities dataplane;                   // of the shard or the rack
  std::optional<control::Sharing> sharing;  // set if this aggregator plans the job's shares: the rank's input
  uint32_t shard_job = 0;   // the job's index in the member's shard, if an aggregator sums, too
  std::string origin;       // where the rank is, for messages
  bool multicast = false;   // it can receive from a multicast group
  uint64_t completed = 0;   // operations of the succeeded job that the rank has finished
  int64_t liveness_us = 0;  // silence in a running job after which the member counts as lost; 0: never
};

// The credentials of a member in later calls.
struct MemberClaim {
  std::string job;
  std::string token;
  std::string aggregator_token;
  uint32_t rank = 0;
  MemberId member = 0;
  bool until_all_left = false;  // of JobTable::leave()
};

struct StripeGrant {
  std::string endpoint;
  int owner_rank = kNoRank;
  bool embedded = false;
  uint16_t job = 0;
};

struct JobGrant {
  DataplaneJob job;
  std::string dataplane;
  std::vector<StripeGrant> stripes;
  std::vector<std::string> hosts;        // by rank; empty if no two members share one
  uint64_t host_meeting = 0;             // random: names the segment in which the ranks of a host meet
  uint64_t succession_id = 0;            // random: JobSpec::succeeds of a job that succeeds this one
  std::vector<uint16_t> member_of_rank;  // empty: every rank is a member, by its own number
  std::vector<int> former_ranks;         // by rank: the rank that it joined as; empty: the same
  int inside_rank = kNoRank;             // as JobTableOptions
  uint64_t completed = 0;                // the minimum of the members'
  netsum_key sum_secret{};               // verified sums: the secret of their tags
  Capabilities capabilities;             // common to all dataplanes that sum for the job
  SharePlan plan;                        // without weights: all stripes are equal

  bool has_shards() const;
};

// What one tenant, the address that the first rank of a job has joined from, may have at the same time. 0: all that there is.
struct TenantQuota {
  int jobs = 0;
  uint32_t slots = 0;  // on each stripe, scale slots among them
};

// Adds to `place` what the dataplane knows: stripes, cores and multicast.
PlaceInfo place_of(PlaceInfo place, const Dataplane& dataplane);

struct JobEvent {
  enum class Kind { kJoined, kReady, kFailed, kDraining, kEnd };
  MemberId to = 0;
  Kind kind = Kind::kEnd;    // kFailed and kEnd are the last event of a membership
  std::vector<int> missing;  // kJoined: ranks that have not joined or, in a running job, have left
  std::shared_ptr<const JobGrant> grant;  // kReady
  Status failure;                         // kFailed
};

struct JobTableOptions {
  std::string token;  // of the aggregator; empty: none is required
  int max_jobs = 64;
  int64_t join_timeout_us = 60'000'000;
  PlaceInfo place;  // of this aggregator; its stripes are the dataplane's
  TenantQuota tenant;
  int inside_rank = kNoRank;  // whose process this aggregator is in
  // Tasks wait for take_task(). Otherwise each call runs them before it returns.
  bool defer_tasks = false;
};

class JobTable {
 public:
  // `dataplane` outlives the table. `random` gives 64 unpredictable bits: keys, first epochs and member ids come from it.
  JobTable(JobTableOptions options, Dataplane* dataplane, std::function<uint64_t()> random);

  Result<MemberId> join(int64_t now_us, const MemberRequest& request);
  // The member leaves; the job goes on. Its stream ends at once or, with `until_all_left`, as soon as no member needs what the
  // member has: when all have left, or the job has failed.
  Status leave(const MemberClaim& claim);
  // A member reports that the job has failed: all other members are notified.
  Status report(const MemberClaim& claim, const Status& failure);
  // A heartbeat of the member. The answer tells for whom its job waits (job_hangs.cc).
  Result<control::AliveReply> alive(int64_t now_us, const MemberClaim& claim,
                                    const control::Beat* beat = nullptr);
  // The member's stream has ended, for any reason. Unknown members are ignored.
  void stream_ended(MemberId id);
  // Fails jobs whose members have not joined in time or are silent, starts jobs that wait no longer for missing ranks,
  // and admits queued jobs. Members of a job that has no look count as silent at a later call.
  void on_tick(int64_t now_us, const JobLooks& looks);
  void on_tick(int64_t now_us) { on_tick(now_us, look_for_members(*dataplane_, silent_jobs(now_us))); }
  std::optional<int64_t> next_deadline_us() const;
  // Jobs with a member that has sent no heartbeat for its liveness timeout: on_tick() needs to know whether it contributes.
  std::vector<JobKey> silent_jobs(int64_t now_us) const;
  std::vector<JobKey> running_jobs() const;

  // The next task, to be run in this order, one after the other; and what becomes of the job when it is done.
  std::optional<JobTask> take_task();
  bool has_task() const { return !tasks_.empty(); }
  void finish(int64_t now_us, JobTask task);
  // Whether room becomes free as soon as tasks are done: who is refused for lack of room should be asked again then.
  bool frees_room() const { return removals_ > 0; }
  // Whether this refusal of a join is one of these.
  bool must_wait(const Status& refusal) const {
    return frees_room() && refusal.code() == ErrorCode::kResourceExhausted;
  }
  // Creates no further jobs. Members are notified.
  void drain();
  // Fails every job.
  void stop(const Status& reason);
  // The dataplane has lost the jobs that were installed (Dataplane::set_on_lost): they fail.
  void dataplane_lost(const Status& reason);

  Status check_aggregator_token(const std::string& presented) const;
  bool draining() const { return draining_; }
  bool empty() const;  // no job is joining or running
  uint32_t payload_limit() const;
  // Repeated calls with fresh looks show which ranks a job waits for (JobWatch).
  std::vector<AggregatorJobStatus> jobs(int64_t now_us, const JobLooks& looks);
  std::vector<AggregatorJobStatus> jobs(int64_t now_us) {
    return jobs(now_us, look_at_progress(*dataplane_, running_jobs()));
  }
  // Jobs that have failed, by error code: "jobs_failed_wrong_sum" and so on, for every code.
  std::vector<AggregatorCounter> failures() const;
  // What the plan of a running job is made from; "" names the only one. Errors: kInvalidArgument: no such job, or several;
  // kUnsupported: this aggregator has made no plan for it.
  Result<control::TopologyReply> topology(const std::string& name) const {
    const Result<TopologyInput> input = topology_input(name);
    return input.ok() ? topology_reply(*input) : input.status();
  }
  // The same in two steps, of which the second needs no table.
  struct TopologyInput {
    std::string job;
    std::string plan;
    PlanInput input;
  };
  Result<TopologyInput> topology_input(const std::string& name) const;
  static Result<control::TopologyReply> topology_reply(const TopologyInput& input);
  std::vector<JobEvent> take_events() { return std::exchange(events_, {}); }
  // Events since the last call, for logs.
  std::vector<AggregatorEvent> take_notes() { return std::exchange(notes_, {}); }

 private:
  enum class State {
    kQueued,    // waits for room: members join, but it has no index and no slots
    kJoining,   // waits for its ranks
    kStarting,  // all are here: it is planned and installed
    kRunning,
    kFailed,  // its members are notified; it waits for the end of their streams
  };
  using JobNumber = uint64_t;
  // Name, hash of the token, and JobSpec::succeeds. It includes the token, so that a job's name can be occupied only by
  // those who know its token. The hash is keyed, so that the duration of a look-up reveals nothing about tokens.
  using Identity = std::tuple<std::string, uint64_t, uint64_t>;

  using SharingText = std::shared_ptr<const std::string>;
  struct Member {
    MemberId id = 0;
    std::string host;              // for messages
    std::string shares_memory_on;  // MemberRequest::host
    Address peer;
    std::string shard_endpoint;
    uint32_t shard_payload_bytes = 0;
    uint32_t shard_slots = 0;
    std::string rack;  // hierarchy, as are the next four
    uint32_t rack_payload_bytes = 0;
    uint32_t rack_slots = 0;
    uint32_t rack_stripes = 0;
    int rack_rank = kNoRank;
    Capabilities dataplane;   // of the shard or the rack
    SharingText sharing;      // PlanInput::Rank::sharing; null: it has sent none
    bool sent_below = false;  // it says that an aggregator is below this one
    uint32_t shard_job = 0;
    bool multicast = false;
    int64_t deadline_us = 0;  // when the member stops waiting for the others
    uint64_t completed = 0;
    int64_t liveness_us = 0;
    int64_t heard_us = 0;               // the last sign of life, while running
    int forgiven = 0;                   // how often its silence has been forgiven since
    std::optional<uint64_t> submitted;  // operations, as it says; nothing: it does not tell
    int64_t behind_us = 0;              // when another was first seen to have submitted more; 0: none has
    std::string hint;                   // where it is
    faults::MemberTotals sockets;       // what it says of them
    std::vector<faults::MemberTotals>
        shard;  // what its shard has counted of each rank, as it says; empty: it does not tell
  };
  struct Job {
    JobSpec spec;
    State state = State::kJoining;
    int64_t created_us = 0;
    int64_t deadline_us = 0;                     // while it waits for ranks
    std::vector<std::optional<Member>> members;  // by rank; empty: has not joined, or has left
    int64_t gathered_us = 0;                     // while it waits for ranks: when the last one joined
    std::vector<int> former_ranks;               // if members were renumbered
    std::vector<MemberId> leavers;  // have left, and their streams end with the job: at most one of each rank
    std::string tenant;
    uint64_t attempt = 0;                // to start it: tells its tasks from earlier ones
    std::shared_ptr<JobGrant> starting;  // while it is installed
    bool installed = false;              // the dataplane has it, or is about to get it
    uint64_t succession_id = 0;          // 0: it has not run
    DataplaneJob grant;
    uint32_t reserved_slots = 0;  // from grant.first_slot on; 0 while queued
    std::string delivery;         // how results are delivered, as text for status reports
    std::string plan;             // the shares, as text for status reports
    std::string failure;
    JobWatch watch;                  // while running
    uint64_t rounds_heard = 0;       // completed at the previous check of heartbeats
    uint64_t most_submitted = 0;     // by a member
    std::vector<std::string> hangs;  // as of hangs_us
    int64_t hangs_us = 0;
    std::vector<int> away;  // as AggregatorJobStatus

    std::vector<int> ranks(bool present) const;
    bool has_members() const;
    bool waits_for_ranks() const { return state == State::kQueued || state == State::kJoining; }
    bool may_start_without_all() const { return spec.min_members() > 0; }
    // Ranks that come now are not waited for.
    bool is_closed() const {
      return (state == State::kStarting || state == State::kRunning) && may_start_without_all();
    }
    JobKey key() const { return {grant.job, grant.epoch}; }
    int64_t join_deadline_us() const;
    // When it starts without the missing ranks; never while fewer than min_members have joined.
    int64_t gather_deadline_us() const;
    int64_t silence_deadline_us() const;  // when the first member has been silent for too long
    void add_sockets(std::vector<faults::MemberTotals>* totals) const;
    void take_paths(const control::Beat& beat, Member* member) const;
    std::vector<AggregatorJobStatus::Path> paths_of_shards() const;  // as the members tell
    void find_hangs(int64_t now_us);                                 // not more often than is useful
  };
  // Notes of refused joins, of which strangers can cause any number: at once, and per second.
  static constexpr double kRefusalsAtOnce = 64;
  static constexpr double kRefusalsPerSecond = 8;

  struct Index {
    uint16_t index = 0;
    uint16_t epoch = 0;
  };

  // The errors name the first rule that the request violates (job_checks.cc).
  Status check_job(const JobSpec& spec) const;
  Status check_quota(const JobSpec& spec) const;
  Status check_room(const JobSpec& spec) const;
  bool fits_when_empty(const JobSpec& spec) const;
  Status check_shard(const MemberRequest& request) const;
  Status check_tenant(const JobSpec& spec, const std::string& tenant) const;
  Status check_rack(const MemberRequest& request) const;
  // Whether the dataplanes that would sum for the job have the capabilities that it needs.
  Status check_capabilities(const MemberRequest& request) const;

  Result<MemberId> admit(int64_t now_us, const MemberRequest& request);
  Result<JobNumber> find_or_create(int64_t now_us, const MemberRequest& request);
  Identity identity_of(const JobSpec& spec) const;
  // The error of a job whose ranks have not all joined in time.
  Status not_whole(JobNumber number, int64_t waited_ms) const;
  // `patience_us` 0: the limit of the table.
  int64_t join_deadline_us(int64_t now_us, int64_t patience_us) const;
  // Whether a new job can be admitted now.
  Status check_entry(int64_t now_us, const JobSpec& spec, const std::string& tenant) const;
  // Whether the job that `spec` succeeds has run here, under the same name and token, and may be regrouping.
  bool succeeds_a_job_of_here(int64_t now_us, const JobSpec& spec) const;
  void remember_end(const Job& job);
  void note_refusal(int64_t now_us, const MemberRequest& request, const Status& why);
  // Takes an index and slots; check_room() has succeeded.
  void reserve(Job& job);
  void promote();
  Result<JobNumber> find_member(const MemberClaim& claim) const;
  void fail_silent(int64_t now_us, JobNumber number, const JobLook& look);
  static void hear_data(int64_t now_us, Job& job, const JobLook& look);
  static bool whole_rack_is_silent(int64_t now_us, const Job& job, size_t rank);
  Status silence_of(int64_t now_us, Job& job, size_t rank) const;
  void close_ranks(Job& job);
  void notify_missing(const Job& job);
  // The steps of a job whose ranks are all here: plan, install, run.
  void start(JobNumber number);
  void install(JobNumber number, const Result<plan::JobPlan>* plan);
  void run(int64_t now_us, JobNumber number);
  // Runs all tasks, unless they are deferred.
  void settle(int64_t now_us);
  // `plan`: null if this aggregator makes none for the job, as below.
  Result<JobGrant> grant_for(const Job& job, const Result<plan::JobPlan>* plan);
  // Adds the dataplane's stripes, and those of the members' shards to which the plan gives a weight.
  Status grant_stripes(const Job& job, const Result<plan::JobPlan>* plan, JobGrant* grant) const;
  // Returns the weight of each rank's shard, and writes those of all stripes with a weight to grant->plan.
  Result<std::vector<uint32_t>> plan_shares(const Job& job, const Result<plan::JobPlan>* plan,
                                            JobGrant* grant) const;
  Result<const Job*> running(const std::string& name) const;
  // Whether this aggregator makes a plan for the job. Requires that all members are there, as does plan_input().
  static bool is_planned(const Job& job);
  PlanInput plan_input(const Job& job) const;
  Status grant_shard(const Job& job, size_t rank, JobGrant* grant) const;
  Capabilities capabilities_for(const Job& job, const JobGrant& grant) const;
  std::string grant_multicast_group(const Job& job, JobGrant* grant) const;
  void grant_hosts(const Job& job, JobGrant* grant);
  Status group_by_rack(const Job& job, JobGrant* grant) const;
  void fail(JobNumber number, const Status& failure, int except_rank);
  void end_leavers(Job& job);
  void forget_if_over(JobNumber number);
  static void describe_progress(const Job& job, AggregatorJobStatus* status);
  void note(AggregatorEvent::Kind kind, const Job& job, int rank = kNoRank, std::string host = {},
            std::string reason = {});
  void release(JobNumber number);
  void give_back(const DataplaneJob& grant, uint32_t slots);
  std::string remove_member(Job& job, size_t rank);
  Status still_full(JobNumber number, int64_t waited_ms) const;
  void unlink_name(JobNumber number);

  JobTableOptions options_;
  Dataplane* dataplane_;
  const bool members_bring_shards_;
  std::function<uint64_t()> random_;
  // The slots of each stripe. A job reserves a range from its admission to its end. Unused if members bring the shards.
  SlotRanges slots_;
  const netsum_key identity_key_;
  bool draining_ = false;
  JobNumber next_number_ = 1;
  std::map<JobNumber, Job> jobs_;
  // Jobs that have their name: queued, joining, and running ones that no member has left.
  std::map<Identity, JobNumber> by_name_;
  std::unordered_map<MemberId, std::pair<JobNumber, int>> members_;  // until their stream ends
  std::deque<JobNumber> queue_;                                      // jobs that wait for room
  bool room_changed_ = false;                                        // since promote() last checked
  // Jobs that were told to sum in their hosts, and until when their later ranks are told so, too.
  std::map<Identity, int64_t> turned_away_;
  // The one unused for longest first, so that delayed packets of its previous job are unlikely to arrive.
  std::deque<Index> free_indices_;
  std::map<ErrorCode, uint64_t> failures_;  // number of jobs
  std::deque<JobTask> tasks_;
  size_t removals_ = 0;  // tasks that free room, waiting or running
  uint64_t next_attempt_ = 1;
  size_t sharing_bytes_ = 0;  // of all members
  // Jobs that have ended: their successors, until when they may come (remember_end()).
  std::map<Identity, int64_t> successors_;
  int64_t now_us_ = 0;  // of the last call that was told
  // Notes of refused joins: how many may be written now, since when, and how many were not.
  double refusals_to_note_ = kRefusalsAtOnce;
  int64_t refusal_noted_us_ = 0;
  uint64_t refusals_left_out_ = 0;
  std::vector<JobEvent> events_;
  std::vector<AggregatorEvent> notes_;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_JOB_TABLE_H_
