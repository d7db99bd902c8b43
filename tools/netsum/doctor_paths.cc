#include "tools/netsum/doctor_paths.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "netsum/status.h"
#include "src/base/text.h"
#include "src/faults/path_faults.h"
#include "src/net/address.h"
#include "tools/netsum/graph_file.h"

namespace netsum::tool {
namespace {

constexpr size_t kFar = SIZE_MAX;
// Of loss that all paths have: worth a word.
constexpr double kNoticeable = 1e-3;
// Of these, pairs are tried for one that tells two links apart.
constexpr size_t kMostProbes = 64;

std::string without_port(const std::string& address) {
  return address.substr(0, address.rfind(':'));
}

// Whether the rank has joined by an aggregator below this one, whose connection its host is then named by.
bool joined_below(const Json& member) {
  return Address::parse(member.at("host").get<std::string>()).ok();
}

std::optional<size_t> vertex_named(const plan::Graph& graph, const std::string& name) {
  for (size_t i = 0; i < graph.vertices.size(); ++i) {
    const plan::Vertex& vertex = graph.vertices[i];
    if (vertex.kind != plan::VertexKind::kSwitch && (vertex.name == name || vertex.name == name + kInSwitch))
      return i;
  }
  return std::nullopt;
}

// The vertex of each; `what` and `flag` are for messages.
Result<std::vector<size_t>> vertices_of(const plan::Graph& graph, const std::vector<std::string>& names,
                                        plan::VertexKind kind, const std::string& what) {
  std::vector<std::optional<size_t>> named;
  for (const std::string& name : names) named.push_back(vertex_named(graph, name));
  std::vector<size_t> found;
  if (std::none_of(named.begin(), named.end(), [](const auto& vertex) { return vertex.has_value(); })) {
    for (size_t i = 0; i < graph.vertices.size(); ++i)
      if (graph.vertices[i].kind == kind) found.push_back(i);
    if (found.size() == names.size()) return found;
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("the topology has {} {}, the job {}: name them as the job does, such as {}",
                              found.size(), what, names.size(), names.empty() ? "10.0.0.1" : names.front()));
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (!named[i])
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("the topology has no {}, which it needs among its {}", names[i], what));
    found.push_back(*named[i]);
  }
  return found;
}

// Adds both directions of what was counted between ranks and one that sums. Of a rack's ranks, the first stands for all.
void add_paths(const Json& path, size_t rank, size_t place, Routes* routes,
               std::vector<faults::PathCount>* paths) {
  const auto add = [&](size_t from, size_t to, const char* kept, const char* lost) {
    faults::PathCount one{.links = routes->between(from, to), .kept = path.at(kept), .lost = path.at(lost)};
    if (!one.links.empty() && one.kept + one.lost > 0) paths->push_back(std::move(one));
  };
  add(rank, place, "kept_to", "lost_to");
  add(place, rank, "kept_from", "lost_from");
}

std::string arc_name(const plan::Graph& graph, size_t arc) {
  return printable(graph.vertices[graph.arcs[arc].from].name) + " to " +
         printable(graph.vertices[graph.arcs[arc].to].name);
}

std::string probe_for(const plan::Graph& graph, const std::vector<size_t>& group, Routes* routes) {
  std::vector<faults::PathCount> candidates;
  std::vector<std::pair<size_t, size_t>> ends;
  const std::vector<size_t> hosts = graph.ranks();
  for (size_t i = 0; i < std::min(hosts.size(), kMostProbes); ++i) {
    for (size_t j = 0; j < std::min(hosts.size(), kMostProbes); ++j) {
      if (i == j) continue;
      candidates.push_back({.links = routes->between(hosts[i], hosts[j])});
      ends.emplace_back(hosts[i], hosts[j]);
    }
  }
  const size_t told = faults::path_that_tells(candidates, group[0], group[1]);
  if (told == candidates.size()) return "; look at the counters of errors of all of them";
  return fmt::format("; packets from {} to {} would tell the first two apart",
                     printable(graph.vertices[ends[told].first].name),
                     printable(graph.vertices[ends[told].second].name));
}

Finding blamed(const std::string& job, const plan::Graph& graph, const faults::BadLink& bad, Routes* routes) {
  std::vector<std::string> names;
  for (const size_t arc : bad.links) names.push_back(arc_name(graph, arc));
  const double percent = bad.loss * 100;
  if (names.size() == 1)
    return {Grade::kFail, job, fmt::format("the link {} loses {:.2f} % of its packets", names[0], percent),
            "the cable and both of its ports: ip -s link, ethtool -S, the switch's counters of errors"};
  return {
      Grade::kFail, job,
      fmt::format("one of these links loses {:.2f} % of its packets: {}", percent, fmt::join(names, ", ")),
      "no path of the job tells them apart" + probe_for(graph, bad.links, routes)};
}

}  // namespace

Routes::Routes(const plan::Graph& graph)
    : graph_(graph), out_(graph.vertices.size()), in_(graph.vertices.size()), to_(kFar) {
  for (size_t arc = 0; arc < graph.arcs.size(); ++arc) {
    out_[graph.arcs[arc].from].push_back(arc);
    in_[graph.arcs[arc].to].push_back(arc);
  }
}

void Routes::measure(size_t to) {
  if (to_ == to) return;
  to_ = to;
  hops_.assign(graph_.vertices.size(), kFar);
  hops_[to] = 0;
  std::vector<size_t> reached{to};
  for (size_t i = 0; i < reached.size(); ++i) {
    const size_t at = reached[i];
    if (at != to && graph_.vertices[at].kind != plan::VertexKind::kSwitch) continue;  // does not forward
    for (const size_t arc : in_[at]) {
      const size_t from = graph_.arcs[arc].from;
      if (hops_[from] != kFar) continue;
      hops_[from] = hops_[at] + 1;
      reached.push_back(from);
    }
  }
}

std::vector<std::pair<size_t, double>> Routes::between(size_t from, size_t to) {
  measure(to);
  std::vector<std::pair<size_t, double>> links;
  if (hops_[from] == kFar) return links;
  std::vector<std::pair<size_t, double>> level{{from, 1}};  // vertices of equal distance, with their parts
  for (size_t hops = hops_[from]; hops > 0; --hops) {
    std::vector<std::pair<size_t, double>> next;
    for (const auto& [vertex, part] : level) {
      const auto is_next = [&](size_t arc) {
        const size_t at = graph_.arcs[arc].to;
        return hops_[at] == hops - 1 && (at == to || graph_.vertices[at].kind == plan::VertexKind::kSwitch);
      };
      const auto ways = static_cast<double>(std::count_if(out_[vertex].begin(), out_[vertex].end(), is_next));
      for (const size_t arc : out_[vertex]) {
        if (!is_next(arc)) continue;
        links.emplace_back(arc, part / ways);
        const size_t at = graph_.arcs[arc].to;
        const auto known =
            std::find_if(next.begin(), next.end(), [&](const auto& one) { return one.first == at; });
        if (known == next.end()) {
          next.emplace_back(at, part / ways);
        } else {
          known->second += part / ways;
        }
      }
    }
    level = std::move(next);
  }
  return links;
}

std::vector<Finding> blame_links(const std::vector<std::pair<std::string, Json>>& reports,
                                 const plan::Graph& graph) {
  const Json& first = reports.front().second;
  const std::string job = "job " + printable(first.at("name").get<std::string>());
  std::vector<std::string> hosts, places;
  for (const Json& member : first.at("members")) hosts.push_back(member.at("host"));
  for (const auto& [address, report] : reports) {
    const Json& paths = report.at("paths");
    if (std::any_of(paths.begin(), paths.end(), [](const Json& path) { return path.at("shard") < 0; }))
      places.push_back(without_port(address));
  }
  const auto fail = [&](const Status& status) {
    return std::vector<Finding>{{Grade::kFail, job, printable(status.message()), "the file of --topology"}};
  };
  // Where an aggregator below is, nothing tells; and what it has counted of its own members is not in these reports.
  if (std::any_of(first.at("members").begin(), first.at("members").end(), joined_below))
    return {{Grade::kFail, job,
             "aggregators below those asked sum for it, as in trees or in ranks with a plan: which links are "
             "between them is not known here",
             "leave out --topology: the members of each aggregator are judged without it"}};
  const Result<std::vector<size_t>> of_ranks = vertices_of(graph, hosts, plan::VertexKind::kRank, "hosts");
  if (!of_ranks.ok()) return fail(of_ranks.status());
  const Result<std::vector<size_t>> of_places =
      vertices_of(graph, places, plan::VertexKind::kAggregator, "places");
  if (!places.empty() && !of_places.ok()) return fail(of_places.status());
  Routes routes(graph);
  std::vector<faults::PathCount> paths;
  size_t place = 0;
  for (const auto& [address, report] : reports) {
    bool sums = false;
    for (const Json& path : report.at("paths")) {
      const auto rank = path.at("ranks").empty() ? kFar : path.at("ranks").at(0).get<size_t>();
      const int shard = path.at("shard");
      if (rank >= of_ranks->size() || shard >= static_cast<int>(of_ranks->size())) continue;
      sums |= shard < 0;
      const size_t at = shard < 0 ? of_places.value()[place] : (*of_ranks)[static_cast<size_t>(shard)];
      add_paths(path, (*of_ranks)[rank], at, &routes, &paths);
    }
    place += sums ? 1 : 0;
  }
  if (paths.empty())
    return {{Grade::kWarn, job, "no packets have been counted yet",
             "again in some seconds; XDP and P4 dataplanes do not count them"}};
  const double usual = faults::usual_loss(paths);
  std::vector<Finding> findings;
  for (const faults::BadLink& bad : faults::bad_links(paths, graph.arcs.size(), usual))
    findings.push_back(blamed(job, graph, bad, &routes));
  if (usual > kNoticeable)
    findings.push_back({Grade::kWarn, job,
                        fmt::format("almost all paths lose packets, about {:.2f} % at least", usual * 100),
                        "what they share: the aggregators' links, or queues that overflow"});
  if (findings.empty())
    findings.push_back({Grade::kOk, job, fmt::format("no link of {} paths loses packets", paths.size()), ""});
  return findings;
}

}  // namespace netsum::tool
