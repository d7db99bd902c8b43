#include "tools/netsum/place_report.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "src/plan/planner.h"
#include "tools/netsum/hostlist.h"

namespace netsum::tool {
namespace {

constexpr size_t kNone = plan::ClusterSwitch::kNone;
constexpr size_t kMostLines = 32;  // of racks and of shards, printed
constexpr int kPort = 5151;

const plan::ClusterSwitch& switch_at(const PlaceReport& report, size_t i) {
  return report.file.cluster.switches[i];
}

std::vector<std::string> host_names(const PlaceReport& report) {
  std::vector<std::string> names;
  for (const size_t host : report.placement.hosts) names.push_back(report.file.cluster.hosts[host].name);
  return names;
}

bool sums(const PlaceReport& report, size_t i) {
  const auto& all = report.placement.aggregators;
  return std::find(all.begin(), all.end(), i) != all.end();
}

// The nearest switch with an aggregator, at or above this one.
size_t aggregator_above(const PlaceReport& report, size_t i) {
  while (i != kNone && !sums(report, i)) i = switch_at(report, i).parent;
  return i;
}

// Ranks below each switch.
std::vector<size_t> below(const PlaceReport& report) {
  std::vector<size_t> counts = report.placement.counts;
  for (size_t i = counts.size(); i-- > 1;) counts[switch_at(report, i).parent] += counts[i];
  return counts;
}

// Every contribution goes up to the nearest aggregator, and its sum to the next one. None if no aggregator is above all.
std::optional<plan::Fraction> hierarchy_time(const PlaceReport& report) {
  const std::vector<size_t> ranks = below(report);
  std::vector<size_t> streams = report.placement.counts;
  plan::Fraction time;
  for (const size_t host : report.placement.hosts)
    time = std::max(time, plan::Fraction(1, report.file.cluster.hosts[host].rate));
  for (size_t i = ranks.size(); i-- > 0;) {
    if (ranks[i] == 0) continue;
    const bool all = ranks[i] == ranks.front();
    if (sums(report, i)) {
      if (all) return time;
      streams[i] = 1;
    }
    if (i == 0) break;
    time = std::max(
        time, plan::Fraction(static_cast<int64_t>(streams[i])) / plan::Fraction(switch_at(report, i).up));
    streams[switch_at(report, i).parent] += streams[i];
  }
  return {};
}

std::optional<double> shards_time(const PlaceReport& report) {
  const plan::Placement& placement = report.placement;
  if (placement.hosts.size() < 2 || placement.hosts.size() > plan::kMaxRanks) return {};
  plan::Topology topology;
  const auto link = [](int64_t rate) {
    return plan::Link{static_cast<double>(rate), static_cast<double>(rate)};
  };
  const std::vector<size_t> ranks = below(report);
  std::vector<int> rack(ranks.size(), plan::kNoRack);
  for (size_t i = 1; i < ranks.size(); ++i) {
    if (ranks[i] == 0) continue;
    rack[i] = static_cast<int>(topology.racks.size());
    topology.racks.push_back(
        {switch_at(report, i).name, link(switch_at(report, i).up), rack[switch_at(report, i).parent]});
  }
  for (const size_t host : placement.hosts) {
    const plan::ClusterHost& each = report.file.cluster.hosts[host];
    topology.ranks.push_back({.name = each.name, .link = link(each.rate), .rack = rack[each.at]});
  }
  const Result<plan::Plan> plan = make_plan(topology);
  if (!plan.ok()) return {};  // e.g. rates below those that a job may declare
  return plan->s_per_byte / 8;
}

double time_s(const PlaceReport& report, const plan::Fraction& time) {
  return time.to_double() * static_cast<double>(report.job.gradient_bits);
}

std::string time_row(const std::string& name, double s, double best, const char* how) {
  return fmt::format("  {:<28}  {:>10.4g}  {:>6.2f}  {}\n", name, s, best > 0 ? s / best : 1, how);
}

std::string placement_times(const PlaceReport& report) {
  const double best = time_s(report, report.placement.time);
  std::string text = fmt::format("\n  {:<28}  {:>10}  {:>6}\n", "ALL-REDUCE", "S", "RATIO");
  text += time_row("best trees", best, best,
                   "what the placement is made for; `--out graph | netsum plan` shows them");
  if (report.hierarchy)
    text += time_row("hierarchy of aggregators", time_s(report, *report.hierarchy), best,
                     "netsum runs it: `--out aggregators`");
  if (report.shards_s) {
    text += time_row("embedded shards", *report.shards_s * static_cast<double>(report.job.gradient_bits),
                     best, "netsum runs it without aggregators");
  }
  text +=
      time_row("ring in this order of ranks", time_s(report, report.placement.ring), best, "for comparison");
  return text;
}

std::string racks(const PlaceReport& report) {
  std::vector<size_t> free(report.file.cluster.switches.size());
  for (const plan::ClusterHost& host : report.file.cluster.hosts) free[host.at] += host.free ? 1 : 0;
  std::string text = fmt::format("\n  {:<28}  {:>10}  {}\n", "RACK", "RANKS", "HOSTS");
  size_t printed = 0, rank = 0;
  const std::vector<std::string> names = host_names(report);
  while (rank < names.size()) {
    const size_t rack = report.file.cluster.hosts[report.placement.hosts[rank]].at;
    const size_t count = report.placement.counts[rack];
    if (printed++ < kMostLines) {
      const auto first = names.begin() + static_cast<std::ptrdiff_t>(rank);
      text += fmt::format("  {:<28}  {:>10}  {}\n", switch_at(report, rack).name,
                          fmt::format("{} of {}", count, free[rack]),
                          format_hostlist({first, first + static_cast<std::ptrdiff_t>(count)}));
    }
    rank += count;
  }
  if (printed > kMostLines) text += fmt::format("  and {} more\n", printed - kMostLines);
  return text;
}

std::string shards(const PlaceReport& report) {
  if (report.job.shards.empty()) return "";
  std::string text = fmt::format("\n  {:<28}  {:>10}  {}\n", "SHARD", "RANK", "FROM");
  for (size_t i = 0; i < std::min(report.job.shards.size(), kMostLines); ++i) {
    const plan::DataShard& shard = report.job.shards[i];
    text += fmt::format("  {:<28}  {:>10}  {}\n", shard.name, report.placement.shard_rank[i],
                        shard.replicas[report.placement.shard_replica[i]].name);
  }
  if (report.job.shards.size() > kMostLines)
    text += fmt::format("  and {} more\n", report.job.shards.size() - kMostLines);
  return text;
}

std::string proof(const plan::Placement& placement) {
  if (placement.all_tried) return "no placement is faster: all counts of ranks in the racks were considered";
  if (placement.total_s == placement.bound_s) return "no placement is faster: it takes as long as the bound";
  return fmt::format("{:.2g} % above a bound, {:.6g} s: no placement takes less", 100 * placement.distance(),
                     placement.bound_s.to_double());
}

std::string link_rate_text(int64_t rate) {
  return fmt::format("{:.10g}mbit", static_cast<double>(rate) / 1e6);
}

std::string quoted_names(const std::vector<std::string>& names, const char* before) {
  std::string text;
  for (const std::string& name : names) text += fmt::format("{}'{}'\n", before, name);
  return text;
}

}  // namespace

PlaceReport place_report(ClusterFile file, plan::PlacementJob job, plan::Placement placement) {
  PlaceReport report{std::move(file), std::move(job), std::move(placement), {}, {}};
  report.hierarchy = hierarchy_time(report);
  report.shards_s = shards_time(report);
  return report;
}

std::string place_text(const PlaceReport& report) {
  const plan::Placement& placement = report.placement;
  const plan::Cluster& cluster = report.file.cluster;
  const auto racks_used =
      std::count_if(placement.counts.begin(), placement.counts.end(), [](size_t n) { return n > 0; });
  std::string text =
      fmt::format("{} ranks on {} hosts below {} switches, in {} racks\n", placement.hosts.size(),
                  cluster.hosts.size(), cluster.switches.size(), racks_used);
  std::vector<std::string> aggregators;
  for (const size_t each : placement.aggregators) aggregators.push_back(switch_at(report, each).name);
  text += fmt::format("the job takes {:.6g} s{}; {}\n", placement.total_s.to_double(),
                      placement.data_ns > 0 ? fmt::format(", and of these {:.4g} s to move data",
                                                          static_cast<double>(placement.data_ns) * 1e-9)
                                            : "",
                      proof(placement));
  text += "switches that sum: " + (aggregators.empty() ? "none" : format_hostlist(aggregators)) + "\n";
  if (!placement.within_tier) {
    text += fmt::format(
        "no switch of tier {} has enough free hosts below it, so the ranks are in a larger part\n",
        report.job.tier);
  }
  if (report.file.spares)
    text += "spare hosts and switches whose sums are limited are not used; see netsum plan\n";
  return text + placement_times(report) + racks(report) + shards(report);
}

nlohmann::json place_json(const PlaceReport& report) {
  const plan::Placement& placement = report.placement;
  const auto exact = [](const plan::Fraction& time) {
    return nlohmann::json{{"exact", time.text()}, {"s", time.to_double()}};
  };
  nlohmann::json json = {{"total", exact(placement.total_s)},
                         {"bound", exact(placement.bound_s)},
                         {"distance", placement.distance()},
                         {"all_tried", placement.all_tried},
                         {"within_tier", placement.within_tier},
                         {"all_reduce", exact(placement.time * plan::Fraction(report.job.gradient_bits))},
                         {"ring", exact(placement.ring * plan::Fraction(report.job.gradient_bits))},
                         {"data_ns", placement.data_ns},
                         {"hosts", host_names(report)},
                         {"aggregators", nlohmann::json::array()},
                         {"racks", nlohmann::json::array()},
                         {"shards", nlohmann::json::array()}};
  if (report.hierarchy)
    json["hierarchy"] = exact(*report.hierarchy * plan::Fraction(report.job.gradient_bits));
  if (report.shards_s)
    json["embedded_shards_s"] = *report.shards_s * static_cast<double>(report.job.gradient_bits);
  for (const size_t each : placement.aggregators) json["aggregators"].push_back(switch_at(report, each).name);
  for (size_t i = 0; i < placement.counts.size(); ++i) {
    if (placement.counts[i] > 0)
      json["racks"].push_back({{"name", switch_at(report, i).name}, {"ranks", placement.counts[i]}});
  }
  for (size_t i = 0; i < report.job.shards.size(); ++i) {
    const plan::DataShard& shard = report.job.shards[i];
    json["shards"].push_back({{"name", shard.name},
                              {"rank", placement.shard_rank[i]},
                              {"from", shard.replicas[placement.shard_replica[i]].name}});
  }
  return json;
}

std::string aggregator_commands(const PlaceReport& report) {
  std::string text;
  if (!report.hierarchy)
    text =
        "# No aggregator is above all ranks, so netsum cannot run these as a hierarchy: allow a switch above "
        "them to sum.\n";
  for (const size_t each : report.placement.aggregators) {
    const std::string& name = switch_at(report, each).name;
    const size_t above = each == 0 ? kNone : aggregator_above(report, switch_at(report, each).parent);
    text += fmt::format("netsum aggregator --listen {}:{} --in-switch", name, kPort);
    if (above != kNone)
      text += fmt::format(" --parent {}:{} --link-rate {}", switch_at(report, above).name, kPort,
                          link_rate_text(switch_at(report, each).up));
    text += "\n";
  }
  for (size_t rank = 0; rank < report.placement.hosts.size(); ++rank) {
    const plan::ClusterHost& host = report.file.cluster.hosts[report.placement.hosts[rank]];
    const size_t above = aggregator_above(report, host.at);
    if (above != kNone)
      text += fmt::format("# rank {} on {}: NETSUM_AGGREGATOR={}:{}\n", rank, host.name,
                          switch_at(report, above).name, kPort);
  }
  return text;
}

std::string place_hostfile(const PlaceReport& report) {
  std::string text;
  for (const std::string& name : host_names(report)) text += name + "\n";
  return text;
}

std::string place_nodelist(const PlaceReport& report) {
  return format_hostlist(host_names(report)) + "\n";
}

std::string place_slurm(const PlaceReport& report) {
  return fmt::format(
      "#SBATCH --nodes={0} --ntasks={0} --ntasks-per-node=1\n#SBATCH --nodelist={1}\n"
      "# Ranks in this order: export SLURM_HOSTFILE=hosts.txt, made by --out hostfile, and\n"
      "# srun --distribution=arbitrary --ntasks={0} ...\n",
      report.placement.hosts.size(), format_hostlist(host_names(report)));
}

std::string place_kueue(const PlaceReport& report) {
  return fmt::format(
             "topologyAssignment:\n  levels:\n    - kubernetes.io/hostname\n  slices:\n    - domainCount: "
             "{}\n"
             "      podCounts:\n        universal: 1\n      valuesPerLevel:\n        - individual:\n         "
             "   roots:\n",
             report.placement.hosts.size()) +
         quoted_names(host_names(report), "              - ");
}

std::string place_volcano(const PlaceReport& report) {
  const std::vector<size_t> ranks = below(report);
  const std::vector<size_t> tiers = report.file.cluster.tiers();
  size_t tier = tiers.front();
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == ranks.front()) tier = std::min(tier, tiers[i]);
  }
  std::string text =
      fmt::format("spec:\n  networkTopology:\n    mode: hard\n    highestTierAllowed: {}\n  tasks:\n", tier);
  size_t rank = 0;
  for (const std::string& name : host_names(report)) {
    text += fmt::format(
        "    - name: rank-{}\n      replicas: 1\n      template:\n        spec:\n          nodeSelector:\n"
        "            kubernetes.io/hostname: '{}'\n",
        rank++, name);
  }
  return text;
}

std::string place_graph(const PlaceReport& report) {
  const std::vector<size_t> ranks = below(report);
  std::string hosts = "hosts:\n", switches = "switches:\n", links = "links:\n";
  const auto link = [&](const std::string& name, size_t up, int64_t rate) {
    links += fmt::format("  - {{between: ['{}', '{}'], rate: {:.12g}Mbit/s}}\n", name,
                         switch_at(report, up).name, static_cast<double>(rate) / 1e6);
  };
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == 0) continue;
    switches += fmt::format("  - {{name: '{}'{}}}\n", switch_at(report, i).name,
                            sums(report, i) ? ", sums: true" : "");
    if (i > 0) link(switch_at(report, i).name, switch_at(report, i).parent, switch_at(report, i).up);
  }
  for (const size_t host : report.placement.hosts) {
    const plan::ClusterHost& each = report.file.cluster.hosts[host];
    hosts += fmt::format("  - {{name: '{}'}}\n", each.name);
    link(each.name, each.at, each.rate);
  }
  return hosts + switches + links;
}

}  // namespace netsum::tool
