// A virtual rack of any shape, from the graph of a topology file: names, addresses, routes. Pure.
//
//   rank i: namespace netsum-NAME-wI, 10.77.0.(I+1)
//   switch i: namespace netsum-NAME-swI, 10.77.1.(I+1)
//   place i, a host that sums: namespace netsum-NAME-sI, 10.77.(100+I).1
//
// A switch is a router, because a bridge uses one tree of a graph with circles. A link is a veth pair, ethK at both ends,
// with a token bucket for each direction at its sender. Links have no addresses: that of a node is on `host`, a
// bridge without ports, which stays up whatever happens to links.
//
// Routes are static. A packet takes a way with the fewest hosts between its ends and, among these, the fewest links. If
// several links begin such a way, it takes the fastest one; between equally fast ones, destinations take turns.
#ifndef NETSUM_TOOLS_NETSUM_RACK_GRAPH_H_
#define NETSUM_TOOLS_NETSUM_RACK_GRAPH_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "netsum/status.h"
#include "src/plan/graph.h"

namespace netsum::tool {

// A tree of aggregators: one at each of its inner vertices, below that of the vertex's parent.
struct RackTree {
  size_t root = 0;
  std::vector<std::pair<size_t, size_t>>
      edges;              // child and parent; an edge to a parent comes before those to its children
  int64_t rate_bits = 0;  // that the plan gives it, from each rank
  bool operator==(const RackTree&) const = default;

  std::vector<size_t> inner() const;                  // the root first, each after its parent
  std::optional<size_t> parent(size_t vertex) const;  // nothing: the root, or not in the tree
  // Where a rank joins: at its own aggregator, if it sums for others.
  std::optional<size_t> joins_at(size_t rank) const;
  // Of the aggregator at an inner vertex, for `netsum`. The share planner of a job has no part in links that several trees
  // use. So each tree's aggregators declare what the plan gives it, and the job's shares become those of the plan.
  std::vector<std::string> arguments(size_t vertex,
                                     const std::function<std::string(size_t)>& address_of) const;
};

struct RackGraph {
  plan::Graph graph;            // without lines
  std::vector<RackTree> trees;  // without any, each place and each switch that sums has an aggregator
  bool relays = false;          // aggregators of trees at ranks are inside the ranks' processes
  bool operator==(const RackGraph&) const = default;
};

inline constexpr size_t kMostGraphNodes = 32;
inline constexpr int64_t kMostLinkRate = 400'000'000'000;  // bit/s, of a token bucket

// The ends of a link in the graph's order, and its rates; 0: not in this direction.
struct GraphLink {
  size_t a = 0;
  size_t b = 0;
  int64_t a_to_b = 0;
  int64_t b_to_a = 0;
};

class GraphRoutes {
 public:
  explicit GraphRoutes(plan::Graph graph);

  const plan::Graph& graph() const { return graph_; }

  // The vertex whose namespace this one is in: itself or, of an aggregator inside a switch, the switch.
  size_t node_of(size_t vertex) const { return node_of_[vertex]; }
  bool is_node(size_t vertex) const { return node_of_[vertex] == vertex; }
  size_t nodes() const;
  const std::vector<GraphLink>& links() const { return links_; }
  // The arc by which packets leave `from` for `to`, both nodes. Nothing: there is no way.
  std::optional<size_t> next(size_t from, size_t to) const;
  // All arcs on the way. `to` must be reachable.
  std::vector<size_t> way(size_t from, size_t to) const;

 private:
  void find_next(size_t to);

  plan::Graph graph_;
  std::vector<size_t> node_of_;
  std::vector<GraphLink> links_;
  std::vector<std::vector<std::optional<size_t>>> next_;  // [from][to]
};

// What a rack cannot be made of, although a plan can. `file` begins the message. kInvalidArgument, kUnreachable,
// kResourceExhausted.
Status check_rack_graph(const plan::Graph& graph, const std::string& file);

nlohmann::ordered_json to_json(const RackGraph& graph);
RackGraph rack_graph_from_json(const nlohmann::ordered_json& json);  // throws if malformed

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_RACK_GRAPH_H_
