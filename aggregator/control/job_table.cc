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

Result<JobTable::JobNumber> JobTable::find_or_create(int64_t now_us, const JobSpec& spec,
                                                     int64_t patience_us) {
  const Identity identity = identity_of(spec);
  if (const auto named = by_name_.find(identity); named != by_name_.end()) {
    const Job& job = jobs_.at(named->second);
    // A job that has started without all ranks has another world size; admit() refuses the late rank.
    const bool renumbered = job.state == State::kRunning && job.may_start_without_all();
    if (Status status = check_same(job.spec, spec); !renumbered && !status.ok()) return status;
    return named->second;
  }
  const Status entry = check_entry(now_us, spec);
  const bool full = entry.code() == ErrorCode::kResourceExhausted;
  if (full && when_full_of(spec) == WhenFull::kHosts) {
    std::erase_if(turned_away_, [&](const auto& away) { return away.second <= now_us; });
    // If too many are remembered already, a later rank of this job may be admitted without the first one; both then end
    // at their deadlines.
    if (turned_away_.size() < kMaxTurnedAway)
      turned_away_.emplace(identity, join_deadline_us(now_us, patience_us));
  }
  const bool waits = full && when_full_of(spec) == WhenFull::kWait && fits_when_empty(spec) &&
                     queue_.size() < static_cast<size_t>(options_.max_jobs);
  if (!entry.ok() && !waits) return entry;
  Job job;
  job.spec = spec;
  job.created_us = now_us;
  job.deadline_us = join_deadline_us(now_us, 0);
  job.members.resize(spec.world_size());
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
  netsum_sip hash = netsum_sip_begin(&identity_key_);
  const auto word_at = [&](size_t at, size_t bytes) {
    uint64_t word = 0;
    std::memcpy(&word, spec.token().data() + at, bytes);
    return word;
  };
  size_t at = 0;
  for (; at + 8 <= spec.token().size(); at += 8) netsum_sip_word(&hash, word_at(at, 8));
  const uint64_t rest = word_at(at, spec.token().size() - at);
  return {spec.name(), netsum_sip_end(&hash, rest, static_cast<uint32_t>(spec.token().size())),
          spec.succeeds()};
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
void JobTable::promote(int64_t now_us) {
  room_changed_ = false;
  while (!queue_.empty() && check_room(jobs_.at(queue_.front()).spec).ok()) {
    const JobNumber number = queue_.front();
    Job& job = jobs_.at(number);
    queue_.pop_front();
    job.state = State::kJoining;
    reserve(job);
    if (job.ranks(false).empty()) make_ready(now_us, number);
  }
}

Result<MemberId> JobTable::join(int64_t now_us, const MemberRequest& request) {
  Result<MemberId> id = admit(now_us, request);
  if (!id.ok()) {
    notes_.push_back({AggregatorEvent::Kind::kJoinRefused, printable(request.job.name(), kMaxJobNameBytes),
                      static_cast<int>(std::min<uint32_t>(request.rank, std::numeric_limits<int>::max())),
                      host_of(request.peer), 0, 0, id.status().to_string()});
  }
  return id;
}

Result<MemberId> JobTable::admit(int64_t now_us, const MemberRequest& request) {
  if (Status status = check_job(request.job); !status.ok()) return status;
  if (Status status = check_member(request); !status.ok()) return status;
  if (Status status = check_shard(request); !status.ok()) return status;
  if (Status status = check_sharing(request); !status.ok()) return status;
  if (Status status = check_rack(request); !status.ok()) return status;
  if (Status status = check_capabilities(request); !status.ok()) return status;
  const Result<JobNumber> number = find_or_create(now_us, request.job, request.deadline_us);
  if (!number.ok()) return number.status();
  Job& job = jobs_.at(*number);
  const int rank = static_cast<int>(request.rank);
  if (job.state == State::kRunning && job.may_start_without_all())
    return RegroupRule::came_too_late(rank, job.former_ranks);
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
  member.dataplane = request.dataplane;
  member.sharing = request.sharing;
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
  if (job.ranks(false).empty() && job.state == State::kJoining) make_ready(now_us, *number);
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
  const std::string host = job.members[claim.rank]->host;
  job.members[claim.rank].reset();
  note(AggregatorEvent::Kind::kMemberLeft, job, static_cast<int>(claim.rank), host);
  members_.erase(claim.member);
  if (job.state != State::kFailed) events_.push_back({claim.member, JobEvent::Kind::kEnd, {}, nullptr, {}});
  if (job.state != State::kFailed) notify_missing(job);
  if (job.state == State::kRunning) unlink_name(*number);
  forget_if_over(*number);
  return {};
}

Status JobTable::report(const MemberClaim& claim, const Status& failure) {
  const Result<JobNumber> number = find_member(claim);
  if (!number.ok()) return number.status();
  Job& job = jobs_.at(*number);
  if (job.state == State::kFailed) return {};
  const int rank = static_cast<int>(claim.rank);
  const bool names_a_rank = failure.rank() >= 0 && static_cast<size_t>(failure.rank()) < job.members.size();
  const Status told(
      failure.code(),
      describe_rank(rank, job.members[claim.rank]->host) + " reported: " + printable(failure.message()),
      names_a_rank ? failure.rank() : kNoRank);
  fail(*number, told, rank);
  return {};
}

Status JobTable::alive(int64_t now_us, const MemberClaim& claim) {
  const Result<JobNumber> number = find_member(claim);
  if (!number.ok()) return number.status();
  jobs_.at(*number).members[claim.rank]->heard_us = now_us;
  return {};
}

void JobTable::stream_ended(MemberId id) {
  const auto found = members_.find(id);
  if (found == members_.end()) return;
  const auto [number, rank] = found->second;
  members_.erase(found);
  Job& job = jobs_.at(number);
  const std::string host = job.members[static_cast<size_t>(rank)]->host;
  const std::string who = describe_rank(rank, host);
  job.members[static_cast<size_t>(rank)].reset();
  // The members of a failed job have been told to end their streams.
  if (job.state != State::kFailed) note(AggregatorEvent::Kind::kMemberLost, job, rank, host);
  if (job.state == State::kFailed) return forget_if_over(number);
  if (job.waits_for_ranks() && job.may_start_without_all()) {
    notify_missing(job);
    return forget_if_over(number);
  }
  fail(number,
       {ErrorCode::kPeerLost,
        who + " disconnected without leaving: its process died or hangs, or its host is unreachable", rank},
       kNoRank);
}

void JobTable::fail(JobNumber number, const Status& failure, int except_rank) {
  Job& job = jobs_.at(number);
  unlink_name(number);
  release(number);
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
  forget_if_over(number);
}

void JobTable::release(JobNumber number) {
  Job& job = jobs_.at(number);
  if (job.state == State::kQueued) {
    std::erase(queue_, number);
    return;
  }
  room_changed_ = true;
  if (job.state == State::kRunning) dataplane_->remove(job.grant.job, job.grant.epoch);
  if (job.reserved_slots > 0) slots_.give_back(*job.grant.first_slot, job.reserved_slots);
  free_indices_.push_back({job.grant.job, static_cast<uint16_t>(job.grant.epoch + 1)});
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
  }
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

void JobTable::on_tick(int64_t now_us) {
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
    make_ready(now_us, number);
  }
  for (const JobNumber number : silent) fail_silent(now_us, number);
  for (const JobNumber number : late) {
    const Job& job = jobs_.at(number);
    const int64_t waited_ms = (now_us - job.created_us) / 1000;
    fail(number, job.state == State::kQueued ? still_full(number, waited_ms) : not_whole(number, waited_ms),
         kNoRank);
  }
  promote(now_us);
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
}

void JobTable::dataplane_lost(const Status& reason) {
  std::vector<JobNumber> running;
  for (const auto& [number, job] : jobs_)
    if (job.state == State::kRunning) running.push_back(number);
  for (const JobNumber number : running) fail(number, reason, kNoRank);
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
