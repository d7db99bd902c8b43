// The part of JobTable that checks requests.
#include "aggregator/control/job_table.h"
#include "aggregator/control/request_checks.h"
#include "src/base/text.h"
#include "src/job/plan_token.h"
#include "wire/ids.h"
#include "wire/mtu.h"

namespace netsum {
namespace {

constexpr uint32_t kMaxShardSlots = 65536;

}  // namespace

Status JobTable::check_aggregator_token(const std::string& presented) const {
  if (opens(options_.token, presented)) return check_plans(options_.token, presented);
  if (members_bring_shards_)
    return {ErrorCode::kPermissionDenied,
            "wrong token of the job, or none: set the same token on all ranks (CommunicatorOptions::token)"};
  if (without_plan(presented).empty())
    return {
        ErrorCode::kPermissionDenied,
        "this aggregator requires a token, but none was given: set aggregator_token to the token that the "
        "aggregator was started with"};
  return {ErrorCode::kPermissionDenied,
          "wrong aggregator token: it differs from the one that the aggregator was started with"};
}

Status JobTable::check_job(const JobSpec& spec) const {
  if (Status status = check_version(spec); !status.ok()) return status;
  if (Status status = check_aggregator_token(spec.aggregator_token()); !status.ok()) return status;
  if (Status status = check_spec(spec); !status.ok()) return status;
  if (members_bring_shards_ && spec.slots() > kMaxShardSlots)
    return invalid_request(decimal(spec.slots()) + " slots are out of range: a shard has at most " +
                           decimal(kMaxShardSlots) + ", and 256 is usual");
  // The smaller payload, that over IPv6: the grant limits the payload if members use IPv4.
  const uint32_t payload = wire::payload_for_mtu(static_cast<int>(spec.mtu()), 6);
  if (payload <= payload_limit()) return {};
  auto fits = static_cast<int>(spec.mtu());
  while (wire::payload_for_mtu(fits, 6) > payload_limit()) --fits;
  // What a switch has room for, no flag makes more.
  const std::string or_else = dataplane_->kind() == "p4" ? ", as the switch's program takes no more"
                                                         : ", or start the aggregator with a larger one";
  return invalid_request("mtu " + decimal(spec.mtu()) + " carries " + decimal(payload) +
                         " bytes of payload, but this aggregator accepts at most " +
                         decimal(payload_limit()) + ": ask for an mtu of at most " + std::to_string(fits) +
                         or_else);
}

Status JobTable::check_quota(const JobSpec& spec) const {
  const DataplaneLimits limits = dataplane_->limits();
  const uint64_t wanted = uint64_t{spec.slots()} + kScaleSlots;
  const std::string asks = "job '" + spec.name() + "' asks for " + decimal(spec.slots()) + " slots (and " +
                           decimal(kScaleSlots) + " for scales) per stripe";
  if (limits.quota.slots != 0 && wanted > limits.quota.slots)
    return {ErrorCode::kResourceExhausted,
            asks + "; this aggregator's quota of slots for a job is " + decimal(limits.quota.slots) +
                ": ask for fewer, or start the aggregator with a larger quota"};
  const uint64_t slot_bytes = limits.bytes_of_slot(spec);
  if (limits.quota.memory_bytes != 0 && wanted > limits.quota.memory_bytes / slot_bytes)
    return {ErrorCode::kResourceExhausted,
            asks + ", which take " + decimal(wanted * slot_bytes) +
                " bytes; this aggregator's quota of memory for a job is " +
                decimal(limits.quota.memory_bytes) +
                " bytes: ask for fewer slots, or start the aggregator with a larger quota"};
  return {};
}

Status JobTable::check_tenant(const JobSpec& spec, const std::string& tenant) const {
  int jobs = 0;
  uint64_t slots = uint64_t{spec.slots()} + kScaleSlots;
  for (const auto& [number, job] : jobs_) {
    const bool is_succeeded = job.succession_id != 0 && job.succession_id == spec.succeeds();
    if (job.tenant != tenant || job.state == State::kFailed || is_succeeded) continue;
    ++jobs;
    slots += job.spec.slots() + kScaleSlots;
  }
  const std::string who = "the jobs begun from " + printable(tenant) + " ";
  const auto refused = [&](const std::string& has) -> Status {
    return {ErrorCode::kResourceExhausted,
            who + has + " for one address: wait for one to end, or start the aggregator with a larger quota"};
  };
  if (options_.tenant.jobs != 0 && jobs >= options_.tenant.jobs)
    return refused("are " + std::to_string(jobs) + " already, as many as this aggregator's quota of jobs");
  if (options_.tenant.slots != 0 && slots > options_.tenant.slots)
    return refused("would take " + decimal(slots) +
                   " slots per stripe; this aggregator's quota of slots is " +
                   decimal(options_.tenant.slots));
  return {};
}

Status JobTable::check_entry(int64_t now_us, const JobSpec& spec, const std::string& tenant) const {
  if (draining_) return {ErrorCode::kUnreachable, "this aggregator is shutting down and takes no new jobs"};
  const auto away = turned_away_.find(identity_of(spec));
  if (away != turned_away_.end() && now_us < away->second)
    return {ErrorCode::kResourceExhausted,
            "there was no room for job '" + spec.name() + "' when its first rank joined"};
  if (Status status = check_tenant(spec, tenant); !status.ok()) return status;
  if (Status status = check_room(spec); !status.ok()) return status;
  // A job that succeeds another one has waited before, if that one was here.
  if (!queue_.empty() && !succeeds_a_job_of_here(now_us, spec))
    return {ErrorCode::kResourceExhausted, "there is no room for job '" + spec.name() +
                                               "': " + decimal(queue_.size()) +
                                               " jobs that came earlier are waiting"};
  return {};
}

bool JobTable::fits_when_empty(const JobSpec& spec) const {
  return members_bring_shards_ || spec.slots() + kScaleSlots <= dataplane_->limits().job_slots(spec);
}

Status JobTable::check_room(const JobSpec& spec) const {
  if (!members_bring_shards_) {
    if (Status status = check_quota(spec); !status.ok()) return status;
    const uint32_t run = slots_.longest_run();
    if (uint64_t{spec.slots()} + kScaleSlots > run)
      return {ErrorCode::kResourceExhausted,
              "job '" + spec.name() + "' asks for " + decimal(spec.slots()) + " slots (and " +
                  decimal(kScaleSlots) + " for scales) per stripe, in a row; the aggregator has " +
                  decimal(dataplane_->limits().slots_per_stripe) + ", of which " + decimal(slots_.free()) +
                  " are free, at most " + decimal(run) +
                  " in a row: ask for fewer, wait, or start the aggregator with more slots per core"};
  }
  if (free_indices_.empty())
    return {ErrorCode::kResourceExhausted,
            "the aggregator serves at most " + decimal(options_.max_jobs) +
                " jobs at once: wait for one to end, or start it with a larger limit (--max-jobs)"};
  return {};
}

Status JobTable::check_capabilities(const MemberRequest& request) const {
  const std::string rank = "rank " + decimal(request.rank);
  if (members_bring_shards_) return check_needs(request.job, request.dataplane, rank + "'s shard");
  const std::string own = "the dataplane '" + std::string(dataplane_->kind()) + "' of this aggregator";
  if (Status status = check_needs(request.job, dataplane_->limits().capabilities, own); !status.ok())
    return status;
  if (!request.shard_endpoint.empty()) return check_needs(request.job, request.dataplane, rank + "'s shard");
  if (request.rack.empty()) return {};
  return check_needs(request.job, request.dataplane, "the dataplane of " + rank + "'s aggregator");
}

Status JobTable::check_rack(const MemberRequest& request) const {
  if (request.rack.empty()) return {};
  if (request.job.min_members() != 0)
    return {ErrorCode::kUnsupported,
            "the jobs of a hierarchy of aggregators cannot be regrouped: connect anew"};
  const std::string who = "rank " + decimal(request.rank) + "'s aggregator";
  if (members_bring_shards_)
    return invalid_request(who +
                           " has this job's rank 0 as its parent, but a rank cannot be a parent: configure "
                           "an aggregator as parent");
  if (request.rack_stripes == 0 || request.rack_payload_bytes < wire::kMinPayload)
    return invalid_request(who + " accepts " + decimal(request.rack_payload_bytes) + " bytes of payload on " +
                           decimal(request.rack_stripes) + " cores; at least " + decimal(wire::kMinPayload) +
                           " bytes and one core are needed");
  if (request.rack_slots <= kScaleSlots)
    return {ErrorCode::kResourceExhausted, who + " has " + decimal(request.rack_slots) +
                                               " free slots; more than " + decimal(kScaleSlots) +
                                               " are needed"};
  return {};
}

Status JobTable::check_shard(const MemberRequest& request) const {
  const std::string who = "rank " + decimal(request.rank);
  if (!members_bring_shards_) {
    if (Status status = check_family(request, dataplane_->endpoints()); !status.ok()) return status;
    if (request.shard_endpoint.empty()) return {};
    if (request.job.shares() == static_cast<uint32_t>(Shares::kOff) || !request.rack.empty())
      return invalid_request(who +
                             " offers an embedded shard, but this aggregator sums without shards: "
                             "configure aggregators on all ranks or on none");
  }
  if (request.shard_endpoint.empty())
    return invalid_request(
        who +
        " offers no embedded shard, but this job is summed by its members' shards: configure "
        "aggregators on all ranks or on none");
  const Result<Address> endpoint = Address::parse(request.shard_endpoint);
  if (!endpoint.ok() || endpoint->port == 0)
    return invalid_request(who + "'s shard endpoint '" + printable(request.shard_endpoint, 64) +
                           "' is not a numeric address with a port");
  if (request.shard_payload_bytes < wire::kMinPayload)
    return invalid_request(who + "'s shard accepts " + decimal(request.shard_payload_bytes) +
                           " bytes of payload; at least " + decimal(wire::kMinPayload) + " are needed");
  if (request.shard_slots <= kScaleSlots)
    return {ErrorCode::kResourceExhausted, who + "'s shard has " + decimal(request.shard_slots) +
                                               " slots; more than " + decimal(kScaleSlots) + " are needed"};
  if (request.shard_job > UINT16_MAX)
    return invalid_request(who + "'s shard has index " + decimal(request.shard_job) +
                           " for the job; at most " + decimal(UINT16_MAX) + " is possible");
  return {};
}

}  // namespace netsum
