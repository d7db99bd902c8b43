#include "session/network_path.h"

#include <algorithm>
#include <utility>

#include "engine/engine_thread_count.h"
#include "engine/worker_io.h"
#include "src/base/clock.h"
#include "src/base/processors.h"
#include "src/base/wall_clock.h"
#include "src/job/capabilities.h"
#include "src/net/interface_rate.h"
#include "src/net/redirected_frames.h"
#include "src/net/udp/udp_io.h"
#include "src/verify/verified_sums.h"
#include "wire/codec.h"
#include "wire/mtu.h"

namespace netsum {
namespace {

Result<StripeOptions> stripe_options(const Membership& membership, size_t number, int rank,
                                     const CommunicatorOptions& options) {
  const StripeInfo& info = membership.stripes[number];
  const Result<Address> address = Address::parse(info.endpoint);
  if (!address.ok()) return address.status();
  StripeOptions stripe;
  stripe.address = address.value();
  stripe.embedded_in = info.embedded ? info.owner_rank : kNoRank;
  stripe.local = stripe.embedded_in == rank;
  stripe.job = info.job;
  stripe.epoch = membership.epoch;
  stripe.key = wire::stripe_key(membership.key, number);
  stripe.tag = packet_tag_of(membership.spec);
  if (options.verify != Verify::kPacket) stripe.sum_key = verify::sum_key(membership.sum_secret, number);
  stripe.predicts_scales = options.predict_scales;
  stripe.data_slots = membership.data_slots;
  stripe.scale_slots = membership.scale_slots;
  stripe.payload_bytes = membership.payload_bytes;
  stripe.sums_values = sums_values(membership.capabilities);
  stripe.sums_partial_floats = sums_partial_floats(membership.capabilities);
  if (adds_floats(membership.capabilities))
    stripe.floats = stripe.sums_values ? FloatSums::kAsTheyAre : FloatSums::kInFloat32;
  stripe.takes_empty_packets = membership.capabilities.empty_packets();
  stripe.takes_no_result = membership.capabilities.no_result();
  stripe.member_of_rank = membership.member_of_rank;
  if (!info.embedded) stripe.multicast_group = membership.multicast_group;
  return stripe;
}

// The multicast groups of the results of the stripes that `is_one` selects, on the interfaces that lead to the aggregators.
template <typename IsOne>
Result<std::vector<MulticastMembership>> groups_of(const std::vector<StripeOptions>& stripes, IsOne is_one) {
  std::vector<MulticastMembership> groups;
  for (size_t i = 0; i < stripes.size(); ++i) {
    const StripeOptions& stripe = stripes[i];
    if (!is_one(i) || !stripe.multicast_group.valid()) continue;
    Result<Address> local = local_address_towards(stripe.address);
    if (!local.ok()) return local.status();
    auto group = std::find_if(groups.begin(), groups.end(), [&](const MulticastMembership& other) {
      return other.multicast_group == stripe.multicast_group && other.interface == *local;
    });
    if (group == groups.end()) group = groups.insert(group, {stripe.multicast_group, *local, {}});
    group->sources.push_back(stripe.address);
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

// Of this host's link, in bits per second; 0: unknown.
double rate_of_link(const CommunicatorOptions& options, const Address& remote) {
  if (options.link_rate_bps != 0) return options.link_rate_bps;
  const Result<Address> local = local_address_towards(remote);
  const Result<double> reported = local.ok() ? interface_rate_bps(*local) : local.status();
  return reported.ok() ? *reported : 0;
}

EngineThreadCount threads_for(const WorkerOptions& worker, const CommunicatorOptions& options,
                              size_t ranks_here, const Address& remote) {
  EngineThreadCount::Wanted wanted;
  wanted.asked = options.engine_threads;
  wanted.stripes = worker.stripes.size();
  wanted.cores = usable_processors().size();
  wanted.ranks_here = ranks_here;
  wanted.one_queue = options.packet_io == PacketIoKind::kAfXdp;
  wanted.link_bps = rate_of_link(options, remote);
  return EngineThreadCount::choose(wanted);
}

// As NetworkPath.
std::string order_of_floats(const WorkerOptions& worker, const Memberships& memberships) {
  if (worker.encoding.fixed_floats || worker.encoding.lane_bits == 8) return "";
  for (const StripeOptions& stripe : worker.stripes)
    if (!stripe.sums_partial_floats || stripe.sum_key.has_value()) return "";
  std::string order = worker.stripes.front().sums_values ? "" : "partial sums of ";
  for (const StripeOptions& stripe : worker.stripes)
    if (stripe.floats == FloatSums::kNo) order = "small " + order;
  for (int rank = 0; rank < worker.world_size; ++rank)
    order += std::to_string(worker.stripes.front().member_of(rank)) + " ";
  // Hierarchies differ in shape, and which of them sums a chunk depends on the shares.
  if (!worker.stripes.front().sums_values && memberships.size() > 1)
    order += "in job " + std::to_string(memberships.front()->membership().succession_id);
  return order;
}

void add_note(const std::string& more, std::string* note) {
  if (!note->empty() && !more.empty()) *note += "; ";
  *note += more;
}

// Of monotonic_us().
int64_t realtime_ahead_us() {
  return wall_us() - monotonic_us();
}

// Makes the cores, among which the worker's stripes are divided, and their packet I/O.
Status open_cores(WorkerOptions worker, size_t count, const Address& remote,
                  const CommunicatorOptions& options, Shard* shard, NetworkPath* path,
                  std::vector<std::unique_ptr<EngineCore>>* cores) {
  const auto group = std::make_shared<CoreGroup>(divide_stripes(worker.stripe_weights, count));
  worker.group = group;
  worker.pace_bytes_per_s = static_cast<uint64_t>(options.pace_bps / 8);
  worker.phase_period_us = options.phase_period.count();
  worker.phase_offset_us = options.phase_offset.count() - realtime_ahead_us();
  const auto link_bytes_per_s =
      static_cast<uint64_t>(rate_of_link(options, remote) / 8 / static_cast<double>(group->cores()));
  const auto all_groups = multicast_groups(worker.stripes);
  if (!all_groups.ok()) return all_groups.status();
  path->note = describe(*all_groups);
  for (worker.core = 0; worker.core < group->cores(); ++worker.core) {
    auto groups = groups_of(worker.stripes, [&](size_t i) { return group->core_of(i) == worker.core; });
    if (!groups.ok()) return groups.status();
    InjectedFaults faults = options.inject;
    faults.seed += static_cast<uint64_t>(worker.rank) + (uint64_t{worker.core} << 32);
    const uint32_t max_packet = NETSUM_HEADER_BYTES + worker.stripes.front().payload_bytes;
    AttachToShard attach;
    for (size_t i = 0; i < worker.stripes.size() && shard != nullptr; ++i) {
      if (!worker.stripes[i].local || group->core_of(i) != worker.core) continue;
      attach = [shard](std::unique_ptr<PacketIo> io) { return shard->attach_member(std::move(io)); };
    }
    Result<WorkerIo> io = open_worker_io(options.packet_io, remote, max_packet, std::move(groups).value(),
                                         faults, options.spin, attach);
    if (!io.ok()) return io.status();
    if (worker.core == 0) add_note(io->note, &path->note);
    if (io->faults != nullptr) path->faults.push_back(io->faults);
    auto core = std::make_unique<NetworkCore>(std::move(io->io), worker, link_bytes_per_s);
    path->sent.push_back(&core->sent());
    path->received.push_back(&core->received());
    path->workers.push_back(&core->worker());
    path->packets.push_back(&core->packets());
    for (size_t i = 0; i < core->worker().stripe_count(); ++i) {
      const Stripe& stripe = core->worker().stripe(i);
      path->stripes[stripe.options().index].stripe = &stripe;
    }
    cores->push_back(std::move(core));
  }
  return Status();
}

}  // namespace

Status check_reception(const Memberships& memberships) {
  for (const auto& control : memberships) {
    const Membership& membership = control->membership();
    // Results by multicast pass switches, which deliver them by other means or filter them.
    if (!membership.dataplane.starts_with("xdp") || membership.multicast_group.valid()) continue;
    const Result<Address> aggregator = Address::parse(membership.stripes.front().endpoint);
    const Result<Address> local = aggregator.ok() ? local_address_towards(*aggregator) : aggregator.status();
    const Result<std::string> interface = local.ok() ? interface_with_address(*local) : local.status();
    const Status status = interface.ok() ? takes_redirected_frames(*interface) : Status();
    if (!status.ok())
      return Status(status.code(), "the results of the XDP aggregator at " + aggregator->to_string() +
                                       " do not arrive: " + status.message());
  }
  return Status();
}

Result<WorkerOptions> worker_of(const Memberships& memberships, WorkerOptions worker, uint32_t payload_bytes,
                                const CommunicatorOptions& options, std::vector<JobStripe>* job_stripes) {
  std::vector<const Membership*> all;
  for (const auto& control : memberships) all.push_back(&control->membership());
  Result<std::vector<JobStripe>> stripes = netsum::job_stripes(all);
  if (!stripes.ok()) return stripes.status();
  for (const JobStripe& one : *stripes) {
    Result<StripeOptions> stripe = stripe_options(*all[one.membership], one.number, worker.rank, options);
    if (!stripe.ok()) return stripe.status();
    if (payload_bytes != 0) stripe->payload_bytes = payload_bytes;
    worker.stripes.push_back(std::move(stripe).value());
    worker.stripe_weights.push_back(one.weight);
  }
  if (all.front()->plan.adapts()) worker.balance_period = kBalancePeriod;
  worker.lacks_words = who_lacks_words(memberships);
  const StripeOptions& first = worker.stripes.front();
  for (const StripeOptions& stripe : worker.stripes) {
    if (stripe.payload_bytes != first.payload_bytes || stripe.address.family != first.address.family) {
      return Status(ErrorCode::kInvalidArgument,
                    "the aggregators at " + first.address.to_string() + " and " + stripe.address.to_string() +
                        " differ in IP version or packet size: give all of them addresses of one IP version "
                        "and one --mtu");
    }
  }
  *job_stripes = std::move(stripes).value();
  return worker;
}

Result<std::vector<MulticastMembership>> multicast_groups(const std::vector<StripeOptions>& stripes) {
  return groups_of(stripes, [](size_t) { return true; });
}

Result<NetworkPath> open_path(const Memberships& memberships, WorkerOptions unconnected,
                              uint32_t payload_bytes, const CommunicatorOptions& options, size_t ranks_here,
                              Shard* shard, std::function<void(const Status&)> on_failed, TraceLog* trace) {
  NetworkPath path;
  std::vector<JobStripe> stripes;
  Result<WorkerOptions> described =
      worker_of(memberships, std::move(unconnected), payload_bytes, options, &stripes);
  if (!described.ok()) return described.status();
  WorkerOptions worker = std::move(described).value();
  for (const JobStripe& one : stripes) {
    if (worker.stripes[path.stripes.size()].local && shard != nullptr) {
      const auto last = std::make_shared<faults::LastContributions>();
      Result<ShardJob> installed =
          shard->install(memberships[one.membership]->membership(), one.number, worker.world_size, last);
      if (!installed.ok()) return installed.status();
      worker.last = last;
      path.shard_job = std::move(installed).value();
    }
    path.stripes.push_back({one});
  }
  const StripeOptions& first = worker.stripes.front();
  // This rank's own shard is on this host, so another stripe determines the interface.
  const auto elsewhere = std::find_if(worker.stripes.begin(), worker.stripes.end(),
                                      [](const StripeOptions& stripe) { return !stripe.local; });
  const Address& remote = (elsewhere != worker.stripes.end() ? *elsewhere : first).address;
  const EngineThreadCount threads = threads_for(worker, options, ranks_here, remote);
  path.order_of_floats = order_of_floats(worker, memberships);
  std::vector<std::unique_ptr<EngineCore>> cores;
  if (Status status = open_cores(std::move(worker), threads.count, remote, options, shard, &path, &cores);
      !status.ok())
    return status;
  add_note(threads.note, &path.note);
  if (path.order_of_floats.empty())
    add_note(
        "floating-point tensors are summed in block fixed point: elements much smaller than others in their "
        "packet lose digits",
        &path.note);
  path.engine = std::make_unique<Engine>(std::move(cores), std::move(on_failed), trace);
  if (Status status = path.engine->start(); !status.ok()) return status;
  return path;
}

}  // namespace netsum
