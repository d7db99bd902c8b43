#include "tools/netsum/aggregator_log.h"

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
    std::string ranks;
    for (const int rank : job.waiting_for) {
      if (!ranks.empty()) ranks += ',';
      ranks += std::to_string(rank);
    }
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
