#include "collective/network_path.h"

#include <algorithm>
#include <utility>

#include "collective/worker_io.h"
#include "src/job/capabilities.h"
#include "src/net/udp/udp_io.h"
#include "wire/codec.h"
#include "wire/mtu.h"

namespace netsum {
namespace {

Result<StripeOptions> stripe_options(const Membership& membership, size_t number, int rank) {
  const StripeInfo& info = membership.stripes[number];
  const Result<Address> address = Address::parse(info.endpoint);
  if (!address.ok()) return address.status();
  StripeOptions stripe;
  stripe.address = address.value();
  stripe.local = info.embedded && info.owner_rank == rank;
  stripe.job = info.job;
  stripe.epoch = membership.epoch;
  stripe.key = wire::stripe_key(membership.key, number);
  stripe.data_slots = membership.data_slots;
  stripe.scale_slots = membership.scale_slots;
  stripe.payload_bytes = membership.payload_bytes;
  stripe.sums_values = sums_values(membership.capabilities);
  stripe.takes_no_lanes = membership.capabilities.no_lanes();
  stripe.takes_brief = membership.capabilities.brief();
  stripe.member_of_rank = membership.member_of_rank;
  if (!info.embedded) stripe.multicast_group = membership.multicast_group;
  return stripe;
}

// The first aggregator that cannot combine words, or empty.
std::string who_lacks_words(const std::vector<const Membership*>& memberships) {
  for (const Membership* membership : memberships) {
    if (combines_words(membership->capabilities)) continue;
    return "the aggregator at " + membership->stripes.front().endpoint + ", or one that sums with it,";
  }
  return "";
}

// The multicast groups of results, on the interfaces that lead to the aggregators.
Result<std::vector<MulticastMembership>> groups_of(const std::vector<StripeOptions>& stripes) {
  std::vector<MulticastMembership> groups;
  for (const StripeOptions& stripe : stripes) {
    if (!stripe.multicast_group.valid()) continue;
    Result<Address> local = local_address_towards(stripe.address);
    if (!local.ok()) return local.status();
    const MulticastMembership membership{stripe.multicast_group, *local};
    if (std::find(groups.begin(), groups.end(), membership) == groups.end()) groups.push_back(membership);
  }
  return groups;
}

std::string describe(const std::vector<MulticastMembership>& groups) {
  std::string text;
  for (const MulticastMembership& membership : groups) {
    text += (text.empty() ? "results by multicast to " : ", ") + membership.multicast_group.to_string();
  }
  return text;
}

}  // namespace

Result<NetworkPath> open_path(const Memberships& memberships, WorkerOptions worker, uint32_t payload_bytes,
                              const CommunicatorOptions& options, Shard* shard,
                              std::function<void(const Status&)> on_failed, TraceLog* trace) {
  NetworkPath path;
  std::vector<const Membership*> all;
  for (const auto& control : memberships) all.push_back(&control->membership());
  Result<std::vector<JobStripe>> stripes = job_stripes(all);
  if (!stripes.ok()) return stripes.status();
  path.stripes = std::move(stripes).value();
  for (const JobStripe& one : path.stripes) {
    Result<StripeOptions> stripe = stripe_options(*all[one.membership], one.number, worker.rank);
    if (!stripe.ok()) return stripe.status();
    if (stripe->local && shard != nullptr) {
      Result<ShardJob> installed = shard->install(*all[one.membership], one.number, worker.world_size);
      if (!installed.ok()) return installed.status();
      path.shard_job = std::move(installed).value();
    }
    if (payload_bytes != 0) stripe->payload_bytes = payload_bytes;
    worker.stripes.push_back(std::move(stripe).value());
    worker.stripe_weights.push_back(one.weight);
  }
  if (all.front()->plan.adapts()) worker.balance_period = kBalancePeriod;
  worker.lacks_words = who_lacks_words(all);
  const StripeOptions& first = worker.stripes.front();
  for (const StripeOptions& stripe : worker.stripes) {
    if (stripe.payload_bytes != first.payload_bytes || stripe.address.family != first.address.family) {
      return Status(ErrorCode::kInvalidArgument,
                    "the aggregators at " + first.address.to_string() + " and " + stripe.address.to_string() +
                        " differ in IP version or packet size: give all of them addresses of one IP version "
                        "and one --mtu");
    }
  }
  // This rank's own shard is on this host, so another stripe determines the interface.
  const auto elsewhere = std::find_if(worker.stripes.begin(), worker.stripes.end(),
                                      [](const StripeOptions& stripe) { return !stripe.local; });
  const Address& remote = (elsewhere != worker.stripes.end() ? *elsewhere : first).address;
  Result<std::vector<MulticastMembership>> groups = groups_of(worker.stripes);
  if (!groups.ok()) return groups.status();
  InjectedFaults faults = options.inject;
  faults.seed += static_cast<uint64_t>(worker.rank);
  Result<WorkerIo> io = open_worker_io(options.packet_io, remote, NETSUM_HEADER_BYTES + first.payload_bytes,
                                       *groups, faults, options.spin);
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
