#include "tools/netsum/rack_graph.h"

#include <algorithm>
#include <map>
#include <utility>

#include "src/base/text.h"
#include "tools/netsum/quantity.h"

namespace netsum::tool {
namespace {

constexpr int kOneHost = 1000;  // more than any number of links

bool forwards(const plan::Vertex& vertex) {
  return vertex.kind == plan::VertexKind::kSwitch;
}

std::string location(const std::string& file, int line) {
  return file + (line > 0 ? ":" + std::to_string(line) : "") + ": ";
}

}  // namespace

GraphRoutes::GraphRoutes(plan::Graph of) : graph_(std::move(of)) {
  const plan::Graph& graph = graph_;
  const size_t size = graph.vertices.size();
  for (size_t i = 0; i < size; ++i) node_of_.push_back(i);
  std::map<std::pair<size_t, size_t>, size_t> known;
  for (const plan::Arc& arc : graph.arcs) {
    if (arc.rate == plan::kUnlimited) {
      if (!forwards(graph.vertices[arc.from])) node_of_[arc.from] = arc.to;
      continue;
    }
    const bool upwards = arc.from < arc.to;
    const auto ends = std::minmax(arc.from, arc.to);
    const auto [link, fresh] = known.emplace(ends, links_.size());
    if (fresh) links_.push_back({.a = ends.first, .b = ends.second});
    (upwards ? links_[link->second].a_to_b : links_[link->second].b_to_a) = arc.rate;
  }
  next_.assign(size, std::vector<std::optional<size_t>>(size));
  for (size_t to = 0; to < size; ++to) {
    if (is_node(to)) find_next(to);
  }
}

size_t GraphRoutes::nodes() const {
  size_t count = 0;
  for (size_t i = 0; i < node_of_.size(); ++i) count += is_node(i);
  return count;
}

void GraphRoutes::find_next(size_t to) {
  const size_t size = graph_.vertices.size();
  constexpr int kNever = INT32_MAX / 2;
  std::vector<int> cost(size, kNever);
  cost[to] = 0;
  const auto cost_by = [&](const plan::Arc& arc) {
    if (arc.rate == plan::kUnlimited) return kNever;
    const bool through_host = arc.to != to && !forwards(graph_.vertices[arc.to]);
    return cost[arc.to] + 1 + (through_host ? kOneHost : 0);
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (const plan::Arc& arc : graph_.arcs) {
      if (cost_by(arc) >= cost[arc.from]) continue;
      cost[arc.from] = cost_by(arc);
      changed = true;
    }
  }
  std::vector<std::vector<size_t>> choices(size);
  for (size_t i = 0; i < graph_.arcs.size(); ++i) {
    const plan::Arc& arc = graph_.arcs[i];
    if (arc.from == to || cost[arc.from] >= kNever || cost_by(arc) != cost[arc.from]) continue;
    std::vector<size_t>& best = choices[arc.from];
    if (!best.empty() && graph_.arcs[best.front()].rate < arc.rate) best.clear();
    if (best.empty() || graph_.arcs[best.front()].rate == arc.rate) best.push_back(i);
  }
  for (size_t from = 0; from < size; ++from) {
    if (!choices[from].empty()) next_[from][to] = choices[from][to % choices[from].size()];
  }
}

std::optional<size_t> GraphRoutes::next(size_t from, size_t to) const {
  return next_[from][to];
}

std::vector<size_t> GraphRoutes::way(size_t from, size_t to) const {
  std::vector<size_t> arcs;
  for (size_t at = from; at != to; at = graph_.arcs[arcs.back()].to) arcs.push_back(*next_[at][to]);
  return arcs;
}

std::vector<size_t> RackTree::inner() const {
  std::vector<size_t> found = {root};
  for (const auto& edge : edges) {
    if (std::find(found.begin(), found.end(), edge.second) == found.end()) found.push_back(edge.second);
  }
  return found;
}

std::optional<size_t> RackTree::parent(size_t vertex) const {
  for (const auto& [child, parent] : edges) {
    if (child == vertex) return parent;
  }
  return std::nullopt;
}

std::optional<size_t> RackTree::joins_at(size_t rank) const {
  const std::vector<size_t> all = inner();
  return std::find(all.begin(), all.end(), rank) != all.end() ? std::optional(rank) : parent(rank);
}

std::vector<std::string> RackTree::arguments(size_t vertex,
                                             const std::function<std::string(size_t)>& address_of) const {
  std::vector<std::string> found = {
      "aggregator", "--listen",    address_of(vertex), "--cores",
      "1",          "--in-switch", "--sum-rate",       format_rate(static_cast<uint64_t>(rate_bits))};
  if (const std::optional<size_t> above = parent(vertex))
    found.insert(found.end(), {"--parent", address_of(*above)});
  return found;
}

Status check_rack_graph(const plan::Graph& graph, const std::string& file) {
  for (const plan::Arc& arc : graph.arcs) {
    if (arc.rate == plan::kUnlimited || arc.rate <= kMostLinkRate) continue;
    return {ErrorCode::kInvalidArgument,
            location(file, arc.line) + "the link from '" + printable(graph.vertices[arc.from].name) +
                "' to '" + printable(graph.vertices[arc.to].name) + "' has " +
                format_rate(static_cast<uint64_t>(arc.rate)) + "; a link of a virtual rack has at most " +
                format_rate(kMostLinkRate)};
  }
  size_t count = 0;
  for (const plan::Vertex& vertex : graph.vertices) {
    // Aggregators inside switches are counted by the routes; this is before their table is made.
    const bool inside = vertex.kind == plan::VertexKind::kAggregator &&
                        std::any_of(graph.arcs.begin(), graph.arcs.end(), [&](const plan::Arc& arc) {
                          return &graph.vertices[arc.from] == &vertex && arc.rate == plan::kUnlimited;
                        });
    if (inside || ++count <= kMostGraphNodes) continue;
    return {ErrorCode::kResourceExhausted, location(file, vertex.line) + "'" + printable(vertex.name) +
                                               "' is one node too many: a virtual rack has " +
                                               std::to_string(kMostGraphNodes) +
                                               " hosts, switches and places at most"};
  }
  const GraphRoutes routes(graph);
  const size_t first = graph.ranks().front();
  for (size_t i = 0; i < graph.vertices.size(); ++i) {
    if (!routes.is_node(i) || i == first) continue;
    const bool there = routes.next(first, i).has_value();
    if (there && routes.next(i, first)) continue;
    const std::string &from = graph.vertices[there ? i : first].name,
                      &to = graph.vertices[there ? first : i].name;
    return {ErrorCode::kUnreachable, location(file, graph.vertices[i].line) + "there is no way from '" +
                                         printable(from) + "' to '" + printable(to) +
                                         "'; add the missing link"};
  }
  return {};
}

nlohmann::ordered_json to_json(const RackGraph& rack) {
  nlohmann::ordered_json vertices = nlohmann::ordered_json::array(), arcs = vertices, trees = vertices;
  for (const plan::Vertex& one : rack.graph.vertices)
    vertices.push_back({{"name", one.name},
                        {"kind", static_cast<int>(one.kind)},
                        {"sum_rate", one.sum_rate},
                        {"relay", one.relay}});
  for (const plan::Arc& one : rack.graph.arcs) arcs.push_back({one.from, one.to, one.rate});
  for (const RackTree& one : rack.trees)
    trees.push_back({{"root", one.root}, {"edges", one.edges}, {"rate_bits", one.rate_bits}});
  return {{"vertices", vertices}, {"arcs", arcs}, {"trees", trees}, {"relays", rack.relays}};
}

RackGraph rack_graph_from_json(const nlohmann::ordered_json& json) {
  RackGraph rack;
  plan::Graph& graph = rack.graph;
  for (const auto& one : json.at("vertices")) {
    const size_t vertex = graph.add(one.at("name"), static_cast<plan::VertexKind>(one.at("kind").get<int>()),
                                    one.at("sum_rate"));
    graph.vertices[vertex].relay = one.at("relay");
  }
  for (const auto& one : json.at("arcs"))
    graph.arcs.push_back({.from = one.at(0), .to = one.at(1), .rate = one.at(2)});
  for (const auto& one : json.at("trees"))
    rack.trees.push_back({.root = one.at("root"),
                          .edges = one.at("edges").get<std::vector<std::pair<size_t, size_t>>>(),
                          .rate_bits = one.at("rate_bits")});
  rack.relays = json.value("relays", false);
  return rack;
}

}  // namespace netsum::tool
