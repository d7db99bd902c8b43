#include "tools/netsum/cluster_file.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <unordered_map>

#include "src/base/text.h"
#include "tools/netsum/plan_file.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {
namespace {

constexpr size_t kMostClusterBytes = 8 << 20;

[[noreturn]] void fail(const std::string& file, int line, const std::string& message) {
  throw UsageError(file + (line > 0 ? ":" + std::to_string(line) : "") + ": " + printable(message));
}

// "line 7: ..." of the planner becomes "file:7: ...".
[[noreturn]] void fail_located(const std::string& file, const std::string& message) {
  constexpr std::string_view kLine = "line ";
  if (message.starts_with(kLine)) throw UsageError(file + ":" + printable(message.substr(kLine.size())));
  fail(file, 0, message);
}

std::string read_cluster(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string text(kMostClusterBytes + 1, '\0');
  if (!stream) fail(file, 0, "cannot be opened; give the path of a file that describes the cluster");
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad()) fail(file, 0, "cannot be read");
  text.resize(static_cast<size_t>(stream.gcount()));
  if (text.size() > kMostClusterBytes) {
    fail(file, 1 + static_cast<int>(std::count(text.begin(), text.end(), '\n')),
         "the file is larger than 8 MiB; describe a part of the cluster");
  }
  return text;
}

bool has(const std::string& text, std::string_view word) {
  return text.find(word) != std::string::npos;
}

ClusterFormat guess(const std::string& text) {
  if (has(text, "kind: HyperNode")) return ClusterFormat::kVolcano;
  if (has(text, "kind: Topology")) return ClusterFormat::kKueue;
  if (has(text, "\"instances\"")) return ClusterFormat::kTopograph;
  if (has(text, "switchguid=") || has(text, "caguid=")) return ClusterFormat::kIbnetdiscover;
  if (has(text, "SwitchName=") || has(text, "BlockName=")) return ClusterFormat::kSlurm;
  if (has(text, "- topology:")) return ClusterFormat::kSlurmYaml;
  return ClusterFormat::kNetsum;
}

NamedTree parse_tree(const std::string& text, const std::string& file, ClusterFormat format) {
  switch (format) {
    case ClusterFormat::kSlurmYaml:
      return parse_slurm_yaml(text, file);
    case ClusterFormat::kKueue:
      return parse_kueue(text, file);
    case ClusterFormat::kVolcano:
      return parse_volcano(text, file);
    case ClusterFormat::kTopograph:
      return parse_topograph(text, file);
    default:
      return parse_slurm(text, file);
  }
}

ClusterFile of_graph(const plan::Graph& graph, const std::string& file) {
  Result<plan::Cluster> cluster = plan::cluster_of(graph);
  if (!cluster.ok()) fail_located(file, cluster.status().message());
  ClusterFile found{.cluster = std::move(cluster).value()};
  const auto aggregators =
      std::count_if(graph.vertices.begin(), graph.vertices.end(),
                    [](const auto& vertex) { return vertex.kind == plan::VertexKind::kAggregator; });
  found.spares = aggregators > std::count_if(found.cluster.switches.begin(), found.cluster.switches.end(),
                                             [](const auto& each) { return each.sums; });
  return found;
}

ClusterFile of_input(const PlanInput& input, const std::string& file) {
  if (input.graph) return of_graph(*input.graph, file);
  const Result<plan::Graph> graph = plan::graph_of(*input.topology);
  if (!graph.ok()) fail(file, 0, graph.status().message());
  plan::Graph named = *graph;
  // The switch that the file does not name; its own name is no word of a command.
  named.vertices.front().name = "network";
  for (plan::Vertex& vertex : named.vertices) {
    if (&vertex != &named.vertices.front() && vertex.name == "network")
      named.vertices.front().name = "network.";
  }
  return of_graph(named, file);
}

}  // namespace

ClusterFile load_cluster(const std::string& file, ClusterFormat format, const std::vector<int64_t>& rates) {
  const std::string text = read_cluster(file);
  if (format == ClusterFormat::kAuto) format = guess(text);
  ClusterFile found;
  if (format == ClusterFormat::kNetsum) {
    found = of_input(load_plan_input(file), file);
  } else if (format == ClusterFormat::kIbnetdiscover) {
    found = of_graph(parse_ibnetdiscover(text, file), file);
  } else {
    NamedTree tree = parse_tree(text, file, format);
    found.cluster = build_cluster(tree, rates, file);
    found.levels = std::move(tree.levels);
  }
  found.format = format;
  return found;
}

plan::Cluster build_cluster(const NamedTree& tree, const std::vector<int64_t>& rates,
                            const std::string& file) {
  constexpr size_t kNone = plan::ClusterSwitch::kNone;
  if (tree.switches.empty()) fail(file, 1, "the file names no switch; it is empty, or of another format");
  if (rates.empty()) {
    fail(file, 1,
         "the file has no rates; give them with --rates, of a host's link, a rack's uplink, and so on "
         "upwards, such as --rates 100G,400G");
  }
  std::unordered_map<std::string, size_t> number;
  for (size_t i = 0; i < tree.switches.size(); ++i) {
    const auto [known, fresh] = number.emplace(tree.switches[i].name, i);
    if (!fresh) {
      fail(file, tree.switches[i].line,
           "the name '" + tree.switches[i].name + "' is given twice, first in line " +
               std::to_string(tree.switches[known->second].line) + "; rename one");
    }
  }
  std::vector<size_t> parent(tree.switches.size(), kNone);
  for (size_t i = 0; i < tree.switches.size(); ++i) {
    for (const NamedPart& child : tree.switches[i].switches) {
      const auto known = number.find(child.name);
      if (known == number.end())
        fail(file, child.line, "there is no switch '" + child.name + "'; add it, or leave it out here");
      if (parent[known->second] != kNone) {
        fail(file, child.line,
             "switch '" + child.name + "' is below '" + tree.switches[i].name + "' and below '" +
                 tree.switches[parent[known->second]].name + "'; a tree has one of them");
      }
      parent[known->second] = i;
    }
  }
  size_t root = kNone;
  for (size_t i = 0; i < parent.size(); ++i) {
    if (parent[i] != kNone) continue;
    if (root != kNone) {
      fail(file, tree.switches[i].line,
           "'" + tree.switches[i].name + "' and '" + tree.switches[root].name +
               "' are not connected; add a switch above both");
    }
    root = i;
  }
  if (root == kNone)
    fail(file, tree.switches.front().line,
         "every switch is below another one: they are in a loop; leave out one link");
  plan::Cluster cluster;
  std::vector<size_t> order = {root}, at(parent.size(), kNone);
  for (size_t next = 0; next < order.size(); ++next) {
    const NamedSwitch& each = tree.switches[order[next]];
    at[order[next]] = next;
    const size_t above = parent[order[next]];
    cluster.switches.push_back(
        {.name = each.name, .parent = above == kNone ? kNone : at[above], .line = each.line});
    for (const NamedPart& child : each.switches) order.push_back(number[child.name]);
  }
  for (size_t i = 0; i < parent.size(); ++i) {
    if (at[i] == kNone)
      fail(file, tree.switches[i].line,
           "switch '" + tree.switches[i].name + "' is in a loop; leave out one link");
  }
  const std::vector<size_t> tiers = cluster.tiers();
  for (size_t i = 1; i < cluster.switches.size(); ++i)
    cluster.switches[i].up = rates[std::min(tiers[i], rates.size() - 1)];
  for (size_t i = 0; i < tree.switches.size(); ++i) {
    for (const NamedPart& host : tree.switches[i].hosts)
      cluster.hosts.push_back({host.name, at[i], rates.front(), true, host.line});
  }
  if (const Status status = check(cluster); !status.ok()) fail_located(file, status.message());
  return cluster;
}

}  // namespace netsum::tool
