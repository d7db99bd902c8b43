#include "src/plan/graph.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>

namespace netsum::plan {
namespace {

Status check_vertices(const Graph& graph) {
  if (graph.vertices.size() > kMostVertices || graph.arcs.size() > kMostArcs) {
    return {ErrorCode::kResourceExhausted, "the graph has " + std::to_string(graph.vertices.size()) +
                                               " vertices and " + std::to_string(graph.arcs.size()) +
                                               " arcs; plan a part of it"};
  }
  std::unordered_map<std::string, int> lines;
  bool some_rank = false;
  for (const Vertex& vertex : graph.vertices) {
    const auto [known, fresh] = lines.emplace(vertex.name, vertex.line);
    if (!fresh) {
      return invalid_at(vertex.line,
                        "the name '" + vertex.name + "' is given twice" +
                            (known->second > 0 ? ", first in line " + std::to_string(known->second) : "") +
                            "; rename one");
    }
    some_rank |= vertex.kind == VertexKind::kRank;
    if (vertex.kind == VertexKind::kAggregator && vertex.sum_rate <= 0) {
      return invalid_at(vertex.line, "'" + vertex.name + "' sums at a rate of " +
                                         std::to_string(vertex.sum_rate) +
                                         "; give a rate above 0, or let it only forward");
    }
  }
  return some_rank ? Status() : invalid_at(0, "the graph has no rank; add at least one host");
}

std::string name_of(const Graph& graph, const Arc& arc) {
  return "the link from '" + graph.vertices[arc.from].name + "' to '" + graph.vertices[arc.to].name + "'";
}

bool inside_switch(const Graph& graph, const Arc& arc) {
  const VertexKind from = graph.vertices[arc.from].kind, to = graph.vertices[arc.to].kind;
  return (from == VertexKind::kAggregator && to == VertexKind::kSwitch) ||
         (from == VertexKind::kSwitch && to == VertexKind::kAggregator);
}

Status check_arcs(const Graph& graph) {
  std::unordered_map<size_t, int> lines;
  for (const Arc& arc : graph.arcs) {
    if (arc.from >= graph.vertices.size() || arc.to >= graph.vertices.size()) {
      return invalid_at(arc.line, "a link ends at a vertex that does not exist");
    }
    if (arc.from == arc.to) {
      return invalid_at(arc.line,
                        "'" + graph.vertices[arc.from].name + "' is linked to itself; leave this link out");
    }
    if (arc.rate <= 0 || (arc.rate > kMostRate && arc.rate != kUnlimited)) {
      return invalid_at(arc.line, name_of(graph, arc) + " has the rate " + std::to_string(arc.rate) +
                                      "; give a rate from 1 to " + std::to_string(kMostRate));
    }
    if (arc.rate == kUnlimited && !inside_switch(graph, arc)) {
      return invalid_at(arc.line, name_of(graph, arc) +
                                      " has no limit; only an aggregator inside a switch has such a link");
    }
    const auto [known, fresh] = lines.emplace(arc.from * graph.vertices.size() + arc.to, arc.line);
    if (!fresh) {
      return invalid_at(arc.line,
                        name_of(graph, arc) + " is given twice" +
                            (known->second > 0 ? ", first in line " + std::to_string(known->second) : "") +
                            "; give it once, with the sum of the rates");
    }
  }
  return {};
}

// Marks the vertices that `start` reaches or, against the arcs, that reach it.
std::vector<bool> reached(const Graph& graph, size_t start, bool against) {
  std::vector<std::vector<size_t>> next(graph.vertices.size());
  for (const Arc& arc : graph.arcs) {
    next[against ? arc.to : arc.from].push_back(against ? arc.from : arc.to);
  }
  std::vector<bool> seen(graph.vertices.size());
  std::vector<size_t> waiting = {start};
  seen[start] = true;
  while (!waiting.empty()) {
    const size_t vertex = waiting.back();
    waiting.pop_back();
    for (const size_t other : next[vertex]) {
      if (!seen[other]) waiting.push_back(other);
      seen[other] = true;
    }
  }
  return seen;
}

Status check_connected(const Graph& graph) {
  const std::vector<size_t> ranks = graph.ranks();
  for (const bool against : {false, true}) {
    const std::vector<bool> seen = reached(graph, ranks.front(), against);
    for (const size_t rank : ranks) {
      if (seen[rank]) continue;
      const std::string& first = graph.vertices[ranks.front()].name;
      const std::string& other = graph.vertices[rank].name;
      return {ErrorCode::kUnreachable, at_line(graph.vertices[rank].line) + "there is no way from '" +
                                           (against ? other : first) + "' to '" + (against ? first : other) +
                                           "'; add the missing link"};
    }
  }
  return {};
}

// Adds the parts of a topology to a graph.
class TopologyReader {
 public:
  explicit TopologyReader(const Topology& topology) : topology_(topology) {}

  Graph read() {
    root_ = graph_.add("(network)", VertexKind::kSwitch);
    for (const Rack& rack : topology_.racks) racks_.push_back(graph_.add(rack.name, VertexKind::kSwitch));
    for (size_t i = 0; i < racks_.size(); ++i) {
      connect(racks_[i], switch_of(topology_.racks[i].parent), topology_.racks[i].uplink);
    }
    for (const Rank& rank : topology_.ranks) {
      const size_t vertex = graph_.add(rank.name, VertexKind::kRank);
      graph_.vertices[vertex].relay = rank.shard;
      connect(vertex, switch_of(rank.rack), rank.link);
    }
    for (const Place& place : topology_.places) add_place(place);
    return std::move(graph_);
  }

 private:
  static int64_t whole(double bps) { return std::max<int64_t>(1, std::llround(bps)); }

  size_t switch_of(int rack) const { return rack == kNoRack ? root_ : racks_[static_cast<size_t>(rack)]; }

  void connect(size_t vertex, size_t upper, const Link& link) {
    graph_.arcs.push_back({vertex, upper, whole(link.out_bps)});
    graph_.arcs.push_back({upper, vertex, whole(link.in_bps)});
  }

  int64_t sum_rate(const SumLimits& limits) const {
    const double rate =
        stream_rate(limits, static_cast<double>(topology_.ranks.size()), topology_.element_bits);
    return rate >= static_cast<double>(kMostRate) ? kUnlimited : whole(rate);
  }

  void add_place(const Place& place) {
    const size_t vertex = graph_.add(place.name, VertexKind::kAggregator, sum_rate(place.limits));
    if (place.kind == PlaceKind::kSwitch) {
      graph_.link(vertex, switch_of(place.rack), kUnlimited);
      return;
    }
    Link all;
    for (const Link& port : place.ports) {
      all.in_bps += port.in_bps;
      all.out_bps += port.out_bps;
    }
    connect(vertex, switch_of(place.rack), all);
  }

  const Topology& topology_;
  Graph graph_;
  size_t root_ = 0;
  std::vector<size_t> racks_;
};

}  // namespace

std::string at_line(int line) {
  return line > 0 ? "line " + std::to_string(line) + ": " : "";
}

Status invalid_at(int line, const std::string& message) {
  return {ErrorCode::kInvalidArgument, at_line(line) + message};
}

size_t Graph::add(std::string name, VertexKind kind, int64_t sum_rate) {
  vertices.push_back({.name = std::move(name), .kind = kind, .sum_rate = sum_rate});
  return vertices.size() - 1;
}

void Graph::link(size_t a, size_t b, int64_t rate) {
  arcs.push_back({a, b, rate});
  arcs.push_back({b, a, rate});
}

std::vector<size_t> Graph::ranks() const {
  std::vector<size_t> found;
  for (size_t i = 0; i < vertices.size(); ++i) {
    if (vertices[i].kind == VertexKind::kRank) found.push_back(i);
  }
  return found;
}

Status check(const Graph& graph) {
  if (Status s = check_vertices(graph); !s.ok()) return s;
  if (Status s = check_arcs(graph); !s.ok()) return s;
  return check_connected(graph);
}

bool symmetric(const Graph& graph) {
  std::unordered_map<size_t, int64_t> rates;
  const size_t size = graph.vertices.size();
  for (const Arc& arc : graph.arcs) rates[arc.from * size + arc.to] = arc.rate;
  return std::all_of(graph.arcs.begin(), graph.arcs.end(), [&](const Arc& arc) {
    const auto back = rates.find(arc.to * size + arc.from);
    return back != rates.end() && back->second == arc.rate;
  });
}

Result<Graph> graph_of(const Topology& topology) {
  if (Status s = check(topology); !s.ok()) return s;
  for (const Place& place : topology.places) {
    if (!place.below.empty()) {
      return Status(ErrorCode::kUnsupported,
                    "'" + place.name +
                        "' has aggregators below it, so its tree is fixed; plan the network without them");
    }
  }
  return TopologyReader(topology).read();
}

}  // namespace netsum::plan
