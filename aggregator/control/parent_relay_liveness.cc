// The part of ParentRelay that watches the parent: by the heartbeats of the ranks, which it passes on, and by results.
#include <algorithm>
#include <climits>

#include "aggregator/control/parent_call.h"
#include "aggregator/control/parent_relay.h"
#include "src/base/clock.h"
#include "src/control/channel.h"
#include "src/job/ranks.h"

namespace netsum {
control::Aggregator::Stub* ParentRelay::parent_for(int64_t liveness_us) {
  int64_t silence_ms = kKeepaliveTimeoutMs;
  while (silence_ms * 1000 < liveness_us) silence_ms *= 2;
  if (liveness_us == 0) silence_ms = INT_MAX;
  const int key = static_cast<int>(std::min<int64_t>(silence_ms, INT_MAX));
  std::unique_ptr<control::Aggregator::Stub>& stub = parents_[key];
  if (stub == nullptr) stub = control::Aggregator::NewStub(connect_(key));
  return stub.get();
}

control::Aggregator::Stub* ParentRelay::parent_of(SessionId id) {
  const std::lock_guard lock(mutex_);
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? parent_for(1) : found->second.parent;
}

// The parent detects silent members. Its answer to this heartbeat is the answer to a later one.
Result<control::AliveReply> ParentRelay::alive(const MemberClaim& claim, const control::Beat* beat) {
  const auto up = find(claim);
  if (!up.ok()) return up.status();
  const SessionId id = up->first;
  auto call = make_unary<control::AliveReply>(up->second);
  if (beat != nullptr) *call->request.mutable_beat() = *beat;
  control::AliveReply reply;
  {
    const std::lock_guard lock(mutex_);
    ++calls_;
    const auto found = sessions_.find(id);
    if (found != sessions_.end()) {
      Session& session = found->second;
      reply = session.reply;
      if (session.asked_us == 0 && session.liveness_us > 0 && session.job) {
        session.asked_us = monotonic_us();
        changed_.notify_all();
      }
    }
  }
  parent_of(id)->async()->Alive(&call->context, &call->request, &call->reply,
                                [self = shared_from_this(), call, id](const grpc::Status& status) mutable {
                                  ParentRelay& relay = *self;
                                  relay.heard_from_parent(id, status, call->reply);
                                  relay.call_ended(std::move(self), std::move(call));
                                });
  return reply;
}

// Any code but that of the deadline is an answer, or the end of the connection, which the call of the session reports.
void ParentRelay::heard_from_parent(SessionId id, const grpc::Status& status,
                                    const control::AliveReply& reply) {
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) return;
  const std::lock_guard lock(mutex_);
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  found->second.asked_us = 0;
  if (status.ok()) found->second.reply = reply;
}

int64_t ParentRelay::check_parent(std::unique_lock<std::mutex>& lock, int64_t now_us, int64_t woken_late_us) {
  // Together with the pause before a heartbeat, this detects silence within the timeout.
  const auto due_us = [](const Session& session) { return session.asked_us + session.liveness_us * 3 / 4; };
  int64_t next_us = now_us + 60'000'000;
  std::vector<std::pair<SessionId, DataplaneJob>> suspicious;
  for (auto& [id, session] : sessions_) {
    if (session.asked_us == 0 || session.has_failed || !session.job) continue;
    if (woken_late_us > session.liveness_us / 4) session.asked_us = now_us;
    if (due_us(session) <= now_us)
      suspicious.emplace_back(id, grants_.at(*session.job).job);
    else
      next_us = std::min(next_us, due_us(session));
  }
  if (suspicious.empty()) return next_us;
  // Calls of the dataplane may block.
  lock.unlock();
  std::vector<uint64_t> rounds;
  for (const auto& [id, job] : suspicious) rounds.push_back(dataplane_->progress(job.job, job.epoch).rounds);
  lock.lock();
  std::vector<std::shared_ptr<MemberStream>> streams;
  std::vector<std::function<void()>> reports;
  for (size_t i = 0; i < suspicious.size(); ++i) {
    const SessionId id = suspicious[i].first;
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) continue;
    Session& session = found->second;
    if (session.asked_us == 0 || session.has_failed || due_us(session) > now_us) continue;
    if (std::exchange(session.rounds, rounds[i]) != rounds[i]) {
      session.asked_us = now_us - session.liveness_us / 2;  // results came: a quarter of the timeout more
      next_us = std::min(next_us, due_us(session));
      continue;
    }
    streams.push_back(session.stream);
    reports.push_back(
        fail(id, session,
             lost_with(
                 session.parent_rank,
                 {ErrorCode::kAggregatorLost,
                  "the aggregator at " + options_.parent + ", the parent of this one, has not answered for " +
                      describe_ms(session.liveness_us / 1000) + ": it is stopped or unreachable"})));
  }
  lock.unlock();
  for (const auto& stream : streams) stream->pump();
  for (const auto& report : reports) report();
  lock.lock();
  return next_us;
}

}  // namespace netsum
