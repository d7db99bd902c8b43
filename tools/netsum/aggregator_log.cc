#include "tools/netsum/aggregator_log.h"

#include <algorithm>
#include <utility>

namespace netsum::tool {
namespace {

constexpr uint64_t kLongWaitMs = 1000;

struct Words {
  const char* message;
  const char* state;  // of the job from now on; null: as it was
};

Words words(AggregatorEvent::Kind kind) {
  switch (kind) {
    case AggregatorEvent::Kind::kJobBegan:
      return {"job began", "joining"};
    case AggregatorEvent::Kind::kMemberJoined:
      return {"member joined", nullptr};
    case AggregatorEvent::Kind::kJobRunning:
      return {"job running", "running"};
    case AggregatorEvent::Kind::kMemberLeft:
      return {"member left", nullptr};
    case AggregatorEvent::Kind::kMemberLost:
      return {"member lost", nullptr};
    case AggregatorEvent::Kind::kJobFailed:
      return {"job failed", "failed"};
    case AggregatorEvent::Kind::kJobEnded:
      return {"job ended", nullptr};
    case AggregatorEvent::Kind::kJoinRefused:
      return {"join refused", nullptr};
    case AggregatorEvent::Kind::kDraining:
      return {"draining", nullptr};
    case AggregatorEvent::Kind::kEventsLeftOut:
      return {"events left out", nullptr};
  }
  return {"unknown event", nullptr};
}

std::string list(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ",") + std::to_string(rank);
  return text;
}

}  // namespace

void log_event(const AggregatorEvent& event, Log* log) {
  const auto [message, state] = words(event.kind);
  Json fields = Json::object();
  if (!event.job.empty()) fields["job"] = event.job;
  if (state != nullptr) fields["state"] = state;
  if (event.rank != kNoRank) fields["rank"] = event.rank;
  if (!event.host.empty()) fields["host"] = event.host;
  if (event.world_size > 0) {
    fields["joined"] = event.joined;
    fields["world_size"] = event.world_size;
  }
  if (!event.reason.empty()) fields["reason"] = event.reason;
  if (!event.plan.empty()) fields["plan"] = event.plan;
  const bool trouble = event.kind == AggregatorEvent::Kind::kMemberLost ||
                       event.kind == AggregatorEvent::Kind::kJobFailed ||
                       event.kind == AggregatorEvent::Kind::kJoinRefused ||
                       event.kind == AggregatorEvent::Kind::kEventsLeftOut;
  if (trouble) {
    log->warn(message, fields);
  } else {
    log->info(message, fields);
  }
}

void WaitLog::look(const AggregatorStatus& status) {
  std::map<Job, std::string> now;
  for (const AggregatorJobStatus& job : status.jobs) {
    if (job.state != "running" || job.waiting_for.empty() || job.waiting_ms < kLongWaitMs) continue;
    const std::string ranks = list(job.waiting_for);
    std::string& known = waiting_[{job.name, job.id}];
    if (known != ranks)
      log_->warn("job waits", {{"job", job.name}, {"ranks", ranks}, {"ms", job.waiting_ms}});
    now[{job.name, job.id}] = ranks;
  }
  for (const AggregatorJobStatus& job : status.jobs) {
    const bool waited = waiting_.contains({job.name, job.id}) && !now.contains({job.name, job.id});
    if (waited && job.state == "running") log_->info("job goes on", {{"job", job.name}});
  }
  waiting_ = std::move(now);
}

void FaultLog::say(const Trouble& trouble, Known* known, Json fields, uint64_t now_ms) {
  constexpr uint64_t kFirstPauseMs = 60'000, kLongestPauseMs = 3'600'000;
  const auto& [job, id, kind, ranks] = trouble;
  if (!std::exchange(known->there, true)) ++known->times;
  known->quiet_until_ms =
      std::min(known->quiet_until_ms, now_ms + known->pause_ms);  // the clock may step back
  if (known->said || now_ms < known->quiet_until_ms) return;
  fields["job"] = job;
  fields["ranks"] = ranks;
  if (known->times > 1) fields["times"] = known->times;
  log_->warn(kind, fields);
  known->said = true;
  known->times = 0;
  known->pause_ms = std::clamp(2 * known->pause_ms, kFirstPauseMs, kLongestPauseMs);
  known->quiet_until_ms = now_ms + known->pause_ms;
}

void FaultLog::look(const AggregatorStatus& status) {
  constexpr uint64_t kCalmPauses = 4;  // without it: then pauses are short again
  const uint64_t now_ms = status.unix_time_ms;
  std::map<Trouble, Json> now;
  for (const AggregatorJobStatus& job : status.jobs) {
    if (job.state != "running") continue;
    for (const AggregatorJobStatus::Fault& fault : job.faults)
      now[{job.name, job.id, fault.kind == "slow" ? "rank is late" : "link loses packets",
           list(fault.ranks)}] = {{"kind", fault.kind}, {"value", fault.value}, {"others", fault.others}};
    for (const int rank : job.away)
      now[{job.name, job.id, "share taken from a bad link or slow host", std::to_string(rank)}] =
          Json::object();
  }
  for (const auto& [trouble, fields] : now) say(trouble, &known_[trouble], fields, now_ms);
  for (auto it = known_.begin(); it != known_.end();) {
    Known& known = it->second;
    const auto& [job, id, kind, ranks] = it->first;
    if (!now.contains(it->first)) {
      known.there = false;
      if (std::exchange(known.said, false))
        log_->info("no longer: " + kind, {{"job", job}, {"ranks", ranks}});
      if (now_ms >= known.quiet_until_ms + kCalmPauses * known.pause_ms) {
        it = known_.erase(it);
        continue;
      }
    }
    ++it;
  }
}

void LengthLog::look(const AggregatorStatus& status) {
  if (status.dataplane != "p4") return;
  for (const AggregatorCounter& counter : status.counters) {
    if (counter.name != "drop_bad_length" || counter.value < next_) continue;
    log_->warn(
        "the switch drops packets of a wrong length: on hosts behind veth links, segmentation offload must "
        "be off (ethtool -K "
        "DEVICE tx-udp-segmentation off), or BMv2 gets several packets as one",
        {{"drop_bad_length", counter.value}});
    next_ = 10 * counter.value;
  }
}

}  // namespace netsum::tool
