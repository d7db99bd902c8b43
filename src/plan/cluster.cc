#include "src/plan/cluster.h"

#include <algorithm>
#include <unordered_map>

#include "src/plan/fold.h"

namespace netsum::plan {
namespace {

Status check_link_rate(int line, const std::string& what, int64_t rate) {
  if (rate > 0 && rate <= kMostRate) return {};
  return invalid_at(line, what + " has the rate " + std::to_string(rate) + "; give a rate from 1 to " +
                              std::to_string(kMostRate) + " bit/s");
}

}  // namespace

std::vector<std::vector<size_t>> Cluster::children() const {
  std::vector<std::vector<size_t>> found(switches.size());
  for (size_t i = 1; i < switches.size(); ++i) found[switches[i].parent].push_back(i);
  return found;
}

std::vector<size_t> Cluster::tiers() const {
  std::vector<size_t> tiers(switches.size(), 1);
  for (size_t i = switches.size(); i-- > 1;) {
    size_t& above = tiers[switches[i].parent];
    above = std::max(above, tiers[i] + 1);
  }
  return tiers;
}

Status check(const Cluster& cluster) {
  if (cluster.switches.empty() || cluster.hosts.empty())
    return invalid_at(0, "the cluster has no host; add at least one, below a switch");
  if (cluster.hosts.size() > kMostHosts || cluster.switches.size() > kMostHosts) {
    return {ErrorCode::kResourceExhausted, "the cluster has " + std::to_string(cluster.hosts.size()) +
                                               " hosts and " + std::to_string(cluster.switches.size()) +
                                               " switches; place in a part of it"};
  }
  std::unordered_map<std::string, int> lines;
  const auto claim = [&](const std::string& name, int line) -> Status {
    const auto [known, fresh] = lines.emplace(name, line);
    if (fresh) return {};
    return invalid_at(line,
                      "the name '" + name + "' is given twice" +
                          (known->second > 0 ? ", first in line " + std::to_string(known->second) : "") +
                          "; rename one");
  };
  for (size_t i = 0; i < cluster.switches.size(); ++i) {
    const ClusterSwitch& each = cluster.switches[i];
    if (Status s = claim(each.name, each.line); !s.ok()) return s;
    if ((i == 0) != (each.parent == kNone) || (i > 0 && each.parent >= i))
      return invalid_at(each.line,
                        "switch '" + each.name + "' is not below the root; link it to the other switches");
    if (i == 0) continue;
    if (Status s = check_link_rate(each.line, "the uplink of '" + each.name + "'", each.up); !s.ok())
      return s;
  }
  for (const ClusterHost& each : cluster.hosts) {
    if (Status s = claim(each.name, each.line); !s.ok()) return s;
    if (each.at >= cluster.switches.size())
      return invalid_at(each.line, "host '" + each.name + "' is at no switch; link it to one");
    if (Status s = check_link_rate(each.line, "host '" + each.name + "'", each.rate); !s.ok()) return s;
  }
  return {};
}

Result<Cluster> cluster_of(const Graph& graph) {
  if (Status s = check(graph); !s.ok()) return s;
  if (!symmetric(graph)) {
    return Status(ErrorCode::kUnsupported,
                  "the links' rates in both directions differ; placement takes links that are equal in both");
  }
  const std::optional<Fold> tree = fold(graph);
  if (!tree) {
    return Status(ErrorCode::kUnsupported,
                  "hosts are linked to each other; placement takes hosts below a tree of switches");
  }
  Cluster cluster;
  std::vector<size_t> number(tree->nodes.size(), kNone);
  for (size_t i = 0; i < tree->nodes.size(); ++i) {
    const FoldNode& node = tree->nodes[i];
    const Vertex& vertex = graph.vertices[node.members.front()];
    const size_t above = node.parent == kNone ? kNone : number[node.parent];
    const auto rate = static_cast<int64_t>(std::min<Integer>(node.up, kMostRate));
    if (node.is_rank) {
      if (above == kNone)
        return invalid_at(vertex.line, "host '" + vertex.name + "' is at no switch; link it to one");
      cluster.hosts.push_back({vertex.name, above, rate, true, vertex.line});
    } else {
      number[i] = cluster.switches.size();
      cluster.switches.push_back({vertex.name, above, rate, node.aggregator != kNone, vertex.line});
    }
  }
  // The tree numbers hosts by depth; people expect the order of the file.
  std::unordered_map<std::string, size_t> order;
  for (size_t i = 0; i < graph.vertices.size(); ++i) order[graph.vertices[i].name] = i;
  std::sort(cluster.hosts.begin(), cluster.hosts.end(),
            [&](const ClusterHost& a, const ClusterHost& b) { return order[a.name] < order[b.name]; });
  if (Status s = check(cluster); !s.ok()) return s;
  return cluster;
}

Graph graph_of(const Cluster& cluster, const std::vector<size_t>& hosts,
               const std::vector<size_t>& aggregators) {
  std::vector<bool> used(cluster.switches.size());
  for (const size_t host : hosts) {
    for (size_t at = cluster.hosts[host].at; at != kNone; at = cluster.switches[at].parent) used[at] = true;
  }
  Graph graph;
  std::vector<size_t> vertex(cluster.switches.size(), kNone);
  for (size_t i = 0; i < cluster.switches.size(); ++i) {
    if (!used[i]) continue;
    vertex[i] = graph.add(cluster.switches[i].name, VertexKind::kSwitch);
    if (i > 0) graph.link(vertex[i], vertex[cluster.switches[i].parent], cluster.switches[i].up);
  }
  for (const size_t host : hosts) {
    const size_t rank = graph.add(cluster.hosts[host].name, VertexKind::kRank);
    graph.link(rank, vertex[cluster.hosts[host].at], cluster.hosts[host].rate);
  }
  for (const size_t at : aggregators) {
    if (vertex[at] == kNone) continue;
    const size_t inside = graph.add(cluster.switches[at].name + " (sums)", VertexKind::kAggregator);
    graph.link(vertex[at], inside, kUnlimited);
  }
  return graph;
}

}  // namespace netsum::plan
