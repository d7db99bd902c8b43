// The part of JobTable that grants a complete job its stripes, members, slots and payload.
#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <map>
#include <set>

#include "aggregator/control/job_table.h"
#include "src/base/assert.h"
#include "src/job/capabilities.h"
#include "src/job/place_path.h"
#include "src/job/ranks.h"
#include "src/plan/job_plan.h"
#include "wire/ids.h"
#include "wire/mtu.h"

namespace netsum {

PlaceInfo place_of(PlaceInfo place, const Dataplane& dataplane) {
  const auto stripes = static_cast<uint32_t>(dataplane.endpoints().size());
  place.set_stripes(stripes);
  if (place.cores() == 0) place.set_cores(stripes);
  place.set_multicast(dataplane.limits().multicast_groups.has_value());
  return place;
}

bool JobGrant::has_shards() const {
  return std::any_of(stripes.begin(), stripes.end(),
                     [](const StripeGrant& stripe) { return stripe.embedded; });
}

void JobTable::start(JobNumber number) {
  Job& job = jobs_.at(number);
  job.state = State::kStarting;
  job.attempt = next_attempt_++;
  if (!is_planned(job)) return install(number, nullptr);
  tasks_.push_back(
      {.kind = JobTask::Kind::kPlan, .number = number, .attempt = job.attempt, .input = plan_input(job)});
}

void JobTable::install(JobNumber number, const Result<plan::JobPlan>* plan) {
  Job& job = jobs_.at(number);
  Result<JobGrant> grant = grant_for(job, plan);
  if (!grant.ok()) return fail(number, grant.status(), kNoRank);
  job.delivery = grant_multicast_group(job, &*grant);
  job.starting = std::make_shared<JobGrant>(std::move(grant).value());
  job.installed = true;
  tasks_.push_back(
      {.kind = JobTask::Kind::kInstall, .number = number, .attempt = job.attempt, .job = job.starting->job});
}

void JobTable::run(int64_t now_us, JobNumber number) {
  Job& job = jobs_.at(number);
  const std::shared_ptr<const JobGrant> grant = std::exchange(job.starting, nullptr);
  job.plan = grant->plan.text();
  job.grant = grant->job;
  job.succession_id = grant->succession_id;
  job.state = State::kRunning;
  successors_.erase(identity_of(job.spec));
  for (auto& member : job.members) member->heard_us = now_us;
  std::vector<uint16_t> member_of_rank = grant->member_of_rank;
  for (size_t rank = member_of_rank.size(); rank < job.members.size(); ++rank)
    member_of_rank.push_back(static_cast<uint16_t>(rank));
  job.watch = JobWatch(std::move(member_of_rank));
  note(AggregatorEvent::Kind::kJobRunning, job);
  for (const auto& member : job.members)
    events_.push_back({member->id, JobEvent::Kind::kReady, {}, grant, {}});
  if (!draining_) return;
  for (const auto& member : job.members)
    events_.push_back({member->id, JobEvent::Kind::kDraining, {}, nullptr, {}});
}

Result<JobGrant> JobTable::grant_for(const Job& job, const Result<plan::JobPlan>* plan) {
  JobGrant grant;
  grant.job = job.grant;
  grant.job.spec = without_tokens(job.spec);
  grant.job.key = {random_(), random_()};
  grant.job.tag = packet_tag_of(job.spec);
  while (grant.sum_secret == netsum_key{} && job.spec.verify() != static_cast<uint32_t>(Verify::kPacket))
    grant.sum_secret = {random_(), random_()};
  do grant.succession_id = random_();
  while (grant.succession_id == 0);
  grant.job.scale_slots = kScaleSlots;
  grant.former_ranks = job.former_ranks;
  grant.inside_rank = options_.inside_rank;
  grant.completed = std::numeric_limits<uint64_t>::max();
  for (const auto& member : job.members) grant.completed = std::min(grant.completed, member->completed);
  grant.dataplane = dataplane_->kind();
  grant_hosts(job, &grant);
  if (Status status = grant_stripes(job, plan, &grant); !status.ok()) return status;
  grant.capabilities = capabilities_for(job, grant);
  grant.job.sums_values = sums_partial_floats(grant.capabilities);
  grant.job.adds_floats = adds_floats(grant.capabilities, job.spec);
  if (Status status = group_by_rack(job, &grant); !status.ok()) return status;

  bool ipv6 = false;
  uint32_t slots = job.spec.slots();
  uint32_t payload = payload_limit();
  for (const StripeGrant& stripe : grant.stripes) {
    const Result<Address> endpoint = Address::parse(stripe.endpoint);
    NETSUM_ASSERT(endpoint.ok());
    // The worker replaces a wildcard by the address of its control connection, whose family member->peer has.
    ipv6 |= endpoint->family == 6 && !endpoint->is_wildcard();
  }
  for (const auto& member : job.members) {
    ipv6 |= member->peer.family == 6;
    if (grant.has_shards()) {
      payload = std::min(payload, member->shard_payload_bytes / 32 * 32);
      slots = std::min(slots, member->shard_slots - kScaleSlots);
    }
    if (!member->rack.empty()) {
      payload = std::min(payload, member->rack_payload_bytes / 32 * 32);
      slots = std::min(slots, member->rack_slots - kScaleSlots);
    }
  }
  // A power of two, so that masking a chunk's number gives its slot.
  grant.job.data_slots = std::bit_floor(slots);
  grant.job.payload_bytes =
      std::min(payload, wire::payload_for_mtu(static_cast<int>(job.spec.mtu()), ipv6 ? 6 : 4));
  return grant;
}

Capabilities JobTable::capabilities_for(const Job& job, const JobGrant& grant) const {
  Capabilities can =
      members_bring_shards_ ? job.members.front()->dataplane : dataplane_->limits().capabilities;
  for (const auto& member : job.members)
    if (grant.has_shards() || !member->rack.empty()) can = common(can, member->dataplane);
  return can;
}

Status JobTable::grant_stripes(const Job& job, const Result<plan::JobPlan>* plan, JobGrant* grant) const {
  for (const Address& endpoint : dataplane_->endpoints())
    grant->stripes.push_back({endpoint.to_string(), kNoRank, false, grant->job.job});
  const Result<std::vector<uint32_t>> shards = plan_shares(job, plan, grant);
  if (!shards.ok()) return shards.status();
  for (size_t rank = 0; rank < shards->size(); ++rank) {
    if ((*shards)[rank] == 0) continue;
    if (Status status = grant_shard(job, rank, grant); !status.ok()) return status;
  }
  return {};
}

bool JobTable::is_planned(const Job& job) {
  return std::all_of(job.members.begin(), job.members.end(), [](const std::optional<Member>& member) {
    if (!member->sharing) return false;
    // An aggregator of an older release does not say that it is below this one.
    return member->rack.empty() == !member->sent_below;
  });
}

PlanInput JobTable::plan_input(const Job& job) const {
  PlanInput input{.ranks = {},
                  .own_sums = !members_bring_shards_,
                  .own = place_of(options_.place, *dataplane_),
                  .shares = static_cast<Shares>(job.spec.shares())};
  for (const auto& member : job.members)
    input.ranks.push_back({member->host, member->sharing, !member->shard_endpoint.empty()});
  return input;
}

Result<std::vector<uint32_t>> JobTable::plan_shares(const Job& job, const Result<plan::JobPlan>* plan,
                                                    JobGrant* grant) const {
  const std::vector<uint32_t> equal(job.members.size(), members_bring_shards_ ? 1 : 0);
  if (plan == nullptr) return equal;
  const auto shares = static_cast<Shares>(job.spec.shares());
  if (!plan->ok() && (shares != Shares::kOff || plan->status().rank() != kNoRank)) return plan->status();
  if (!plan->ok()) return equal;  // with equal shares, the plan is only a description
  grant->plan = (*plan)->summary;
  if (shares == Shares::kOff) return equal;
  if (shares == Shares::kAuto) grant->plan.set_adapts((*plan)->places > 1);
  for (const uint32_t weight : (*plan)->of_places) grant->plan.add_weights(weight);
  for (const uint32_t weight : (*plan)->of_shards) {
    if (weight > 0) grant->plan.add_weights(weight);
  }
  return (*plan)->of_shards;
}

Status JobTable::grant_shard(const Job& job, size_t rank, JobGrant* grant) const {
  const Member& member = *job.members[rank];
  const Result<Address> parsed = Address::parse(member.shard_endpoint);
  NETSUM_ASSERT(parsed.ok());  // by check_shard
  Address endpoint = *parsed;
  if (endpoint.is_wildcard()) {
    if (!member.peer.valid())
      return {ErrorCode::kInvalidArgument,
              describe_rank(static_cast<int>(rank), member.host) +
                  " gave no address for its shard, and its connection has none: set bind_address",
              static_cast<int>(rank)};
    endpoint = member.peer;
    endpoint.port = parsed->port;
  }
  // If an aggregator sums, too, each shard has its own index for the job, because the aggregator's may be too large for
  // a shard.
  const uint32_t number = members_bring_shards_ ? grant->job.job : member.shard_job;
  grant->stripes.push_back(
      {endpoint.to_string(), static_cast<int>(rank), true, static_cast<uint16_t>(number)});
  return {};
}

// Results are sent by multicast if the dataplane can, and every member can receive it. Returns the decision as text.
std::string JobTable::grant_multicast_group(const Job& job, JobGrant* grant) const {
  const Address group = multicast_group_of(*dataplane_, grant->job.job);
  if (!group.valid()) return "unicast";
  for (size_t rank = 0; rank < job.members.size(); ++rank) {
    const Member& member = *job.members[rank];
    if (!member.rack.empty()) return "unicast: members are aggregators";
    if (!member.multicast) {
      return "unicast: " + describe_rank(static_cast<int>(rank), member.host) + " does not receive multicast";
    }
  }
  grant->job.multicast_group = group;
  return "multicast to " + group.to_string();
}

void JobTable::grant_hosts(const Job& job, JobGrant* grant) {
  std::set<std::string> known;
  bool shared = false;
  for (const auto& member : job.members) {
    const std::string& host = member->shares_memory_on;
    shared |= !host.empty() && !known.insert(host).second;
  }
  if (!shared) return;
  grant->host_meeting = random_();
  for (const auto& member : job.members) grant->hosts.push_back(member->shares_memory_on);
}

// Ranks of one rack become one member, in the order of their lowest ranks.
Status JobTable::group_by_rack(const Job& job, JobGrant* grant) const {
  std::map<std::string, uint16_t> racks;
  std::vector<uint16_t> member_of_rank;
  uint16_t members = 0;
  uint32_t stripes = 0;
  int first_rank = kNoRank;  // of those below another aggregator
  for (size_t rank = 0; rank < job.members.size(); ++rank) {
    const Member& member = *job.members[rank];
    if (member.rack.empty()) {
      member_of_rank.push_back(members++);
      continue;
    }
    const auto [entry, is_new] = racks.emplace(member.rack, members);
    if (is_new) ++members;
    member_of_rank.push_back(entry->second);
    if (first_rank == kNoRank) {
      first_rank = static_cast<int>(rank);
      stripes = member.rack_stripes;
    }
    if (member.rack_stripes != stripes)
      return Status(ErrorCode::kInvalidArgument,
                    "the aggregators of " +
                        describe_rank(first_rank, job.members[static_cast<size_t>(first_rank)]->host) +
                        " and " + describe_rank(static_cast<int>(rank), member.host) + " have " +
                        std::to_string(stripes) + " and " + std::to_string(member.rack_stripes) +
                        " cores: start all aggregators below this one with the same --cores",
                    static_cast<int>(rank));
  }
  const uint32_t most_members = std::min<uint32_t>(most_members_of(grant->capabilities), NETSUM_MAX_MEMBERS);
  if (members > most_members)
    return Status(ErrorCode::kInvalidArgument,
                  "job '" + job.spec.name() + "' has " + std::to_string(members) +
                      " members at this aggregator, which serves at most " + std::to_string(most_members) +
                      ": put aggregators between it and the ranks (netsum aggregator --parent)");
  grant->job.members = members;
  if (first_rank == kNoRank) return {};
  if (stripes > grant->stripes.size())
    return Status(ErrorCode::kInvalidArgument,
                  "this aggregator has " + std::to_string(grant->stripes.size()) + " cores, those below it " +
                      std::to_string(stripes) + ": start it with at least as many (--cores)");
  grant->stripes.resize(stripes);
  grant->member_of_rank = std::move(member_of_rank);
  return {};
}

}  // namespace netsum
