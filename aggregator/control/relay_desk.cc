#include "aggregator/control/relay_desk.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <limits>

#include "aggregator/control/parent_call.h"
#include "aggregator/control/request_checks.h"
#include "netsum/version.h"
#include "src/base/clock.h"
#include "src/base/text.h"
#include "src/control/channel.h"
#include "src/control/membership.h"
#include "src/control/rpc_status.h"
#include "wire/ids.h"
#include "wire/mtu.h"

namespace netsum {
namespace {

constexpr std::chrono::milliseconds kCallTimeout{1000};  // of Leave and Fail
constexpr std::chrono::milliseconds kHaltPatience{1000};
constexpr std::chrono::milliseconds kCancelPatience{50};

std::string random_name() {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(system_random()));
  return text;
}

// A Leave or Fail under way, with all that gRPC needs until it is over.
template <typename Request>
struct Unary {
  grpc::ClientContext context;
  Request request;
  control::Empty reply;
};

template <typename Request>
std::shared_ptr<Unary<Request>> make_unary(Request request) {
  auto call = std::make_shared<Unary<Request>>();
  call->context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
  call->request = std::move(request);
  return call;
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

RelayDesk::RelayDesk(RelayOptions options, Dataplane* dataplane, std::shared_ptr<grpc::Channel> parent)
    : options_(std::move(options)),
      dataplane_(dataplane),
      parent_(std::move(parent)),
      stub_(control::Aggregator::NewStub(parent_)),
      rack_(random_name()),
      slots_(dataplane_->limits().slots_per_stripe) {
  const int jobs = std::min(options_.max_jobs, dataplane_->limits().max_jobs);
  for (int i = 0; i < jobs; ++i)
    free_indices_.emplace_back(static_cast<uint16_t>(i), static_cast<uint16_t>(system_random()));
}

RelayDesk::~RelayDesk() = default;

RelayDesk::Reservation::~Reservation() {
  if (slots > 0) desk->slots_.give_back(first_slot, slots);
  desk->tell_of_room();
  desk->free_indices_.emplace_back(index, static_cast<uint16_t>(epoch + 1));
}

bool RelayDesk::waits_for(const Session& session, const JobRequest& job) {
  return session.reservation != nullptr && !session.job && session.request.name == job.name &&
         equal_in_constant_time(session.request.token, job.token);
}

Result<std::shared_ptr<RelayDesk::Reservation>> RelayDesk::reserve(const JobRequest& request, bool is_next) {
  for (const auto& [id, session] : sessions_)
    if (waits_for(session, request) && !session.reservation->granted) return session.reservation;
  if (!is_next)
    return Status(ErrorCode::kResourceExhausted,
                  "there is no room for job '" + request.name +
                      "' at this aggregator: others that came before it wait for some");
  if (free_indices_.empty())
    return Status(ErrorCode::kResourceExhausted, "this aggregator serves at most " +
                                                     std::to_string(options_.max_jobs) +
                                                     " jobs at once and none is free");
  const uint32_t most = std::min(dataplane_->limits().job_slots(), slots_.longest_run());
  if (most <= kScaleSlots)
    return Status(ErrorCode::kResourceExhausted,
                  "there is no room for job '" + request.name + "': this aggregator has at most " +
                      std::to_string(most) + " free slots in a row, and more than " +
                      std::to_string(kScaleSlots) + " are needed");
  auto reservation = std::make_shared<Reservation>(this);
  std::tie(reservation->index, reservation->epoch) = free_indices_.front();
  free_indices_.pop_front();
  reservation->slots = std::min(request.slots, std::bit_floor(most - kScaleSlots)) + kScaleSlots;
  reservation->first_slot = *slots_.take(reservation->slots);
  return reservation;
}

Status RelayDesk::create(const JobRequest&, int64_t) {
  return {ErrorCode::kUnsupported,
          "this aggregator has a parent, which keeps the jobs: create the job there, at " + options_.parent};
}

Status RelayDesk::check_aggregator_token(const std::string& presented) {
  if (options_.token.empty() || equal_in_constant_time(options_.token, presented)) return {};
  return {ErrorCode::kPermissionDenied,
          "wrong aggregator token, or none: set aggregator_token to the token that this aggregator was "
          "started with"};
}

void RelayDesk::join(const MemberRequest& request, const std::shared_ptr<MemberStream>& stream) {
  const auto refuse = [&](const Status& why) {
    stream->enqueue_end(to_rpc_status(why));
    stream->pump();
  };
  if (Status status = check_version(request.job); !status.ok()) return refuse(status);
  if (Status status = check_aggregator_token(request.job.aggregator_token); !status.ok())
    return refuse(status);
  // What the parent would refuse; until it does, this aggregator would show it to people.
  if (Status status = check_description(request.job); !status.ok()) return refuse(status);
  if (Status status = check_member(request); !status.ok()) return refuse(status);
  if (request.job.succeeds != 0)
    return refuse({ErrorCode::kUnsupported,
                   "this aggregator has a parent, and the jobs of a hierarchy cannot be regrouped: close the "
                   "communicator and connect anew"});

  control::JoinRequest up;
  control::JobDescription& job = *up.mutable_job();
  job.set_protocol_version(request.job.protocol_version);
  job.set_name(request.job.name);
  job.set_token(request.job.token);
  job.set_aggregator_token(options_.parent_token);
  job.set_world_size(request.job.world_size);
  job.set_mtu(request.job.mtu);
  job.set_slots(request.job.slots);
  job.set_when_full(static_cast<uint32_t>(request.job.when_full));
  up.set_rank(request.rank);
  up.set_software_version(NETSUM_VERSION_STRING);
  up.set_shard_endpoint(request.shard_endpoint);  // the parent refuses it by name
  up.set_rack(rack_);
  const DataplaneLimits limits = dataplane_->limits();
  const auto stripes = static_cast<uint32_t>(limits.stripes);
  if (!request.rack.empty() && request.rack_stripes != stripes)
    return refuse({ErrorCode::kInvalidArgument,
                   "this aggregator has " + std::to_string(stripes) + " cores, the one below it that rank " +
                       std::to_string(request.rank) + " joins at " + std::to_string(request.rack_stripes) +
                       ": start all aggregators below the topmost one with the same --cores"});
  uint32_t payload = limits.payload_bytes;
  if (request.peer.family == 6)
    payload = std::min(payload, wire::payload_for_mtu(static_cast<int>(request.job.mtu), 6));
  if (!request.rack.empty()) payload = std::min(payload, request.rack_payload_bytes);
  up.set_rack_payload_bytes(payload);
  up.set_rack_stripes(stripes);
  if (request.peer.valid()) up.set_origin(request.origin.empty() ? request.peer.to_string() : request.origin);
  up.set_host(request.host);
  up.set_liveness_ms(static_cast<uint32_t>(request.liveness_us / 1000));
  const int64_t timeout_us = request.deadline_us > 0
                                 ? request.deadline_us
                                 : std::chrono::microseconds(options_.join_timeout).count();
  up.set_rack_slots(request.rack.empty() ? std::numeric_limits<uint32_t>::max() : request.rack_slots);

  std::function<void()> start;
  Status refusal;
  {
    const std::lock_guard lock(mutex_);
    auto reservation = reserve(request.job, waiting_.empty());
    if (draining_) {
      refusal = shutting_down();
    } else if (sessions_.size() >= kMostSessions) {
      refusal = {ErrorCode::kResourceExhausted,
                 "this aggregator has as many members as it can serve: " + std::to_string(kMostSessions)};
    } else if (!reservation.ok() && !may_wait(request.job)) {
      refusal = reservation.status();
    } else {
      const SessionId id = next_session_++;
      Session& session = sessions_[id];
      session.request = request.job;
      session.rank = static_cast<int>(request.rank);
      session.rack = request.rack;
      session.multicast = request.multicast && request.rack.empty();
      session.began_us = monotonic_us();
      session.deadline_us = session.began_us + timeout_us;
      session.stream = stream;
      session.call = std::make_shared<ParentCall>(shared_from_this(), id, std::move(up));
      stream->set_on_over([self = shared_from_this(), id] { self->on_stream_over(id); });
      if (reservation.ok())
        start = let_in(session, *reservation);
      else
        waiting_.push_back(id);
      changed_.notify_all();
    }
  }
  if (!refusal.ok()) return refuse(refusal);
  if (start) start();
}

void RelayDesk::on_event(SessionId id, const control::Event& event, const std::string& parent_peer) {
  std::shared_ptr<MemberStream> stream;
  std::optional<std::pair<control::MemberRequest, Status>> failure;
  {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    Session& session = found->second;
    stream = session.stream;
    if (event.has_joined()) session.member = event.joined().member();
    if (event.has_ready()) {
      const Result<control::Ready> ready = grant(session, event.ready(), parent_peer);
      if (ready.ok()) {
        control::Event own;
        *own.mutable_ready() = *ready;
        stream->enqueue(std::move(own));
      } else {
        end_with(*stream, ready.status());
        failure = {claim_of(session), ready.status()};
        ++session.reports;
      }
    } else {
      stream->enqueue(event);
      if (event.has_failed()) stream->enqueue_end(grpc::Status::OK);
    }
  }
  stream->pump();
  if (failure) send_failure(id, failure->first, failure->second);
}

Result<control::Ready> RelayDesk::grant(Session& session, const control::Ready& ready,
                                        const std::string& parent_peer) {
  const ParentJob key{ready.job(), ready.epoch(), {ready.key_0(), ready.key_1()}};
  auto entry = grants_.find(key);
  if (entry == grants_.end()) {
    Result<Grant> fresh = install(session, ready, parent_peer);
    if (!fresh.ok()) return fresh.status();
    entry = grants_.emplace(key, std::move(fresh).value()).first;
  }
  Grant& grant = entry->second;
  ++grant.sessions;
  session.job = key;

  JobGrant own;
  own.job = grant.job;
  own.dataplane = std::string(dataplane_->kind()) + " below " + ready.dataplane() + " at " + options_.parent;
  for (const Address& endpoint : dataplane_->endpoints()) own.stripes.push_back({endpoint.to_string()});
  own.hosts.assign(ready.hosts().begin(), ready.hosts().end());
  own.host_meeting = ready.host_meeting();
  own.succession_id = ready.succession_id();
  own.member_of_rank = grant.member_of_rank;
  return to_ready(own);
}

Result<RelayDesk::Grant> RelayDesk::install(const Session& session, const control::Ready& ready,
                                            const std::string& parent_peer) {
  const Result<Membership> above = to_membership(ready, peer_address(parent_peer));
  if (!above.ok()) return above.status();
  const std::vector<uint16_t>& members = above->member_of_rank;
  if (members.size() != session.request.world_size)
    return Status(ErrorCode::kVersionMismatch,
                  "the aggregator at " + options_.parent +
                      " is of a release that can be no parent: install the same release of netsum on both");
  Reservation& reservation = *session.reservation;
  const uint32_t granted = above->data_slots + above->scale_slots;
  if (reservation.granted || granted > reservation.slots)
    return Status(ErrorCode::kInternal,
                  "the aggregator at " + options_.parent + " has granted job '" + session.request.name +
                      "' " + std::to_string(granted) +
                      " slots, more than this one has offered, or has granted it twice");
  Grant grant;
  grant.job.job = reservation.index;
  grant.job.epoch = reservation.epoch;
  grant.job.first_slot = reservation.first_slot;
  grant.job.key = {system_random(), system_random()};
  grant.job.data_slots = above->data_slots;
  grant.job.scale_slots = above->scale_slots;
  grant.job.payload_bytes = above->payload_bytes;
  DataplaneParent parent;
  parent.job = above->job;
  parent.epoch = above->epoch;
  parent.key = above->key;
  parent.member = members[static_cast<size_t>(session.rank)];
  for (const StripeInfo& stripe : above->stripes) {
    const Result<Address> address = Address::parse(stripe.endpoint);
    if (!address.ok()) return address.status();
    parent.stripes.push_back(*address);
  }
  grant.member_of_rank = number_members(session.request, members, parent.member);
  for (const uint16_t member : grant.member_of_rank)
    if (member != NETSUM_MEMBER_ALL) grant.job.members = std::max<uint16_t>(grant.job.members, member + 1);
  if (grant.job.members > NETSUM_MAX_MEMBERS)
    return Status(ErrorCode::kInvalidArgument,
                  "job '" + session.request.name + "' has " + std::to_string(grant.job.members) +
                      " members at this aggregator, which serves at most " +
                      std::to_string(NETSUM_MAX_MEMBERS) + ": spread them over more aggregators");
  if (all_receive_multicast(session.request)) grant.job.group = group_of(*dataplane_, grant.job.job);
  grant.job.parent = std::move(parent);
  if (Status status = dataplane_->install(grant.job); !status.ok()) return status;
  slots_.give_back(reservation.first_slot + granted, reservation.slots - granted);
  if (granted < reservation.slots) tell_of_room();
  reservation.slots = granted;
  reservation.granted = true;
  grant.reservation = session.reservation;
  return grant;
}

bool RelayDesk::all_receive_multicast(const JobRequest& job) const {
  return std::all_of(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
    const Session& session = entry.second;
    return !waits_for(session, job) || session.multicast;
  });
}

// As JobTable does: ranks of one rack are one member, in the order of their lowest ranks. All of ours have
// joined, or the parent would not have granted the job; but the word that the parent has let one in comes by
// its own stream, maybe after the grant by another's. So a session without it counts, too, unless there is
// one of the same rank that has it.
std::vector<uint16_t> RelayDesk::number_members(const JobRequest& job, const std::vector<uint16_t>& above,
                                                uint16_t own) const {
  std::vector<std::string> racks(above.size());
  std::vector<bool> let_in(above.size());
  for (const auto& [id, session] : sessions_) {
    const auto rank = static_cast<size_t>(session.rank);
    if (!waits_for(session, job) || rank >= above.size() || let_in[rank]) continue;
    racks[rank] = session.rack;
    let_in[rank] = session.member != 0;
  }
  std::map<std::string, uint16_t> numbers;
  std::vector<uint16_t> member_of_rank;
  uint16_t members = 0;
  for (size_t rank = 0; rank < above.size(); ++rank) {
    if (above[rank] != own) {
      member_of_rank.push_back(NETSUM_MEMBER_ALL);
    } else if (racks[rank].empty()) {
      member_of_rank.push_back(members++);
    } else {
      const auto [entry, is_new] = numbers.emplace(racks[rank], members);
      if (is_new) ++members;
      member_of_rank.push_back(entry->second);
    }
  }
  return member_of_rank;
}

void RelayDesk::release(const Session& session) {
  if (!session.job) return;
  const auto entry = grants_.find(*session.job);
  if (entry == grants_.end() || --entry->second.sessions > 0) return;
  const DataplaneJob& job = entry->second.job;
  dataplane_->remove(job.job, job.epoch);
  grants_.erase(entry);
}

void RelayDesk::on_call_over(SessionId id, const grpc::Status& status) {
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
        end_with(*stream, {ErrorCode::kAggregatorLost,
                           parent + " is lost: its process died or its host is unreachable"});
      }
      release(session);
      sessions_.erase(found);
    }
  }
  if (stream != nullptr) stream->pump();
  call_ended();
}

void RelayDesk::on_stream_over(SessionId id) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    if (found->second.waits()) return forget_waiting(id);
    found->second.stream_is_over = true;
  }
  cancel_if_over(id);
}

// Ends the call to the parent, which takes that for the member's end without a goodbye. Not before the parent has
// answered the reports of a failure: it would blame the member instead.
void RelayDesk::cancel_if_over(SessionId id) {
  std::shared_ptr<ParentCall> call;
  {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;  // the parent has ended the call
    const Session& session = found->second;
    if (session.stream_is_over && session.reports == 0) call = session.call;
  }
  if (call != nullptr) call->cancel();
}

control::MemberRequest RelayDesk::claim_of(const Session& session) const {
  control::MemberRequest claim;
  claim.set_job(session.request.name);
  claim.set_token(session.request.token);
  claim.set_rank(static_cast<uint32_t>(session.rank));
  claim.set_aggregator_token(options_.parent_token);
  claim.set_member(session.member);
  return claim;
}

// The session, and the claim as the parent wants to see it.
Result<std::pair<RelayDesk::SessionId, control::MemberRequest>> RelayDesk::find(const MemberClaim& claim) {
  if (Status status = check_aggregator_token(claim.aggregator_token); !status.ok()) return status;
  const std::lock_guard lock(mutex_);
  for (const auto& [id, session] : sessions_) {
    if (session.member == 0 || session.member != claim.member || session.request.name != claim.job ||
        static_cast<uint32_t>(session.rank) != claim.rank)
      continue;
    if (!equal_in_constant_time(session.request.token, claim.token))
      return Status(ErrorCode::kPermissionDenied, "wrong token for job '" + session.request.name + "'");
    return std::pair(id, claim_of(session));
  }
  return Status(ErrorCode::kInvalidArgument, "rank " + std::to_string(claim.rank) +
                                                 " is not a member of job '" +
                                                 printable(claim.job, kMaxJobNameBytes) + "'");
}

// The parent answers by ending the member's call. If it cannot, the end of the member's stream will do.
Status RelayDesk::leave(const MemberClaim& claim) {
  const auto up = find(claim);
  if (!up.ok()) return up.status();
  const auto call = make_unary(up->second);
  call_began();
  stub_->async()->Leave(&call->context, &call->request, &call->reply,
                        [self = shared_from_this(), call](const grpc::Status&) { self->call_ended(); });
  return {};
}

Status RelayDesk::report(const MemberClaim& claim, const Status& failure) {
  const auto up = find(claim);
  if (!up.ok()) return up.status();
  {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(up->first);
    if (found != sessions_.end()) ++found->second.reports;
  }
  send_failure(up->first, up->second, failure);
  return {};
}

// Who is alive is the parent's business, as is what follows if somebody is not.
Status RelayDesk::alive(const MemberClaim& claim) {
  const auto up = find(claim);
  if (!up.ok()) return up.status();
  const auto call = make_unary(up->second);
  call_began();
  stub_->async()->Alive(&call->context, &call->request, &call->reply,
                        [self = shared_from_this(), call](const grpc::Status&) { self->call_ended(); });
  return {};
}

// The session's `reports` has been raised for it.
void RelayDesk::send_failure(SessionId id, const control::MemberRequest& claim, const Status& failure) {
  control::FailRequest request;
  *request.mutable_member() = claim;
  *request.mutable_failure() = to_failed(failure);
  const auto call = make_unary(std::move(request));
  call_began();
  stub_->async()->Fail(&call->context, &call->request, &call->reply,
                       [self = shared_from_this(), call, id](const grpc::Status&) {
                         {
                           const std::lock_guard lock(self->mutex_);
                           const auto found = self->sessions_.find(id);
                           if (found != self->sessions_.end()) --found->second.reports;
                         }
                         self->cancel_if_over(id);
                         self->call_ended();
                       });
}

void RelayDesk::call_began() {
  const std::lock_guard lock(mutex_);
  ++calls_;
}

void RelayDesk::call_ended() {
  const std::lock_guard lock(mutex_);
  --calls_;
  changed_.notify_all();
}

void RelayDesk::drain() {
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

void RelayDesk::stop(const Status& reason) {
  std::vector<std::shared_ptr<MemberStream>> streams;
  std::vector<std::pair<SessionId, control::MemberRequest>> claims;
  {
    const std::lock_guard lock(mutex_);
    draining_ = true;
    for (auto& [id, session] : sessions_) {
      end_with(*session.stream, reason);
      streams.push_back(session.stream);
      if (session.member == 0) continue;
      claims.emplace_back(id, claim_of(session));
      ++session.reports;
    }
  }
  for (const auto& [id, claim] : claims) send_failure(id, claim, reason);
  for (const auto& stream : streams) stream->pump();
}

void RelayDesk::watch_deadlines() {
  std::unique_lock lock(mutex_);
  while (!halted_) {
    const int64_t now_us = monotonic_us();
    int64_t next_us = now_us + 60'000'000;
    if (serve_waiting(lock, now_us)) continue;
    std::vector<std::shared_ptr<ParentCall>> late;
    for (const auto& [id, session] : sessions_) {
      if (session.member != 0) continue;
      if (session.deadline_us <= now_us) late.push_back(session.call);
      next_us = std::min(next_us, session.deadline_us);
    }
    if (late.empty()) {
      changed_.wait_for(lock, std::chrono::microseconds(next_us - now_us));
      continue;
    }
    lock.unlock();
    for (const auto& call : late) call->cancel();
    lock.lock();
    changed_.wait_for(lock, kCancelPatience);  // they end on gRPC's threads
  }
}

void RelayDesk::halt() {
  std::unique_lock lock(mutex_);
  halted_ = true;
  changed_.notify_all();
  const auto all_over = [&] { return calls_ == 0; };
  if (changed_.wait_for(lock, kHaltPatience, all_over)) return;
  std::vector<std::shared_ptr<ParentCall>> calls;
  for (const auto& [id, session] : sessions_) calls.push_back(session.call);
  lock.unlock();
  for (const auto& call : calls) call->cancel();
  lock.lock();
  changed_.wait_for(lock, kHaltPatience, all_over);
}

bool RelayDesk::wait_until_empty(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [&] { return sessions_.empty(); });
}

std::vector<AggregatorJobStatus> RelayDesk::jobs() {
  const std::lock_guard lock(mutex_);
  std::map<std::pair<std::string, std::string>, AggregatorJobStatus> jobs;  // by name and state
  for (const auto& [id, session] : sessions_) {
    const std::string state = session.job ? "running" : session.waits() ? "queued" : "joining";
    AggregatorJobStatus& job = jobs[{session.request.name, state}];
    job.name = session.request.name;
    job.world_size = static_cast<int>(session.request.world_size);
    job.joined.push_back(session.rank);
    job.state = state;
    job.age_ms = std::max(job.age_ms, static_cast<uint64_t>((monotonic_us() - session.began_us) / 1000));
  }
  std::vector<AggregatorJobStatus> all;
  for (auto& [key, job] : jobs) {
    std::sort(job.joined.begin(), job.joined.end());
    all.push_back(std::move(job));
  }
  return all;
}

bool RelayDesk::draining() {
  const std::lock_guard lock(mutex_);
  return draining_;
}

}  // namespace netsum
