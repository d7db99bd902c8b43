#include "collective/job_membership.h"

#include <algorithm>
#include <utility>

#include "src/net/udp/udp_io.h"

namespace netsum {

std::chrono::milliseconds time_left(std::chrono::steady_clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

namespace {

// The one place where a rank's options become the job's specification.
JobSpec job_spec(const JobMember& member, const CommunicatorOptions& options) {
  JobSpec job = new_job_spec();
  job.set_name(member.job);
  job.set_token(options.token);
  job.set_aggregator_token(options.aggregator_token);
  // A negative number becomes a huge one, which the aggregator refuses by name.
  job.set_world_size(static_cast<uint32_t>(member.world_size));
  job.set_mtu(static_cast<uint32_t>(options.mtu));
  job.set_slots(static_cast<uint32_t>(options.slots));
  job.set_when_full(static_cast<uint32_t>(options.when_full));
  job.set_succeeds(member.succession.succeeds);
  job.set_min_members(static_cast<uint32_t>(member.succession.min_members));
  job.set_gather_ms(to_wire(member.succession.gather));
  return job;
}

}  // namespace

Status join_job(const JobMember& member, const CommunicatorOptions& options, const Shard* shard,
                std::chrono::steady_clock::time_point deadline, Memberships* memberships) {
  JoinParameters join;
  join.job = job_spec(member, options);
  join.rank = member.rank;
  join.host = member.host;
  join.tls = options.tls;
  join.liveness = options.liveness_timeout;
  join.completed = member.succession.completed;
  join.on_left = member.on_left;
  join.on_missing = member.on_missing;
  if (shard != nullptr) {
    join.job.set_aggregator_token(options.token);  // rank 0's service serves this job alone
    const DataplaneLimits limits = shard->limits();
    join.shard = limits.capabilities;
    join.shard_endpoint = shard->endpoint().to_string();
    join.shard_payload_bytes = limits.capabilities.payload_bytes();
    join.shard_slots = limits.slots_per_stripe;
  }
  // Shards send to few, and AF_XDP takes only what is sent to this rank alone.
  join.multicast = shard == nullptr && options.packet_io == PacketIoKind::kUdp &&
                   options.aggregators.size() <= UdpIoOptions::kMaxGroups;
  std::vector<std::string> addresses = options.aggregators;
  if (shard != nullptr) addresses = {shard->root()};
  for (const std::string& address : addresses) {
    join.address = address;
    join.timeout = time_left(deadline);
    auto client = ControlClient::join(join, member.on_failure);
    if (!client.ok()) return client.status();
    memberships->push_back(std::move(client).value());
    if (join.job.min_members() == 0) continue;
    const ControlClient& first = *memberships->front();
    join.rank = first.rank();
    join.job.set_world_size(static_cast<uint32_t>(first.world_size()));
    join.job.set_succeeds(first.membership().succession_id);
    join.job.set_min_members(0);
  }
  return Status();
}

void report_failure(const Memberships& memberships, const Status& status) {
  for (const auto& control : memberships) control->report_failure(status);
}

uint32_t least_data_slots(const Memberships& memberships) {
  uint32_t least = memberships.front()->membership().data_slots;
  for (const auto& control : memberships) least = std::min(least, control->membership().data_slots);
  return least;
}

size_t stripe_count(const Memberships& memberships) {
  size_t count = 0;
  for (const auto& control : memberships) count += control->membership().stripes.size();
  return count;
}

}  // namespace netsum
