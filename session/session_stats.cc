#include "session/session_stats.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <utility>

#include "wire/codec.h"
#include "wire/mtu.h"

namespace netsum {
namespace {

using Drops = std::array<uint64_t, NETSUM_DROP_COUNT>;

void add_stripe(const Stripe& stripe, uint64_t overhead, CommunicatorStats* stats, Drops* drops,
                std::set<int>* waits_for) {
  const StripeCounters& counters = stripe.counters();
  CommunicatorStats::Stripe one;
  one.address = stripe.options().address.to_string();
  one.local = stripe.options().local;
  one.share = static_cast<double>(counters.share.get()) / static_cast<double>(kWholeShare);
  one.bytes_sent = counters.bytes_sent.get() + overhead * counters.packets_sent.get();
  one.bytes_received = counters.bytes_received.get() + overhead * counters.packets_received.get();
  stats->bytes_sent += one.bytes_sent;
  stats->bytes_received += one.bytes_received;
  stats->packets_sent += counters.packets_sent.get();
  stats->packets_received += counters.packets_received.get();
  stats->retransmissions += counters.retransmissions.get();
  stats->probes += counters.probes.get();
  stats->zero_chunks += counters.zero_chunks.get();
  stats->scales_predicted += counters.scales_predicted.get();
  stats->scales_mispredicted += counters.scales_mispredicted.get();
  stats->sums_verified += counters.sums_verified.get();
  stats->sums_refused += counters.sums_refused.get();
  stats->packets_dropped += counters.dropped.get();
  stats->srtt_us = std::max(stats->srtt_us, static_cast<double>(counters.srtt_us.get()));
  stats->stripes.push_back(std::move(one));
  for (int rank = 0; rank < stripe.options().world_size; ++rank) {
    const uint16_t member = stripe.options().member_of(rank);
    if (member < NETSUM_MAX_MEMBERS && (counters.waiting_for.get() >> member & 1))
      waits_for->insert(stripe.options().name_of(rank));
  }
  counters.round_trip.add_to(&stats->round_trip);
  for (size_t reason = 1; reason < drops->size(); ++reason) (*drops)[reason] += counters.drops[reason].get();
}

void add_network_stats(const NetworkPath& network, const Shard* shard, CommunicatorStats* stats) {
  const int ip_family = network.stripes.front().stripe->options().address.family;
  const auto overhead = static_cast<uint64_t>(wire::overhead_bytes(ip_family));
  std::set<int> waits_for;
  Drops drops{};
  for (const NetworkPath::OneStripe& one : network.stripes)
    add_stripe(*one.stripe, overhead, stats, &drops, &waits_for);
  for (const PacketIoCounters* packets : network.packets) stats->sends_refused += packets->send_refused.get();
  for (const bursts::Meter* meter : network.sent) meter->add_to(&stats->sent);
  for (const bursts::Meter* meter : network.received) meter->add_to(&stats->received);
  stats->share_changes = network.workers.front()->share_changes().get();
  for (size_t reason = 1; reason < drops.size(); ++reason) {
    stats->drops.push_back({std::string(wire::drop_name(static_cast<int>(reason))), drops[reason]});
  }
  if (!network.faults.empty()) {
    uint64_t lost = 0;
    for (const LossyIo* faults : network.faults) lost += faults->receive_counters().lost.get();
    stats->drops.push_back({"injected", lost});
    stats->packets_dropped += lost;
  }
  stats->waiting_for.assign(waits_for.begin(), waits_for.end());
  if (shard != nullptr) {
    const auto of = shard->counters(
        {"bytes_received", "packets_received", "bytes_sent", "packets_sent", "sends_refused"});
    stats->shard_bytes_received = of[0] + overhead * of[1];
    stats->shard_bytes_sent = of[2] + overhead * of[3];
    stats->sends_refused += of[4];
  }
}

// It has lost most of its planned share.
bool is_away(const NetworkPath& network, const NetworkPath::OneStripe& one) {
  double all = 0;
  for (const NetworkPath::OneStripe& each : network.stripes) all += each.weight;
  const double share = static_cast<double>(one.stripe->counters().share.get()) / kWholeShare;
  return 2 * share <= one.weight / all;
}

std::string describe_moved(const PathDescription& what) {
  std::vector<std::string> away;
  for (const int rank : ranks_away(what.path.network())) away.push_back("rank " + std::to_string(rank));
  for (const NetworkPath::OneStripe& one : what.path.network().stripes) {
    const std::string aggregator =
        one.membership < what.aggregators.size() ? what.aggregators[one.membership] : "";
    if (one.stripe->options().embedded_in == kNoRank && is_away(what.path.network(), one) &&
        std::find(away.begin(), away.end(), aggregator) == away.end())
      away.push_back(aggregator);
  }
  std::string text;
  for (const std::string& one : away)
    text += (text.empty() ? ", away from bad links or slow hosts: " : ", ") + one;
  return text;
}

std::string describe_network(const PathDescription& what) {
  const NetworkPath& network = what.path.network();
  std::string note = network.workers.front()->verifies_sums() ? "; the ranks verify every sum" : "";
  if (network.stripes.front().stripe->options().tag == NETSUM_TAG_COOKIE)
    note += ", and packets have no tags";
  if (!network.note.empty()) note += "; " + network.note;
  const std::string& plan = what.job.front()->membership().plan.text();
  std::string shares = plan.empty() ? "" : "; " + plan;
  if (const uint64_t changes = network.workers.front()->share_changes().get(); changes > 0)
    shares += "; the shares have been corrected " + std::to_string(changes) +
              (changes == 1 ? " time" : " times") + describe_moved(what);
  if (what.aggregators.empty()) {
    return "summed by " + std::to_string(network.stripes.size()) +
           " embedded shards, each in a different rank: " +
           (what.why_shards.empty() ? "no aggregator is configured" : what.why_shards) + shares + note;
  }
  std::string text = "summed in the network by " + std::to_string(what.job.size()) +
                     (what.job.size() == 1 ? " aggregator (" : " aggregators (");
  for (size_t i = 0; i < what.job.size(); ++i) {
    const Membership& membership = what.job[i]->membership();
    const auto cores = std::count_if(membership.stripes.begin(), membership.stripes.end(),
                                     [](const StripeInfo& stripe) { return !stripe.embedded; });
    text += (i > 0 ? ", " : "") + what.aggregators[i] + ": " + membership.dataplane + ", " +
            std::to_string(cores) + (cores == 1 ? " core" : " cores");
  }
  text += ")";
  const auto shards = static_cast<size_t>(
      std::count_if(network.stripes.begin(), network.stripes.end(), [&](const JobStripe& stripe) {
        return what.job[stripe.membership]->membership().stripes[stripe.number].embedded;
      }));
  if (shards > 0) text += " and " + std::to_string(shards) + " embedded shards, each in a different rank";
  return text + shares + note;
}

const std::string& place_of(const PathDescription& what, const JobStripe& stripe) {
  static const std::string kShards = "hosts";
  const bool embedded = what.job[stripe.membership]->membership().stripes[stripe.number].embedded;
  return embedded ? kShards : what.aggregators[stripe.membership];
}

}  // namespace

std::vector<std::string> places_of(const PathDescription& what) {
  std::vector<std::string> places;
  if (what.path.network().engine == nullptr) return places;
  for (const JobStripe& stripe : what.path.network().stripes) {
    const std::string& place = place_of(what, stripe);
    if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
  }
  return places;
}

std::vector<CommunicatorStats::WrongSums> wrong_sums_of(const PathDescription& what) {
  std::vector<CommunicatorStats::WrongSums> found;
  if (what.path.network().engine == nullptr) return found;
  for (const NetworkPath::OneStripe& one : what.path.network().stripes) {
    const uint64_t refused = one.stripe->counters().sums_refused.get();
    const StripeOptions& options = one.stripe->options();
    if (refused > 0)
      found.push_back({place_of(what, one), options.index, options.address.to_string(), refused});
  }
  return found;
}

void add_path_stats(const DataPath& path, const Shard* shard, CommunicatorStats* stats) {
  if (const HostCounters* counters = path.host_counters(); counters != nullptr) {
    stats->shared_memory_bytes_written = counters->bytes_staged.get();
    stats->shared_memory_bytes_read = counters->bytes_taken.get();
  }
  if (path.network().engine != nullptr) add_network_stats(path.network(), shard, stats);
  path.engine()->completed().add_to(&stats->completed);
  path.engine()->failed().add_to(&stats->failed);
}

std::vector<int> ranks_away(const NetworkPath& network) {
  std::vector<int> ranks;
  // They are corrected only if there are several stripes.
  if (network.workers.empty() || network.workers.front()->share_changes().get() == 0) return ranks;
  for (const NetworkPath::OneStripe& one : network.stripes) {
    const int rank = one.stripe->options().embedded_in;
    if (rank != kNoRank && is_away(network, one)) ranks.push_back(one.stripe->options().name_of(rank));
  }
  return ranks;
}

std::string describe(const PathDescription& what) {
  if (what.path.host_counters() == nullptr) return describe_network(what);
  const Placement& placement = what.path.placement();
  const size_t ranks = placement.local_ranks().size();
  std::string text = ranks == 1
                         ? "this rank is alone on its host"
                         : "the " + std::to_string(ranks) + " ranks of this host are summed in shared memory";
  if (placement.hosts.size() == 1) {
    const uint64_t large = what.path.host_counters()->large_inputs.get();
    return text +
           (large == 1 ? ", large tensors in place"
            : large == 2
                ? ", large tensors copied, because the kernel does not let ranks read each other's memory"
                : "") +
           "; no other host takes part";
  }
  text += "; " + std::to_string(placement.hosts.size()) + " hosts with " + std::to_string(placement.owners) +
          (placement.owners == 1 ? " rank" : " ranks") + " each in the network, ";
  return text + (what.path.network().engine != nullptr ? describe_network(what) : "not this one");
}

}  // namespace netsum
