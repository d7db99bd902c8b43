#include "aggregator/control/job_table.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <set>

#include "aggregator/control/request_checks.h"
#include "netsum/regroup.h"
#include "src/base/assert.h"
#include "src/base/text.h"
#include "src/job/job_spec.h"
#include "src/job/ranks.h"
#include "wire/ids.h"
#include "wire/mtu.h"

namespace netsum {
namespace {

// Those who are refused by a quota of tenants have many addresses only if their network gives them many: of IPv6, a host has
// a prefix of 64 bits.
std::string tenant_of(const Address& peer) {
  Address network = peer;
  network.port = 0;
  if (network.family == 6) std::fill(network.ip.begin() + 8, network.ip.end(), uint8_t{0});
  return network.valid() ? network.to_string() : "unknown";
}

std::string host_of(const Address& address) {
  if (!address.valid()) return "unknown host";
  const std::string text = address.to_string();
  const std::string host = text.substr(0, text.rfind(':'));
  return host.starts_with('[') ? host.substr(1, host.size() - 2) : host;
}

}  // namespace

std::vector<int> JobTable::Job::ranks(bool present) const {
  std::vector<int> found;
  for (size_t rank = 0; rank < members.size(); ++rank)
    if (members[rank].has_value() == present) found.push_back(static_cast<int>(rank));
  return found;
}

bool JobTable::Job::has_members() const {
  return std::any_of(members.begin(), members.end(), [](const auto& member) { return member.has_value(); });
}

int64_t JobTable::Job::join_deadline_us() const {
  // Without one of its members the job cannot start, so the earliest deadline applies to all.
  int64_t earliest_us = deadline_us;
  for (const auto& member : members)
    if (member) earliest_us = std::min(earliest_us, member->deadline_us);
  return earliest_us;
}

int64_t JobTable::Job::gather_deadline_us() const {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  if (!may_start_without_all()) return kNever;
  const auto after = regroup_rule(spec).closes_after(static_cast<int>(ranks(true).size()));
  return after ? gathered_us + after->count() : kNever;
}

int64_t JobTable::Job::silence_deadline_us() const {
  int64_t earliest_us = std::numeric_limits<int64_t>::max();
  if (state != State::kRunning) return earliest_us;
  for (const auto& member : members)
    if (member && member->liveness_us > 0)
      earliest_us = std::min(earliest_us, member->heard_us + member->liveness_us);
  return earliest_us;
}

JobTable::JobTable(JobTableOptions options, Dataplane* dataplane, std::function<uint64_t()> random)
    : options_(std::move(options)),
      dataplane_(dataplane),
      members_bring_shards_(dataplane->limits().members_bring_shards),
      random_(std::move(random)),
      slots_(dataplane->limits().slots_per_stripe),
      identity_key_{random_(), random_()} {
  options_.max_jobs = std::min(options_.max_jobs, dataplane_->limits().max_jobs);
  NETSUM_ASSERT(options_.max_jobs > 0 && options_.max_jobs <= std::numeric_limits<uint16_t>::max());
  for (int i = 0; i < options_.max_jobs; ++i)
    free_indices_.push_back({static_cast<uint16_t>(i), static_cast<uint16_t>(random_())});
}

uint32_t JobTable::payload_limit() const {
  return std::min<uint32_t>(dataplane_->limits().capabilities.payload_bytes(), NETSUM_MAX_PAYLOAD);
}

Result<JobTable::JobNumber> JobTable::find_or_create(int64_t now_us, const MemberRequest& request) {
  const JobSpec& spec = request.job;
  const Identity identity = identity_of(spec);
  if (const auto named = by_name_.find(identity); named != by_name_.end()) {
    const Job& job = jobs_.at(named->second);
    // A job that has started without all ranks has another world size; admit() refuses the late rank.
    if (Status status = check_same(job.spec, spec); !job.is_closed() && !status.ok()) return status;
    return named->second;
  }
  const std::string tenant = tenant_of(request.peer);
  const Status entry = check_entry(now_us, spec, tenant);
  const bool full = entry.code() == ErrorCode::kResourceExhausted;
  if (full && frees_room()) return entry;  // to be asked again
  if (full && when_full_of(spec) == WhenFull::kHosts) {
    std::erase_if(turned_away_, [&](const auto& away) { return away.second <= now_us; });
    // If too many are remembered already, a later rank of this job may be admitted without the first one; both then end
    // at their deadlines.
    if (turned_away_.size() < kMaxTurnedAway)
      turned_away_.emplace(identity, join_deadline_us(now_us, request.deadline_us));
  }
  const bool waits = full && when_full_of(spec) == WhenFull::kWait && fits_when_empty(spec) &&
                     check_tenant(spec, tenant).ok() &&
                     queue_.size() < static_cast<size_t>(options_.max_jobs);
  if (!entry.ok() && !waits) return entry;
  Job job;
  job.spec = spec;
  job.created_us = now_us;
  job.deadline_us = join_deadline_us(now_us, 0);
  job.members.resize(spec.world_size());
  job.tenant = tenant;
  if (waits) job.state = State::kQueued;
  const JobNumber number = next_number_++;
  if (waits)
    queue_.push_back(number);
  else
    reserve(job);
  by_name_[identity] = number;
  note(AggregatorEvent::Kind::kJobBegan, job);
  jobs_.emplace(number, std::move(job));
  return number;
}

JobTable::Identity JobTable::identity_of(const JobSpec& spec) const {
  return {spec.name(), hash_of_token(identity_key_, spec.token()), spec.succeeds()};
}

int64_t JobTable::join_deadline_us(int64_t now_us, int64_t patience_us) const {
  return now_us +
         (patience_us > 0 ? std::min(patience_us, options_.join_timeout_us) : options_.join_timeout_us);
}

void JobTable::reserve(Job& job) {
  job.grant.job = free_indices_.front().index;
  job.grant.epoch = free_indices_.front().epoch;
  free_indices_.pop_front();
  if (members_bring_shards_) return;
  job.reserved_slots = job.spec.slots() + kScaleSlots;
  const Result<uint32_t> first = slots_.take(job.reserved_slots);
  NETSUM_ASSERT(first.ok());  // by check_room
  job.grant.first_slot = *first;
}

// First come, first served: a small job behind a large one waits, too; otherwise the large one might never be admitted.
void JobTable::promote() {
  room_changed_ = false;
  while (!queue_.empty() && check_room(jobs_.at(queue_.front()).spec).ok()) {
    const JobNumber number = queue_.front();
    Job& job = jobs_.at(number);
    queue_.pop_front();
    job.state = State::kJoining;
    reserve(job);
    if (job.ranks(false).empty()) start(number);
  }
}

Result<MemberId> JobTable::join(int64_t now_us, const MemberRequest& request) {
  now_us_ = now_us;
  Result<MemberId> id = admit(now_us, request);
  if (!id.ok() && !must_wait(id.status())) note_refusal(now_us, request, id.status());
  settle(now_us);
  return id;
}

void JobTable::note_refusal(int64_t now_us, const MemberRequest& request, const Status& why) {
  const double passed_s = static_cast<double>(now_us - std::exchange(refusal_noted_us_, now_us)) * 1e-6;
  refusals_to_note_ = std::min(kRefusalsAtOnce, refusals_to_note_ + passed_s * kRefusalsPerSecond);
  if (refusals_to_note_ < 1) {
    ++refusals_left_out_;
    return;
  }
  refusals_to_note_ -= 1;
  std::string reason = why.to_string();
  if (const uint64_t left_out = std::exchange(refusals_left_out_, 0); left_out > 0)
    reason += " (" + std::to_string(left_out) + " earlier refusals are not in this log)";
  notes_.push_back({AggregatorEvent::Kind::kJoinRefused, printable(request.job.name(), kMaxJobNameBytes),
                    static_cast<int>(std::min<uint32_t>(request.rank, std::numeric_limits<int>::max())),
                    host_of(request.peer), 0, 0, std::move(reason)});
}

Result<MemberId> JobTable::admit(int64_t now_us, const MemberRequest& request) {
  if (Status status = check_job(request.job); !status.ok()) return status;
  if (Status status = check_member(request); !status.ok()) return status;
  if (Status status = check_shard(request); !status.ok()) return status;
  if (Status status = check_rack(request); !status.ok()) return status;
  if (Status status = check_capabilities(request); !status.ok()) return status;
  auto sharing = request.sharing ? std::make_shared<const std::string>(request.sharing->SerializeAsString())
                                 : SharingText();
  const size_t sharing_bytes = sharing ? sharing->size() : 0;
  if (sharing_bytes_ + sharing_bytes > kMaxSharingBytesOfAll)
    return Status(ErrorCode::kResourceExhausted,
                  "the members of this aggregator have declared " + std::to_string(sharing_bytes_) +
                      " bytes of links and aggregators, and at most " +
                      std::to_string(kMaxSharingBytesOfAll) + " are kept: wait for a job to end");
  const Result<JobNumber> number = find_or_create(now_us, request);
  if (!number.ok()) return number.status();
  Job& job = jobs_.at(*number);
  const int rank = static_cast<int>(request.rank);
  if (job.is_closed()) return RegroupRule::came_too_late(rank, job.former_ranks);
  if (const auto& holder = job.members[request.rank])
    return Status(ErrorCode::kInvalidArgument,
                  "rank " + std::to_string(rank) + " of job '" + request.job.name() +
                      "' is already taken, by " + holder->host + ": is another run using the same job name?",
                  rank);

  Member member;
  do member.id = random_();
  while (member.id == 0 || members_.contains(member.id));
  member.host = request.origin.empty() ? host_of(request.peer) : request.origin;
  member.peer = request.peer;
  member.shard_endpoint = request.shard_endpoint;
  member.shard_payload_bytes = request.shard_payload_bytes;
  member.shard_slots = request.shard_slots;
  member.shares_memory_on = request.host;
  member.rack = request.rack;
  member.rack_payload_bytes = request.rack_payload_bytes;
  member.rack_slots = request.rack_slots;
  member.rack_stripes = request.rack_stripes;
  member.rack_rank = request.rack_rank;
  member.dataplane = request.dataplane;
  member.sharing = std::move(sharing);
  sharing_bytes_ += sharing_bytes;
  member.sent_below = request.sharing && !request.sharing->first_place().below().empty();
  member.shard_job = request.shard_job;
  member.multicast = request.multicast;
  member.deadline_us =
      request.deadline_us > 0 ? now_us + request.deadline_us : std::numeric_limits<int64_t>::max();
  member.completed = request.completed;
  member.liveness_us = request.liveness_us;
  job.gathered_us = now_us;
  const MemberId id = member.id;
  job.members[request.rank] = std::move(member);
  members_[id] = {*number, rank};
  note(AggregatorEvent::Kind::kMemberJoined, job, rank, host_of(request.peer));
  notify_missing(job);
  if (job.ranks(false).empty() && job.state == State::kJoining) start(*number);
  return id;
}

void JobTable::notify_missing(const Job& job) {
  const std::vector<int> missing = job.ranks(false);
  for (const auto& member : job.members)
    if (member) events_.push_back({member->id, JobEvent::Kind::kJoined, missing, nullptr, {}});
}

Result<JobTable::JobNumber> JobTable::find_member(const MemberClaim& claim) const {
  if (Status status = check_aggregator_token(claim.aggregator_token); !status.ok()) return status;
  const auto found = members_.find(claim.member);
  const Job* job = found == members_.end() ? nullptr : &jobs_.at(found->second.first);
  if (job == nullptr || job->spec.name() != claim.job ||
      static_cast<uint32_t>(found->second.second) != claim.rank)
    return Status(ErrorCode::kInvalidArgument, "rank " + std::to_string(claim.rank) +
                                                   " is not a member of job '" +
                                                   printable(claim.job, kMaxJobNameBytes) + "'");
  if (!equal_in_constant_time(job->spec.token(), claim.token))
    return Status(ErrorCode::kPermissionDenied, "wrong token for job '" + job->spec.name() + "'");
  return found->second.first;
}

Status JobTable::leave(const MemberClaim& claim) {
  const Result<JobNumber> number = find_member(claim);
  if (!number.ok()) return number.status();
  Job& job = jobs_.at(*number);
  const std::string host = remove_member(job, claim.rank);
  note(AggregatorEvent::Kind::kMemberLeft, job, static_cast<int>(claim.rank), host);
  members_.erase(claim.member);
  // Only ranks of a running job have results for each other. No rank joins it, so each of them leaves once.
  if (claim.until_all_left && job.state == State::kRunning && job.has_members())
    job.leavers.push_back(claim.member);
  else if (job.state != State::kFailed)
    events_.push_back({claim.member, JobEvent::Kind::kEnd, {}, nullptr, {}});
  if (job.state != State::kFailed) notify_missing(job);
  if (job.state == State::kRunning) unlink_name(*number);
  if (job.state == State::kStarting && job.has_members()) {
    const int rank = static_cast<int>(claim.rank);
    fail(*number,
         {ErrorCode::kPeerLost, describe_rank(rank, host) + " has left while the job was started", rank},
         kNoRank);
  } else {
    forget_if_over(*number);
  }
  settle(now_us_);
  return {};
}

Status JobTable::report(const MemberClaim& claim, const Status& failure) {
  const Result<JobNumber> number = find_member(claim);
  if (!number.ok()) return number.status();
  Job& job = jobs_.at(*number);
  if (job.state == State::kFailed) return {};
  const int rank = static_cast<int>(claim.rank);
  const bool names_a_rank = failure.rank() >= 0 && static_cast<size_t>(failure.rank()) < job.members.size();
  const Member& member = *job.members[claim.rank];
  // An aggregator below tells that it has lost the rank.
  const bool is_lost =
      !member.rack.empty() && failure.code() == ErrorCode::kPeerLost && failure.rank() == rank;
  const Status told(
      failure.code(),
      (is_lost ? "" : describe_rank(rank, member.host) + " reported: ") + printable(failure.message()),
      names_a_rank ? failure.rank() : kNoRank);
  fail(*number, told, rank);
  settle(now_us_);
  return {};
}

void JobTable::stream_ended(MemberId id) {
  const auto found = members_.find(id);
  if (found == members_.end()) return;
  const auto [number, rank] = found->second;
  members_.erase(found);
  Job& job = jobs_.at(number);
  const Member& member = *job.members[static_cast<size_t>(rank)];
  const bool by_aggregator = !member.rack.empty();
  const int rack_rank = member.rack_rank;
  const std::string host = remove_member(job, static_cast<size_t>(rank));
  // The members of a failed job have been told to end their streams.
  if (job.state != State::kFailed) note(AggregatorEvent::Kind::kMemberLost, job, rank, host);
  if (job.state == State::kFailed) return forget_if_over(number);
  if (job.waits_for_ranks() && job.may_start_without_all()) {
    notify_missing(job);
    forget_if_over(number);
  } else {
    fail(number, lost_with(rack_rank, disconnected(rank, host, by_aggregator)), kNoRank);
  }
  settle(now_us_);
}

// Returns its host.
std::string JobTable::remove_member(Job& job, size_t rank) {
  const Member gone = *std::exchange(job.members[rank], std::nullopt);
  if (gone.sharing) sharing_bytes_ -= gone.sharing->size();
  return gone.host;
}

void JobTable::fail(JobNumber number, const Status& failure, int except_rank) {
  Job& job = jobs_.at(number);
  unlink_name(number);
  release(number);
  remember_end(job);
  job.state = State::kFailed;
  job.failure = failure.to_string();
  ++failures_[failure.code()];
  note(AggregatorEvent::Kind::kJobFailed, job, failure.rank(), {}, job.failure);
  for (const int rank : job.ranks(true)) {
    const MemberId id = job.members[static_cast<size_t>(rank)]->id;
    if (rank == except_rank)
      events_.push_back({id, JobEvent::Kind::kEnd, {}, nullptr, {}});
    else
      events_.push_back({id, JobEvent::Kind::kFailed, {}, nullptr, failure});
  }
  end_leavers(job);
  forget_if_over(number);
}

void JobTable::end_leavers(Job& job) {
  for (const MemberId id : std::exchange(job.leavers, {}))
    events_.push_back({id, JobEvent::Kind::kEnd, {}, nullptr, {}});
}

void JobTable::release(JobNumber number) {
  Job& job = jobs_.at(number);
  if (job.state == State::kQueued) {
    std::erase(queue_, number);
    return;
  }
  if (!job.installed) return give_back(job.grant, job.reserved_slots);
  // What is under way of this job comes before it.
  JobTask& removal = tasks_.emplace_back(JobTask{.kind = JobTask::Kind::kRemove});
  removal.job.job = job.grant.job;
  removal.job.epoch = job.grant.epoch;
  removal.job.first_slot = job.grant.first_slot;
  removal.slots = job.reserved_slots;
  ++removals_;
}

void JobTable::give_back(const DataplaneJob& grant, uint32_t slots) {
  room_changed_ = true;
  if (slots > 0) slots_.give_back(*grant.first_slot, slots);
  free_indices_.push_back({grant.job, static_cast<uint16_t>(grant.epoch + 1)});
}

void JobTable::unlink_name(JobNumber number) {
  const auto named = by_name_.find(identity_of(jobs_.at(number).spec));
  if (named != by_name_.end() && named->second == number) by_name_.erase(named);
}

void JobTable::forget_if_over(JobNumber number) {
  Job& job = jobs_.at(number);
  if (job.has_members()) return;
  if (job.state != State::kFailed) {
    unlink_name(number);
    release(number);
    remember_end(job);
  }
  end_leavers(job);
  note(AggregatorEvent::Kind::kJobEnded, job);
  jobs_.erase(number);
}

// The members that have joined become ranks 0, 1, ... in the order of their former ranks.
void JobTable::close_ranks(Job& job) {
  std::vector<std::optional<Member>> present;
  job.former_ranks.clear();
  for (const int rank : job.ranks(true)) {
    auto& member = job.members[static_cast<size_t>(rank)];
    members_.at(member->id).second = static_cast<int>(present.size());
    present.push_back(std::move(member));
    job.former_ranks.push_back(rank);
  }
  job.members = std::move(present);
  job.spec.set_world_size(static_cast<uint32_t>(job.members.size()));
}

void JobTable::on_tick(int64_t now_us, const JobLooks& looks) {
  now_us_ = now_us;
  std::vector<JobNumber> late, gathered, silent;
  for (const auto& [number, job] : jobs_) {
    if (job.state == State::kJoining && now_us >= job.gather_deadline_us())
      gathered.push_back(number);
    else if (job.waits_for_ranks() && now_us >= job.join_deadline_us())
      late.push_back(number);
    else if (now_us >= job.silence_deadline_us())
      silent.push_back(number);
  }
  for (const JobNumber number : gathered) {
    close_ranks(jobs_.at(number));
    start(number);
  }
  for (const JobNumber number : silent) {
    const auto look = looks.find(jobs_.at(number).key());
    if (look != looks.end()) fail_silent(now_us, number, look->second);
  }
  for (const JobNumber number : late) {
    const Job& job = jobs_.at(number);
    const int64_t waited_ms = (now_us - job.created_us) / 1000;
    fail(number, job.state == State::kQueued ? still_full(number, waited_ms) : not_whole(number, waited_ms),
         kNoRank);
  }
  promote();
  settle(now_us);
}

std::vector<JobKey> JobTable::silent_jobs(int64_t now_us) const {
  std::vector<JobKey> keys;
  for (const auto& [number, job] : jobs_)
    if (now_us >= job.silence_deadline_us()) keys.push_back(job.key());
  return keys;
}

std::vector<JobKey> JobTable::running_jobs() const {
  std::vector<JobKey> keys;
  for (const auto& [number, job] : jobs_)
    if (job.state == State::kRunning) keys.push_back(job.key());
  return keys;
}

std::optional<JobTask> JobTable::take_task() {
  while (!tasks_.empty()) {
    JobTask task = std::move(tasks_.front());
    tasks_.pop_front();
    // The plan of a job that has ended meanwhile is not made. What is installed is removed later.
    const auto job = jobs_.find(task.number);
    const bool over =
        job == jobs_.end() || job->second.state != State::kStarting || job->second.attempt != task.attempt;
    if (task.kind != JobTask::Kind::kPlan || !over) return task;
  }
  return std::nullopt;
}

void JobTable::finish(int64_t now_us, JobTask task) {
  now_us_ = now_us;
  if (task.kind == JobTask::Kind::kRemove) {
    --removals_;
    return give_back(task.job, task.slots);
  }
  const auto found = jobs_.find(task.number);
  if (found == jobs_.end() || found->second.state != State::kStarting ||
      found->second.attempt != task.attempt)
    return;
  if (task.kind == JobTask::Kind::kPlan) return install(task.number, &*task.plan);
  found->second.installed = task.installed.ok();
  if (!task.installed.ok()) return fail(task.number, task.installed, kNoRank);
  run(now_us, task.number);
}

void JobTable::settle(int64_t now_us) {
  if (options_.defer_tasks) return;
  while (std::optional<JobTask> task = take_task()) {
    task->run(dataplane_);
    finish(now_us, std::move(*task));
  }
}

Status JobTable::not_whole(JobNumber number, int64_t waited_ms) const {
  const Job& job = jobs_.at(number);
  const Status missing = ranks_missing(job.spec, job.ranks(false), waited_ms);
  const bool has_namesake = std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& entry) {
    const JobSpec& other = entry.second.spec;
    return other.name() == job.spec.name() && !equal_in_constant_time(other.token(), job.spec.token());
  });
  if (!has_namesake) return missing;
  return {missing.code(),
          missing.message() + " Ranks with another token have joined another job of the same name: " +
              "set the same token on all ranks",
          missing.rank()};
}

Status JobTable::still_full(JobNumber number, int64_t waited_ms) const {
  const Job& job = jobs_.at(number);
  const auto ahead = std::find(queue_.begin(), queue_.end(), number) - queue_.begin();
  return {ErrorCode::kResourceExhausted, "job '" + job.spec.name() + "' has waited " +
                                             describe_ms(waited_ms) + " for room at the aggregator, with " +
                                             std::to_string(ahead) +
                                             " jobs before it: " + check_room(job.spec).message()};
}

std::optional<int64_t> JobTable::next_deadline_us() const {
  std::optional<int64_t> next_us;
  const auto at_latest = [&](int64_t us) {
    if (us != std::numeric_limits<int64_t>::max()) next_us = std::min(next_us.value_or(us), us);
  };
  if (room_changed_ && !queue_.empty()) at_latest(0);
  for (const auto& [number, job] : jobs_) {
    if (job.state == State::kFailed) continue;
    at_latest(job.silence_deadline_us());
    if (!job.waits_for_ranks()) continue;
    at_latest(job.join_deadline_us());
    if (job.state == State::kJoining) at_latest(job.gather_deadline_us());
  }
  return next_us;
}

void JobTable::drain() {
  if (std::exchange(draining_, true)) return;
  notes_.push_back({.kind = AggregatorEvent::Kind::kDraining});
  for (const JobNumber number : std::deque(queue_))
    fail(number, {ErrorCode::kUnreachable, "this aggregator is shutting down and takes no new jobs"},
         kNoRank);
  settle(now_us_);
  for (const auto& [number, job] : jobs_)
    if (job.state != State::kFailed)
      for (const auto& member : job.members)
        if (member) events_.push_back({member->id, JobEvent::Kind::kDraining, {}, nullptr, {}});
}

void JobTable::stop(const Status& reason) {
  draining_ = true;
  std::vector<JobNumber> alive;
  for (const auto& [number, job] : jobs_)
    if (job.state != State::kFailed) alive.push_back(number);
  for (const JobNumber number : alive) fail(number, reason, kNoRank);
  settle(now_us_);
}

void JobTable::dataplane_lost(const Status& reason) {
  std::vector<JobNumber> running;
  for (const auto& [number, job] : jobs_)
    if (job.state != State::kFailed && job.installed) running.push_back(number);
  for (const JobNumber number : running) fail(number, reason, kNoRank);
  settle(now_us_);
}

// Its members may regroup here. Their job has room before those that wait, but only one, of the same name and token.
void JobTable::remember_end(const Job& job) {
  if (job.succession_id == 0) return;
  Identity successor = identity_of(job.spec);
  std::get<2>(successor) = job.succession_id;
  std::erase_if(successors_, [&](const auto& known) { return known.second <= now_us_; });
  if (successors_.size() < kMaxEndedJobs)
    successors_.emplace(std::move(successor), join_deadline_us(now_us_, 0));
}

bool JobTable::succeeds_a_job_of_here(int64_t now_us, const JobSpec& spec) const {
  if (spec.succeeds() == 0) return false;
  const auto known = successors_.find(identity_of(spec));
  if (known != successors_.end() && now_us < known->second) return true;
  // Some of its members may still be running.
  return std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& entry) {
    const Job& job = entry.second;
    return job.succession_id == spec.succeeds() && job.spec.name() == spec.name() &&
           equal_in_constant_time(job.spec.token(), spec.token());
  });
}

bool JobTable::empty() const {
  return std::all_of(jobs_.begin(), jobs_.end(),
                     [](const auto& entry) { return entry.second.state == State::kFailed; });
}

void JobTable::note(AggregatorEvent::Kind kind, const Job& job, int rank, std::string host,
                    std::string reason) {
  notes_.push_back({kind, job.spec.name(), rank, std::move(host), static_cast<int>(job.ranks(true).size()),
                    static_cast<int>(job.spec.world_size()), std::move(reason),
                    kind == AggregatorEvent::Kind::kJobRunning ? job.plan : ""});
}

}  // namespace netsum
