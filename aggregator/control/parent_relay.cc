#include "aggregator/control/parent_relay.h"

#include <algorithm>
#include <bit>
#include <cstdio>

#include "aggregator/control/parent_call.h"
#include "aggregator/control/request_checks.h"
#include "src/base/clock.h"
#include "src/base/text.h"
#include "src/control/channel.h"
#include "src/control/membership.h"
#include "src/control/rpc_status.h"
#include "src/job/plan_token.h"
#include "src/job/ranks.h"
#include "wire/ids.h"

namespace netsum {
namespace {

// A stalled parent must learn of a member that leaves before it sees the end of the member's call (src/control/client.cc).
constexpr std::chrono::milliseconds kLeaveTimeout{5000};
constexpr std::chrono::milliseconds kHaltPatience{1000};
constexpr std::chrono::milliseconds kCancelPatience{50};
constexpr std::chrono::seconds kTaskPatience{10};
constexpr int64_t kLongestSleepUs = 60'000'000;

std::string random_name() {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(system_random()));
  return text;
}

Status shutting_down() {
  return {ErrorCode::kUnreachable, "this aggregator is shutting down and takes no new jobs"};
}

void end_with(MemberStream& stream, const Status& failure) {
  control::Event event;
  *event.mutable_failed() = to_failed(failure);
  stream.enqueue(std::move(event));
  stream.enqueue_end(grpc::Status::OK);
}

}  // namespace

ParentRelay::ParentRelay(RelayOptions options, Dataplane* dataplane,
                         std::function<std::shared_ptr<grpc::Channel>(int)> connect)
    : options_(std::move(options)),
      dataplane_(dataplane),
      connect_(std::move(connect)),
      rack_(random_name()),
      token_key_{system_random(), system_random()},
      slots_(dataplane_->limits().slots_per_stripe) {
  const int jobs = std::min(options_.max_jobs, dataplane_->limits().max_jobs);
  for (int i = 0; i < jobs; ++i)
    free_indices_.emplace_back(static_cast<uint16_t>(i), static_cast<uint16_t>(system_random()));
}

ParentRelay::~ParentRelay() = default;

ParentRelay::Reservation::~Reservation() {
  if (slots > 0) relay->slots_.give_back(first_slot, slots);
  relay->notify_room();
  relay->free_indices_.emplace_back(index, static_cast<uint16_t>(epoch + 1));
}

bool ParentRelay::waits_for(const Session& session, const JobSpec& job) {
  return session.reservation != nullptr && !session.job && session.spec.name() == job.name() &&
         equal_in_constant_time(session.spec.token(), job.token());
}

Result<std::shared_ptr<ParentRelay::Reservation>> ParentRelay::reserve(const JobSpec& spec, bool is_next) {
  for (const auto& [id, session] : sessions_)
    if (waits_for(session, spec) && !session.reservation->granted) return session.reservation;
  if (!is_next)
    return Status(ErrorCode::kResourceExhausted,
                  "there is no room for job '" + spec.name() +
                      "' at this aggregator: other jobs that came earlier are waiting");
  if (free_indices_.empty())
    return Status(ErrorCode::kResourceExhausted,
                  "this aggregator serves at most " + std::to_string(options_.max_jobs) + " jobs at once");
  const uint32_t most = std::min(dataplane_->limits().job_slots(spec), slots_.longest_run());
  if (most <= kScaleSlots)
    return Status(ErrorCode::kResourceExhausted,
                  "there is no room for job '" + spec.name() + "': this aggregator has at most " +
                      std::to_string(most) + " free slots in a row, and more than " +
                      std::to_string(kScaleSlots) + " are needed");
  auto reservation = std::make_shared<Reservation>(this);
  std::tie(reservation->index, reservation->epoch) = free_indices_.front();
  free_indices_.pop_front();
  reservation->slots = std::min(spec.slots(), std::bit_floor(most - kScaleSlots)) + kScaleSlots;
  reservation->first_slot = *slots_.take(reservation->slots);
  return reservation;
}

Status ParentRelay::check_aggregator_token(const std::string& presented) {
  if (opens(options_.token, presented)) return check_plans(options_.token, presented);
  return {ErrorCode::kPermissionDenied,
          "wrong aggregator token, or none: set aggregator_token to the token that this aggregator was "
          "started with"};
}

Status ParentRelay::check(const MemberRequest& request) {
  if (Status status = check_version(request.job); !status.ok()) return status;
  if (Status status = check_aggregator_token(request.job.aggregator_token()); !status.ok()) return status;
  // The parent would refuse it, too, but until then this aggregator would show its text in its status.
  if (Status status = check_spec(request.job); !status.ok()) return status;
  if (Status status = check_member(request); !status.ok()) return status;
  if (Status status = check_family(request, dataplane_->endpoints()); !status.ok()) return status;
  if (request.job.min_members() != 0)
    return {ErrorCode::kUnsupported,
            "this aggregator has a parent, and the jobs of a hierarchy cannot be regrouped: close the "
            "communicator and connect anew"};
  const std::string own = "the dataplane '" + std::string(dataplane_->kind()) + "' of this aggregator";
  if (Status status = check_needs(request.job, dataplane_->limits().capabilities, own); !status.ok())
    return status;
  const auto stripes = static_cast<uint32_t>(dataplane_->limits().stripes);
  if (!request.rack.empty() && request.rack_stripes != stripes)
    return {ErrorCode::kInvalidArgument,
            "this aggregator has " + std::to_string(stripes) + " cores, the one below it that rank " +
                std::to_string(request.rank) + " joins at " + std::to_string(request.rack_stripes) +
                ": start all aggregators below the topmost one with the same --cores"};
  return {};
}

void ParentRelay::join(const control::JoinRequest& message, const Address& peer,
                       const std::shared_ptr<MemberStream>& stream) {
  const auto refuse = [&](const Status& why) {
    stream->enqueue_end(to_rpc_status(why));
    stream->pump();
  };
  const MemberRequest request = to_member_request(message, peer);
  if (Status status = check(request); !status.ok()) return refuse(status);
  control::JoinRequest above = request_above(message, request);
  const int64_t timeout_us = request.deadline_us > 0
                                 ? request.deadline_us
                                 : std::chrono::microseconds(options_.join_timeout).count();
  std::function<void()> start;
  Status refusal;
  {
    const std::lock_guard lock(mutex_);
    auto reservation = reserve(request.job, waiting_.empty());
    if (draining_) {
      refusal = shutting_down();
    } else if (sessions_.size() >= kMostSessions) {
      refusal = {ErrorCode::kResourceExhausted,
                 "this aggregator has " + std::to_string(kMostSessions) + " members and can serve no more"};
    } else if (!reservation.ok() && !may_wait(request.job) && removals_ == 0) {
      refusal = reservation.status();
    } else {
      const SessionId id = next_session_++;
      Session& session = sessions_[id];
      session.spec = request.job;
      session.rank = static_cast<int>(request.rank);
      session.host = above.origin();
      session.rack = request.rack;
      session.rack_rank = request.rack_rank;
      session.multicast = request.multicast && request.rack.empty();
      session.began_us = monotonic_us();
      session.deadline_us = session.began_us + timeout_us;
      session.stream = stream;
      session.liveness_us = request.liveness_us;
      session.parent = parent_for(request.liveness_us);
      session.call = std::make_shared<ParentCall>(shared_from_this(), id, session.parent, std::move(above));
      stream->set_on_over([self = shared_from_this(), id] { self->on_stream_over(id); });
      if (reservation.ok())
        start = admit(session, *reservation);
      else
        waiting_.push_back(id);
      changed_.notify_all();
    }
  }
  if (!refusal.ok()) return refuse(refusal);
  if (start) start();
}

void ParentRelay::on_event(SessionId id, const control::Event& event, const std::string& parent_peer) {
  std::shared_ptr<MemberStream> stream;
  std::function<void()> report;
  {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    Session& session = found->second;
    stream = session.stream;
    if (event.has_joined()) session.member = event.joined().member();
    if (event.has_ready()) {
      const Status granted = grant(id, session, event.ready(), parent_peer);
      if (!granted.ok()) report = fail(id, session, granted);
    } else {
      stream->enqueue(event);
      if (event.has_failed()) {
        session.has_failed = true;
        stream->enqueue_end(grpc::Status::OK);
      }
    }
  }
  stream->pump();
  if (report) report();
}

std::function<void()> ParentRelay::fail(SessionId id, Session& session, const Status& failure) {
  end_with(*session.stream, failure);
  session.has_failed = true;
  ++session.unanswered;
  return [self = shared_from_this(), id, claim = claim_of(session), failure] {
    self->send_failure(id, claim, failure);
  };
}

void ParentRelay::on_call_over(SessionId id, const grpc::Status& status, std::shared_ptr<ParentRelay> self,
                               std::shared_ptr<void> call) {
  std::shared_ptr<MemberStream> stream;
  {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(id);
    if (found != sessions_.end()) {
      const Session& session = found->second;
      stream = session.stream;
      const std::string parent = "the aggregator at " + options_.parent + ", the parent of this one,";
      if (status.ok()) {
        stream->enqueue_end(grpc::Status::OK);
      } else if (const auto refusal = from_rpc_status(status)) {
        stream->enqueue_end(
            to_rpc_status({refusal->code(), parent + " says: " + refusal->message(), refusal->rank()}));
      } else if (session.member == 0) {
        stream->enqueue_end(to_rpc_status({ErrorCode::kUnreachable, parent + " does not answer"}));
      } else {
        end_with(*stream, lost_with(session.parent_rank,
                                    {ErrorCode::kAggregatorLost,
                                     parent + " is lost: its process died or its host is unreachable"}));
      }
      release(session);
      sessions_.erase(found);
    }
  }
  if (stream != nullptr) stream->pump();
  call_ended(std::move(self), std::move(call));
}

void ParentRelay::on_dataplane_lost(const Status& reason) {
  struct Running {
    SessionId id;
    std::shared_ptr<MemberStream> stream;
    control::MemberRequest claim;
  };
  std::vector<Running> running;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [id, session] : sessions_) {
      if (!session.job || session.has_failed) continue;
      session.has_failed = true;
      ++session.unanswered;
      end_with(*session.stream, reason);
      running.push_back({id, session.stream, claim_of(session)});
    }
  }
  for (const Running& one : running) {
    one.stream->pump();
    send_failure(one.id, one.claim, reason);
  }
}

void ParentRelay::on_stream_over(SessionId id) {
  control::MemberRequest claim;
  Status lost;
  {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    Session& session = found->second;
    if (session.waits()) return forget_waiting(id);
    session.stream_is_over = true;
    if (session.member != 0 && !session.has_failed && session.unanswered == 0) {
      session.has_failed = true;
      ++session.unanswered;
      claim = claim_of(session);
      lost = lost_with(session.rack_rank, disconnected(session.rank, session.host, !session.rack.empty()));
    }
  }
  if (!lost.ok()) return send_failure(id, claim, lost);
  cancel_if_over(id);
}

// Cancels the call to the parent, which then treats this aggregator as lost. This waits until the parent has answered that
// the member leaves, or reports a failure; otherwise the parent could see the end of the call first.
void ParentRelay::cancel_if_over(SessionId id) {
  std::shared_ptr<ParentCall> call;
  {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;  // the parent has ended the call
    const Session& session = found->second;
    if (session.stream_is_over && session.unanswered == 0) call = session.call;
  }
  if (call != nullptr) call->cancel();
}

control::MemberRequest ParentRelay::claim_of(const Session& session) const {
  control::MemberRequest claim;
  claim.set_job(session.spec.name());
  claim.set_token(session.spec.token());
  claim.set_rank(static_cast<uint32_t>(session.rank));
  claim.set_aggregator_token(options_.parent_token);
  claim.set_member(session.member);
  return claim;
}

// The session, and the claim that the parent expects.
Result<std::pair<ParentRelay::SessionId, control::MemberRequest>> ParentRelay::find(
    const MemberClaim& claim) {
  if (Status status = check_aggregator_token(claim.aggregator_token); !status.ok()) return status;
  const std::lock_guard lock(mutex_);
  for (const auto& [id, session] : sessions_) {
    if (session.member == 0 || session.member != claim.member || session.spec.name() != claim.job ||
        static_cast<uint32_t>(session.rank) != claim.rank)
      continue;
    if (!equal_in_constant_time(session.spec.token(), claim.token))
      return Status(ErrorCode::kPermissionDenied, "wrong token for job '" + session.spec.name() + "'");
    return std::pair(id, claim_of(session));
  }
  return Status(ErrorCode::kInvalidArgument, "rank " + std::to_string(claim.rank) +
                                                 " is not a member of job '" +
                                                 printable(claim.job, kMaxJobNameBytes) + "'");
}

// The parent answers by ending the member's call. If the parent is unreachable, the end of the member's stream has the
// same effect.
Result<control::LeaveReply> ParentRelay::leave(const MemberClaim& claim) {
  const auto up = find(claim);
  if (!up.ok()) return up.status();
  if (!expect_answer(up->first, false)) return control::LeaveReply();
  auto call = make_unary<control::LeaveReply>(up->second, kLeaveTimeout);
  call_began();
  parent_of(up->first)->async()->Leave(
      &call->context, &call->request, &call->reply,
      [self = shared_from_this(), call, id = up->first](const grpc::Status&) mutable {
        ParentRelay& relay = *self;
        relay.on_answer(id, std::move(self), std::move(call));
      });
  return control::LeaveReply();
}

Status ParentRelay::report(const MemberClaim& claim, const Status& failure) {
  const auto up = find(claim);
  if (!up.ok()) return up.status();
  if (expect_answer(up->first, true)) send_failure(up->first, up->second, failure);
  return {};
}

// The caller has incremented the session's `unanswered`.
void ParentRelay::send_failure(SessionId id, const control::MemberRequest& claim, const Status& failure) {
  control::FailRequest request;
  *request.mutable_member() = claim;
  *request.mutable_failure() = to_failed(failure);
  auto call = make_unary(std::move(request));
  call_began();
  parent_of(id)->async()->Fail(&call->context, &call->request, &call->reply,
                               [self = shared_from_this(), call, id](const grpc::Status&) mutable {
                                 ParentRelay& relay = *self;
                                 relay.on_answer(id, std::move(self), std::move(call));
                               });
}

bool ParentRelay::expect_answer(SessionId id, bool fails) {
  const std::lock_guard lock(mutex_);
  const auto found = sessions_.find(id);
  if (found == sessions_.end() || found->second.has_failed) return false;
  found->second.has_failed = fails;
  ++found->second.unanswered;
  return true;
}

void ParentRelay::on_answer(SessionId id, std::shared_ptr<ParentRelay> self, std::shared_ptr<void> call) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(id);
    if (found != sessions_.end()) --found->second.unanswered;
  }
  cancel_if_over(id);
  call_ended(std::move(self), std::move(call));
}

void ParentRelay::call_began() {
  const std::lock_guard lock(mutex_);
  ++calls_;
}

void ParentRelay::call_ended(std::shared_ptr<ParentRelay> self, std::shared_ptr<void> call) {
  const std::lock_guard lock(mutex_);
  --calls_;
  ended_.push_back({std::move(self), std::move(call)});
  changed_.notify_all();
}

void ParentRelay::drain() {
  std::vector<std::shared_ptr<MemberStream>> streams;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(draining_, true)) return;
    for (const SessionId id : std::deque(waiting_)) {
      const std::shared_ptr<MemberStream> stream = sessions_.at(id).stream;
      stream->enqueue_end(to_rpc_status(shutting_down()));
      streams.push_back(stream);
      forget_waiting(id);
    }
    for (const auto& [id, session] : sessions_) {
      control::Event event;
      event.mutable_draining();
      session.stream->enqueue(std::move(event));
      streams.push_back(session.stream);
    }
  }
  for (const auto& stream : streams) stream->pump();
}

void ParentRelay::stop(const Status& reason) {
  std::vector<std::shared_ptr<MemberStream>> streams;
  std::vector<std::pair<SessionId, control::MemberRequest>> claims;
  {
    const std::lock_guard lock(mutex_);
    draining_ = true;
    for (auto& [id, session] : sessions_) {
      end_with(*session.stream, reason);
      streams.push_back(session.stream);
      if (session.member == 0) continue;
      if (std::exchange(session.has_failed, true)) continue;
      claims.emplace_back(id, claim_of(session));
      ++session.unanswered;
    }
  }
  for (const auto& [id, claim] : claims) send_failure(id, claim, reason);
  for (const auto& stream : streams) stream->pump();
}

void ParentRelay::watch_deadlines() {
  std::unique_lock lock(mutex_);
  int64_t woken_us = monotonic_us();  // when this thread should have been, at the latest
  while (!halted_) {
    const int64_t now_us = monotonic_us();
    int64_t next_us = now_us + kLongestSleepUs;
    if (!ended_.empty()) {
      std::vector<EndedCall> ended = std::exchange(ended_, {});
      lock.unlock();
      ended.clear();
      lock.lock();
      continue;
    }
    if (serve_waiting(lock, now_us)) continue;
    next_us = std::min(next_us, check_parent(lock, now_us, std::max<int64_t>(0, now_us - woken_us)));
    std::vector<std::shared_ptr<ParentCall>> late;
    for (const auto& [id, session] : sessions_) {
      if (session.member != 0) continue;
      if (session.deadline_us <= now_us) late.push_back(session.call);
      next_us = std::min(next_us, session.deadline_us);
    }
    if (late.empty()) {
      changed_.wait_for(lock, std::chrono::microseconds(next_us - now_us));
      woken_us = next_us;
      continue;
    }
    lock.unlock();
    for (const auto& call : late) call->cancel();
    lock.lock();
    changed_.wait_for(lock, kCancelPatience);  // the calls end on gRPC threads
  }
}

void ParentRelay::halt() {
  std::unique_lock lock(mutex_);
  halted_ = true;
  changed_.notify_all();
  const auto all_over = [&] { return calls_ == 0; };
  if (!changed_.wait_for(lock, kHaltPatience, all_over)) {
    std::vector<std::shared_ptr<ParentCall>> calls;
    for (const auto& [id, session] : sessions_) calls.push_back(session.call);
    lock.unlock();
    for (const auto& call : calls) call->cancel();
    lock.lock();
    changed_.wait_for(lock, kHaltPatience, all_over);
  }
  const std::vector<EndedCall> ended = std::exchange(ended_, {});
  no_more_tasks_ = true;
  tasks_end_ = std::chrono::steady_clock::now() + kTaskPatience;
  changed_.notify_all();
  lock.unlock();  // a call that ends later keeps the relay for ever
}

bool ParentRelay::wait_until_empty(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  const bool empty = changed_.wait_until(lock, deadline, [&] { return sessions_.empty(); });
  // As LocalJobs does.
  const auto patience = std::min(deadline, std::chrono::steady_clock::now() + kTaskPatience);
  changed_.wait_until(lock, patience, [&] { return removals_ == 0; });
  return empty;
}

std::vector<AggregatorJobStatus> ParentRelay::jobs(const JobLooks&) {
  const std::lock_guard lock(mutex_);
  // By name, token and state.
  std::map<std::tuple<std::string, std::string, std::string>, AggregatorJobStatus> jobs;
  for (const auto& [number, session] : sessions_) {
    const Grant* grant = session.job ? &grants_.at(*session.job) : nullptr;
    const std::string state = grant != nullptr && grant->installed ? "running"
                              : session.waits()                    ? "queued"
                                                                   : "joining";
    const std::string id = name_of_token(token_key_, session.spec.token());
    AggregatorJobStatus& job = jobs[{session.spec.name(), id, state}];
    job.name = session.spec.name();
    job.id = id;
    job.world_size = static_cast<int>(session.spec.world_size());
    job.joined.push_back(session.rank);
    job.state = state;
    if (grant != nullptr) job.plan = grant->plan;
    job.age_ms = std::max(job.age_ms, static_cast<uint64_t>((monotonic_us() - session.began_us) / 1000));
  }
  std::vector<AggregatorJobStatus> all;
  for (auto& [key, job] : jobs) {
    std::sort(job.joined.begin(), job.joined.end());
    all.push_back(std::move(job));
  }
  return all;
}

bool ParentRelay::draining() {
  const std::lock_guard lock(mutex_);
  return draining_;
}

}  // namespace netsum
