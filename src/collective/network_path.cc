#include "src/collective/network_path.h"

#include <algorithm>
#include <utility>

#include "src/collective/worker_io.h"
#include "src/net/udp/udp_io.h"
#include "wire/codec.h"
#include "wire/mtu.h"

namespace netsum {
namespace {

std::chrono::milliseconds left_until(std::chrono::steady_clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

Result<StripeOptions> stripe_options(const Membership& membership, size_t number, int rank) {
  const StripeInfo& info = membership.stripes[number];
  const Result<Address> address = Address::parse(info.endpoint);
  if (!address.ok()) return address.status();
  StripeOptions stripe;
  stripe.address = address.value();
  stripe.local = info.embedded && info.owner_rank == rank;
  stripe.job = membership.job;
  stripe.epoch = membership.epoch;
  stripe.key = wire::stripe_key(membership.key, number);
  stripe.data_slots = membership.data_slots;
  stripe.scale_slots = membership.scale_slots;
  stripe.payload_bytes = membership.payload_bytes;
  stripe.member_of_rank = membership.member_of_rank;
  stripe.group = membership.group;
  return stripe;
}

// What results come by multicast from, on the interfaces that lead to the aggregators.
Result<std::vector<MulticastMembership>> groups_of(const std::vector<StripeOptions>& stripes) {
  std::vector<MulticastMembership> groups;
  for (const StripeOptions& stripe : stripes) {
    if (!stripe.group.valid()) continue;
    Result<Address> local = local_address_towards(stripe.address);
    if (!local.ok()) return local.status();
    const MulticastMembership membership{stripe.group, *local};
    if (std::find(groups.begin(), groups.end(), membership) == groups.end()) groups.push_back(membership);
  }
  return groups;
}

std::string describe(const std::vector<MulticastMembership>& groups) {
  std::string text;
  for (const MulticastMembership& membership : groups) {
    text += (text.empty() ? "results by multicast to " : ", ") + membership.group.to_string();
  }
  return text;
}

}  // namespace

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
    join.timeout = left_until(deadline);
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

Result<NetworkPath> open_path(const Memberships& memberships, WorkerOptions worker, uint32_t payload_bytes,
                              const CommunicatorOptions& options, Shard* shard,
                              std::function<void(const Status&)> on_failed, TraceLog* trace) {
  NetworkPath path;
  for (const auto& control : memberships) {
    const Membership& membership = control->membership();
    if (shard != nullptr) {
      Result<ShardJob> installed = shard->install(membership, worker.rank, worker.world_size);
      if (!installed.ok()) return installed.status();
      path.shard_job = std::move(installed).value();
    }
    for (size_t number = 0; number < membership.stripes.size(); ++number) {
      Result<StripeOptions> stripe = stripe_options(membership, number, worker.rank);
      if (!stripe.ok()) return stripe.status();
      if (payload_bytes != 0) stripe->payload_bytes = payload_bytes;
      worker.stripes.push_back(std::move(stripe).value());
    }
  }
  const StripeOptions& first = worker.stripes.front();
  for (const StripeOptions& stripe : worker.stripes) {
    if (stripe.payload_bytes != first.payload_bytes || stripe.address.family != first.address.family) {
      return Status(ErrorCode::kInvalidArgument,
                    "the aggregators at " + first.address.to_string() + " and " + stripe.address.to_string() +
                        " differ in IP version or packet size: give all of them addresses of one IP version "
                        "and one --mtu");
    }
  }
  // One's own shard is on this host: which way the packets go, another tells.
  const auto elsewhere = std::find_if(worker.stripes.begin(), worker.stripes.end(),
                                      [](const StripeOptions& stripe) { return !stripe.local; });
  const Address& remote = (elsewhere != worker.stripes.end() ? *elsewhere : first).address;
  Result<std::vector<MulticastMembership>> groups = groups_of(worker.stripes);
  if (!groups.ok()) return groups.status();
  InjectedFaults faults = options.inject;
  faults.seed += static_cast<uint64_t>(worker.rank);
  Result<WorkerIo> io =
      open_worker_io(options.packet_io, remote, NETSUM_HEADER_BYTES + first.payload_bytes, *groups, faults);
  if (!io.ok()) return io.status();
  path.note = describe(*groups);
  if (!path.note.empty() && !io->note.empty()) path.note += "; ";
  path.note += io->note;
  path.faults = io->faults;
  auto core = std::make_unique<NetworkCore>(std::move(io->io), worker);
  path.worker = &core->worker();
  path.engine = std::make_unique<Engine>(std::move(core), std::move(on_failed), trace);
  return path;
}

}  // namespace netsum
