// The part of JobTable that watches running jobs: detects silent members and describes progress.
#include <algorithm>
#include <utility>

#include "aggregator/control/job_table.h"
#include "aggregator/control/request_checks.h"
#include "src/job/ranks.h"

namespace netsum {
namespace {

// In a row: as many times a quarter of the liveness timeout.
constexpr int kMostForgiven = 32;

}  // namespace

// A contribution counts as a heartbeat: on a network that loses packets, heartbeats may be delayed by TCP while data
// arrives.
void JobTable::hear_data(int64_t now_us, Job& job, const JobLook& look) {
  bool all_contribute = false;
  if (look.heard_us.empty()) {
    // Every completed round contains a contribution of every member. The time is unknown, so check again soon.
    const uint64_t rounds = look.progress.rounds;
    all_contribute = std::exchange(job.rounds_heard, rounds) != rounds;
  }
  for (size_t rank = 0; rank < job.members.size(); ++rank) {
    if (!job.members[rank]) continue;
    Member& member = *job.members[rank];
    const int64_t before_us = member.heard_us;
    // The contribution of a rack is no sign of life of each of its ranks.
    if (rank < look.heard_us.size() && member.rack.empty())
      member.heard_us = std::max(member.heard_us, look.heard_us[rank]);
    if (all_contribute) member.heard_us = std::max(member.heard_us, now_us - member.liveness_us * 3 / 4);
    if (member.heard_us != before_us) member.forgiven = 0;
  }
}

// Whether the aggregator below by which the rank joined is silent, rather than the rank: then several of its ranks are, and
// all that it has.
bool JobTable::whole_rack_is_silent(int64_t now_us, const Job& job, size_t rank) {
  const Member& member = *job.members[rank];
  if (member.rack.empty()) return false;
  int ranks = 0;
  for (const auto& other : job.members) {
    if (!other || other->rack != member.rack) continue;
    if (now_us - other->heard_us <= member.liveness_us / 2) return false;
    ++ranks;
  }
  return ranks > 1;
}

Status JobTable::silence_of(int64_t now_us, Job& job, size_t rank) const {
  Member& member = *job.members[rank];
  const int64_t overdue_us = now_us - (member.heard_us + member.liveness_us);
  if (member.liveness_us == 0 || overdue_us < 0) return {};
  // If this check runs late, or no other member was heard, this process itself may have been stopped, with the
  // heartbeats still unread. A process that runs has read them long before the last time that this is assumed.
  bool has_others = false, others_are_heard = false;
  for (const auto& other : job.members) {
    if (!other || &*other == &member) continue;
    has_others = true;
    others_are_heard |= now_us - other->heard_us <= member.liveness_us / 2;
  }
  if (overdue_us > member.liveness_us / 4 || (has_others && !others_are_heard)) {
    if (member.forgiven < kMostForgiven) {
      ++member.forgiven;
      member.heard_us = now_us - member.liveness_us * 3 / 4;  // a quarter more; too old for others_are_heard
      return {};
    }
  }
  const std::string silence =
      "has sent no heartbeat and no data for " +
      describe_ms((now_us - member.heard_us + member.forgiven * member.liveness_us / 4) / 1000);
  const std::string who = describe_rank(static_cast<int>(rank), member.host);
  if (whole_rack_is_silent(now_us, job, rank))
    return lost_with(member.rack_rank,
                     {ErrorCode::kAggregatorLost, "the aggregator by which " + who + " joined " + silence +
                                                      " of any of its ranks: it is stopped or unreachable"});
  return {ErrorCode::kPeerLost, who + " " + silence + ": it is stopped or unreachable",
          static_cast<int>(rank)};
}

void JobTable::fail_silent(int64_t now_us, JobNumber number, const JobLook& look) {
  Job& job = jobs_.at(number);
  hear_data(now_us, job, look);
  for (const int rank : job.ranks(true)) {
    if (const Status silence = silence_of(now_us, job, static_cast<size_t>(rank)); !silence.ok())
      return fail(number, silence, kNoRank);
  }
}

// A rack's sockets are those of an aggregator, of which no rank tells. Without racks, members have the numbers of their ranks.
void JobTable::Job::add_sockets(std::vector<faults::MemberTotals>* totals) const {
  const bool has_racks = std::any_of(members.begin(), members.end(),
                                     [](const auto& member) { return member && !member->rack.empty(); });
  if (has_racks || totals->size() != members.size()) return;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    if (!members[rank]) continue;
    (*totals)[rank].receive_calls = members[rank]->sockets.receive_calls;
    (*totals)[rank].packets_received = members[rank]->sockets.packets_received;
  }
}

void JobTable::Job::take_paths(const control::Beat& beat, Member* member) const {
  member->shard.assign(beat.paths().empty() ? 0 : members.size(), {});
  for (const control::Path& path : beat.paths()) {
    if (path.ranks_size() != 1 || path.ranks(0) >= members.size()) continue;
    member->shard[path.ranks(0)] = {.kept = {path.kept_to(), path.kept_from()},
                                    .lost = {path.lost_to(), path.lost_from()}};
  }
}

std::vector<AggregatorJobStatus::Path> JobTable::Job::paths_of_shards() const {
  std::vector<AggregatorJobStatus::Path> paths;
  for (size_t owner = 0; owner < members.size(); ++owner) {
    if (!members[owner] || members[owner]->shard.empty()) continue;
    for (size_t rank = 0; rank < members.size(); ++rank) {
      if (rank == owner) continue;  // no link is between them
      paths.push_back(path_of({static_cast<int>(rank)}, members[owner]->shard[rank]));
      paths.back().shard = static_cast<int>(owner);
    }
  }
  return paths;
}

void JobTable::describe_progress(const Job& job, AggregatorJobStatus* status) {
  status->waiting_for = job.watch.waiting_for();
  status->waiting_ms = static_cast<uint64_t>(job.watch.waiting_us() / 1000);
  for (const int64_t waited_us : job.watch.waited_us())
    status->waited_ms.push_back(static_cast<uint64_t>(waited_us / 1000));
  status->faults = job.watch.faults();
  status->paths = job.watch.paths();
  for (AggregatorJobStatus::Path& path : job.paths_of_shards()) status->paths.push_back(std::move(path));
  status->hangs = job.hangs;
  status->away = job.away;
  status->sums = job.watch.progress().rounds;
  status->open_slots = job.watch.progress().open_slots;
  status->payload_bytes = job.grant.payload_bytes;
  status->delivery = job.delivery;
  status->plan = job.plan;
  status->slots = job.grant.data_slots + job.grant.scale_slots;
}

std::vector<AggregatorJobStatus> JobTable::jobs(int64_t now_us, const JobLooks& looks) {
  std::vector<AggregatorJobStatus> all;
  for (auto& [number, job] : jobs_) {
    AggregatorJobStatus status;
    status.name = job.spec.name();
    status.world_size = static_cast<int>(job.spec.world_size());
    status.verify = verify_name(job.spec);
    status.id = name_of_token(identity_key_, job.spec.token());
    status.joined = job.ranks(true);
    status.state = job.state == State::kQueued    ? "queued"
                   : job.state == State::kRunning ? "running"
                   : job.state == State::kFailed  ? "failed: " + job.failure
                                                  : "joining";
    status.age_ms = static_cast<uint64_t>((now_us - job.created_us) / 1000);
    for (const auto& member : job.members) status.hosts.push_back(member ? member->host : "");
    if (job.waits_for_ranks()) {
      status.waiting_for = job.ranks(false);
      status.waiting_ms = status.age_ms;
    } else if (job.state == State::kRunning) {
      const auto look = looks.find(job.key());
      if (look != looks.end()) {
        JobProgress progress = look->second.progress;
        job.add_sockets(&progress.members);
        job.watch.look(now_us, progress);
        job.watch.look_at_shards(job.paths_of_shards());
      }
      job.find_hangs(now_us);
      describe_progress(job, &status);
    }
    all.push_back(std::move(status));
  }
  return all;
}

std::vector<AggregatorCounter> JobTable::failures() const {
  std::vector<AggregatorCounter> counters;
  // Also codes that have not occurred, so that monitoring sees their first increase.
  for (int32_t number = 1; error_name(static_cast<ErrorCode>(number)) != "unknown"; ++number) {
    const auto found = failures_.find(static_cast<ErrorCode>(number));
    counters.push_back({"jobs_failed_" + std::string(error_name(static_cast<ErrorCode>(number))),
                        found == failures_.end() ? 0 : found->second});
  }
  return counters;
}

}  // namespace netsum
