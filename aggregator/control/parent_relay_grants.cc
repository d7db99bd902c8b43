// The part of ParentRelay that installs jobs that the parent has granted: their slots and members here.
#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "aggregator/control/parent_relay.h"
#include "src/control/channel.h"
#include "src/control/membership.h"
#include "wire/ids.h"

namespace netsum {

Status ParentRelay::grant(SessionId id, Session& session, const control::Ready& ready,
                          const std::string& parent_peer) {
  const ParentJob key{ready.job(), ready.epoch(), {ready.key_0(), ready.key_1()}};
  auto entry = grants_.find(key);
  if (entry == grants_.end()) {
    Result<Grant> fresh = prepare(session, ready, parent_peer);
    if (!fresh.ok()) return fresh.status();
    entry = grants_.emplace(key, std::move(fresh).value()).first;
    tasks_.push_back({true, key, entry->second.job, entry->second.reservation});
    changed_.notify_all();
  }
  Grant& grant = entry->second;
  ++grant.sessions;
  session.job = key;
  if (ready.has_inside_rank() && ready.inside_rank() < session.spec.world_size())
    session.parent_rank = static_cast<int>(ready.inside_rank());
  if (!grant.installed) {
    grant.waiting.emplace_back(id, ready);
    return {};
  }
  control::Event event;
  *event.mutable_ready() = ready_for(grant, ready);
  session.stream->enqueue(std::move(event));
  return {};
}

control::Ready ParentRelay::ready_for(const Grant& grant, const control::Ready& ready) const {
  JobGrant own;
  own.job = grant.job;
  own.dataplane = std::string(dataplane_->kind()) + " below " + ready.dataplane() + " at " + options_.parent;
  for (const Address& endpoint : dataplane_->endpoints()) own.stripes.push_back({endpoint.to_string()});
  own.hosts.assign(ready.hosts().begin(), ready.hosts().end());
  own.host_meeting = ready.host_meeting();
  own.succession_id = ready.succession_id();
  own.completed = ready.completed();
  own.inside_rank = options_.inside_rank;
  own.sum_secret = {ready.sum_secret_0(), ready.sum_secret_1()};
  own.member_of_rank = grant.member_of_rank;
  own.plan = ready.plan();
  own.capabilities = common(dataplane_->limits().capabilities, ready.capabilities());
  return to_ready(own);
}

Result<ParentRelay::Grant> ParentRelay::prepare(const Session& session, const control::Ready& ready,
                                                const std::string& parent_peer) {
  const Result<Membership> above = to_membership(ready, peer_address(parent_peer));
  if (!above.ok()) return above.status();
  if (Status status = check_sum_secret(*above, session.spec, options_.parent); !status.ok()) return status;
  const std::vector<uint16_t>& members = above->member_of_rank;
  if (members.size() != session.spec.world_size())
    return Status(ErrorCode::kVersionMismatch,
                  "the aggregator at " + options_.parent +
                      " is of a release that cannot be a parent: install the same release of netsum on both");
  Reservation& reservation = *session.reservation;
  const uint32_t granted = above->data_slots + above->scale_slots;
  if (reservation.granted || granted > reservation.slots)
    return Status(ErrorCode::kInternal,
                  "the aggregator at " + options_.parent + " has granted job '" + session.spec.name() + "' " +
                      std::to_string(granted) +
                      " slots, more than this one has offered, or has granted it twice");
  Grant grant;
  grant.job.job = reservation.index;
  grant.job.epoch = reservation.epoch;
  grant.job.first_slot = reservation.first_slot;
  grant.job.key = {system_random(), system_random()};
  grant.job.spec = without_tokens(session.spec);
  grant.job.tag = packet_tag_of(session.spec);
  grant.job.data_slots = above->data_slots;
  grant.job.scale_slots = above->scale_slots;
  grant.job.payload_bytes = above->payload_bytes;
  grant.job.sums_values = sums_partial_floats(above->capabilities);
  grant.job.adds_floats = adds_floats(above->capabilities, session.spec);
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
  grant.member_of_rank = number_members(session.spec, members, parent.member);
  for (const uint16_t member : grant.member_of_rank)
    if (member != NETSUM_MEMBER_ALL) grant.job.members = std::max<uint16_t>(grant.job.members, member + 1);
  if (grant.job.members > NETSUM_MAX_MEMBERS)
    return Status(ErrorCode::kInvalidArgument,
                  "job '" + session.spec.name() + "' has " + std::to_string(grant.job.members) +
                      " members at this aggregator, which serves at most " +
                      std::to_string(NETSUM_MAX_MEMBERS) + ": spread them over more aggregators");
  if (all_receive_multicast(session.spec))
    grant.job.multicast_group = multicast_group_of(*dataplane_, grant.job.job);
  grant.job.parent = std::move(parent);
  grant.plan = above->plan.text();
  slots_.give_back(reservation.first_slot + granted, reservation.slots - granted);
  if (granted < reservation.slots) notify_room();
  reservation.slots = granted;
  reservation.granted = true;
  grant.reservation = session.reservation;
  return grant;
}

bool ParentRelay::all_receive_multicast(const JobSpec& job) const {
  return std::all_of(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
    const Session& session = entry.second;
    return !waits_for(session, job) || session.multicast;
  });
}

// As in JobTable: ranks of one rack are one member, in the order of their lowest ranks. All ranks below this aggregator
// have joined, since the parent has granted the job. But each session has its own stream from the parent, so the grant
// on one stream may arrive before another session's Joined event. A session without a member id therefore counts,
// unless another session of the same rank has one.
std::vector<uint16_t> ParentRelay::number_members(const JobSpec& job, const std::vector<uint16_t>& above,
                                                  uint16_t own) const {
  std::vector<std::string> racks(above.size());
  std::vector<bool> joined(above.size());
  for (const auto& [id, session] : sessions_) {
    const auto rank = static_cast<size_t>(session.rank);
    if (!waits_for(session, job) || rank >= above.size() || joined[rank]) continue;
    racks[rank] = session.rack;
    joined[rank] = session.member != 0;
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

void ParentRelay::release(const Session& session) {
  if (!session.job) return;
  const auto entry = grants_.find(*session.job);
  if (entry == grants_.end() || --entry->second.sessions > 0) return;
  tasks_.push_back({false, entry->first, entry->second.job, entry->second.reservation});
  ++removals_;
  grants_.erase(entry);
  changed_.notify_all();
}

std::function<void()> ParentRelay::finish(const Task& task, const Status& installed) {
  if (!task.install) {
    --removals_;
    notify_room();
    return {};
  }
  const auto entry = grants_.find(task.key);
  if (entry == grants_.end()) return {};  // all have left meanwhile
  Grant& grant = entry->second;
  grant.installed = installed.ok();
  std::vector<std::shared_ptr<MemberStream>> streams;
  std::vector<std::function<void()>> reports;
  for (const auto& [id, ready] : std::exchange(grant.waiting, {})) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) continue;
    Session& session = found->second;
    streams.push_back(session.stream);
    if (!installed.ok()) {
      reports.push_back(fail(id, session, installed));
      continue;
    }
    control::Event event;
    *event.mutable_ready() = ready_for(grant, ready);
    session.stream->enqueue(std::move(event));
  }
  return [streams, reports] {
    for (const auto& stream : streams) stream->pump();
    for (const auto& report : reports) report();
  };
}

void ParentRelay::run_tasks() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return no_more_tasks_ || !tasks_.empty(); });
    if (tasks_.empty() || (no_more_tasks_ && std::chrono::steady_clock::now() > tasks_end_)) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    Status installed;
    if (task.install)
      installed = dataplane_->install(task.job);
    else
      dataplane_->remove(task.job.job, task.job.epoch);
    lock.lock();
    const std::function<void()> then = finish(task, installed);
    task.reservation.reset();  // with the lock held
    if (!then) continue;
    lock.unlock();
    then();
    lock.lock();
  }
}

}  // namespace netsum
