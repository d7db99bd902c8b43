#include "src/collective/job_membership.h"

#include <algorithm>
#include <utility>

#include "src/net/udp/udp_io.h"

namespace netsum {

std::chrono::milliseconds time_left(std::chrono::steady_clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

Status join_job(const JobMember& member, const CommunicatorOptions& options, const Shard* shard,
                std::chrono::steady_clock::time_point deadline, Memberships* memberships) {
  JoinParameters join;
  join.job = member.job;
  join.token = options.token;
  join.aggregator_token = options.aggregator_token;
  join.rank = member.rank;
  join.world_size = member.world_size;
  join.mtu = options.mtu;
  join.slots = static_cast<uint32_t>(options.slots);
  join.host = member.host;
  join.tls = options.tls;
  join.when_full = options.when_full;
  join.liveness = options.liveness_timeout;
  join.succeeds = member.succession.succeeds;
  join.completed = member.succession.completed;
  join.min_members = member.succession.min_members;
  join.gather = member.succession.gather;
  join.on_left = member.on_left;
  join.on_missing = member.on_missing;
  if (shard != nullptr) {
    join.aggregator_token = options.token;  // rank 0's service serves this job alone
    join.shard_endpoint = shard->endpoint().to_string();
    join.shard_payload_bytes = shard->limits().payload_bytes;
    join.shard_slots = shard->limits().slots_per_stripe;
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
    if (join.min_members == 0) continue;
    const ControlClient& first = *memberships->front();
    join.rank = first.rank();
    join.world_size = first.world_size();
    join.succeeds = first.membership().succession_id;
    join.min_members = 0;
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
