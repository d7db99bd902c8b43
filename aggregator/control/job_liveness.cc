// The part of JobTable that watches running jobs: detects silent members and describes progress.
#include <algorithm>
#include <utility>

#include "aggregator/control/job_table.h"
#include "src/job/ranks.h"

namespace netsum {

// A contribution counts as a heartbeat: on a network that loses packets, heartbeats may be delayed by TCP while data
// arrives.
void JobTable::hear_data(int64_t now_us, Job& job) const {
  const std::vector<int64_t> heard_us = dataplane_->heard(job.grant.job, job.grant.epoch);
  bool all_contribute = false;
  if (heard_us.empty()) {
    // Every completed round contains a contribution of every member. The time is unknown, so check again soon.
    const uint64_t rounds = dataplane_->progress(job.grant.job, job.grant.epoch).rounds;
    all_contribute = std::exchange(job.rounds_heard, rounds) != rounds;
  }
  for (size_t rank = 0; rank < job.members.size(); ++rank) {
    if (!job.members[rank]) continue;
    Member& member = *job.members[rank];
    // The contribution of a rack is no sign of life of each of its ranks.
    if (rank < heard_us.size() && member.rack.empty())
      member.heard_us = std::max(member.heard_us, heard_us[rank]);
    if (all_contribute) member.heard_us = std::max(member.heard_us, now_us - member.liveness_us * 3 / 4);
  }
}

void JobTable::fail_silent(int64_t now_us, JobNumber number) {
  Job& job = jobs_.at(number);
  hear_data(now_us, job);
  for (const int rank : job.ranks(true)) {
    Member& member = *job.members[static_cast<size_t>(rank)];
    const int64_t overdue_us = now_us - (member.heard_us + member.liveness_us);
    if (member.liveness_us == 0 || overdue_us < 0) continue;
    // If this check runs late, or no other member was heard, this process itself may have been stopped, with the
    // heartbeats still unread.
    const bool others_are_heard = std::any_of(job.members.begin(), job.members.end(), [&](const auto& other) {
      return other && now_us - other->heard_us <= member.liveness_us / 2;
    });
    if (overdue_us > member.liveness_us / 4 || !others_are_heard) {
      member.heard_us = now_us - member.liveness_us * 3 / 4;  // a quarter more; too old for others_are_heard
      continue;
    }
    return fail(number,
                {ErrorCode::kPeerLost,
                 describe_rank(rank, member.host) + " has sent no heartbeat and no data for " +
                     describe_ms((now_us - member.heard_us) / 1000) + ": it is stopped or unreachable",
                 rank},
                kNoRank);
  }
}

void JobTable::describe_progress(const Job& job, AggregatorJobStatus* status) {
  status->waiting_for = job.watch.waiting_for();
  status->waiting_ms = static_cast<uint64_t>(job.watch.waiting_us() / 1000);
  for (const int64_t waited_us : job.watch.waited_us())
    status->waited_ms.push_back(static_cast<uint64_t>(waited_us / 1000));
  status->sums = job.watch.progress().rounds;
  status->open_slots = job.watch.progress().open_slots;
  status->payload_bytes = job.grant.payload_bytes;
  status->delivery = job.delivery;
  status->plan = job.plan;
  status->slots = job.grant.data_slots + job.grant.scale_slots;
}

std::vector<AggregatorJobStatus> JobTable::jobs(int64_t now_us) {
  std::vector<AggregatorJobStatus> all;
  for (auto& [number, job] : jobs_) {
    AggregatorJobStatus status;
    status.name = job.spec.name();
    status.world_size = static_cast<int>(job.spec.world_size());
    status.verify = verify_name(job.spec);
    status.joined = job.ranks(true);
    status.state = job.state == State::kQueued    ? "queued"
                   : job.state == State::kJoining ? "joining"
                   : job.state == State::kRunning ? "running"
                                                  : "failed: " + job.failure;
    status.age_ms = static_cast<uint64_t>((now_us - job.created_us) / 1000);
    for (const auto& member : job.members) status.hosts.push_back(member ? member->host : "");
    if (job.waits_for_ranks()) {
      status.waiting_for = job.ranks(false);
      status.waiting_ms = status.age_ms;
    } else if (job.state == State::kRunning) {
      job.watch.look(now_us, dataplane_->progress(job.grant.job, job.grant.epoch));
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
