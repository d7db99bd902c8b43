#include "tools/netsum/rack_graph_trees.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "src/base/text.h"
#include "src/plan/topology.h"
#include "tools/netsum/graph_file.h"
#include "tools/netsum/plan_file.h"
#include "tools/netsum/rack_plan.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {
namespace {

// Of the aggregators on the longest way up.
size_t levels_of(const RackTree& tree) {
  size_t most = 0;
  for (const size_t vertex : tree.inner()) {
    size_t levels = 1;
    for (auto at = tree.parent(vertex); at; at = tree.parent(*at)) ++levels;
    most = std::max(most, levels);
  }
  return most;
}

// An aggregator inside a switch is at the switch's address.
std::string host_of_vertex(const plan::Graph& graph, size_t vertex) {
  const std::string& name = graph.vertices[vertex].name;
  return printable(name.substr(0, name.find(kInSwitch)));
}

std::string address_of(const plan::Graph& graph, size_t tree, size_t vertex) {
  return fmt::format("{}:{}", host_of_vertex(graph, vertex), kRackControlPort + tree);
}

}  // namespace

Status use_routes(const GraphRoutes& routes, plan::TreePlan* plan) {
  // An aggregator inside a switch sends by the switch.
  const auto add_inside = [&](size_t from, size_t to, std::vector<size_t>* way) {
    const std::vector<plan::Arc>& arcs = routes.graph().arcs;
    const auto found = std::find_if(arcs.begin(), arcs.end(),
                                    [&](const plan::Arc& arc) { return arc.from == from && arc.to == to; });
    way->push_back(static_cast<size_t>(found - arcs.begin()));
  };
  const auto way = [&](size_t from, size_t to) {
    std::vector<size_t> arcs;
    const size_t first = routes.node_of(from), last = routes.node_of(to);
    if (first != from) add_inside(from, first, &arcs);
    const std::vector<size_t> between = routes.way(first, last);
    arcs.insert(arcs.end(), between.begin(), between.end());
    if (last != to) add_inside(last, to, &arcs);
    return arcs;
  };
  for (plan::Tree& tree : plan->trees) {
    for (plan::TreeEdge& edge : tree.edges) {
      edge.up = way(edge.child, edge.parent);
      edge.down = way(edge.parent, edge.child);
    }
  }
  return measure(routes.graph(), plan);
}

Result<std::vector<RackTree>> rack_trees(const plan::TreePlan& plan) {
  if (plan.trees.empty()) return Status(ErrorCode::kInvalidArgument, "one rank has nothing to sum with");
  if (plan.trees.size() > plan::kMaxPlaces) {
    return Status(ErrorCode::kResourceExhausted, "the plan has " + std::to_string(plan.trees.size()) +
                                                     " trees, and a job uses " +
                                                     std::to_string(plan::kMaxPlaces) + " at most");
  }
  std::vector<RackTree> trees;
  for (const plan::Tree& tree : plan.trees) {
    const double share = static_cast<double>(tree.weight) / plan.period;
    trees.push_back({.root = tree.root,
                     .edges = {},
                     .rate_bits = std::max<int64_t>(std::llround(plan::kMinRateBps),
                                                    std::llround(share / plan.time.to_double()))});
    for (const plan::TreeEdge& edge : tree.edges) trees.back().edges.emplace_back(edge.child, edge.parent);
    if (levels_of(trees.back()) <= plan::kMaxLevels) continue;
    return Status(ErrorCode::kResourceExhausted, "a tree of the plan has more than " +
                                                     std::to_string(plan::kMaxLevels) +
                                                     " aggregators below each other");
  }
  return trees;
}

std::string tree_commands(const plan::Graph& graph, const std::vector<RackTree>& trees) {
  std::string text = "# On each host, aggregators: parents first.\n", ranks;
  for (size_t tree = 0; tree < trees.size(); ++tree) {
    const auto address = [&](size_t vertex) { return address_of(graph, tree, vertex); };
    for (const size_t vertex : trees[tree].inner()) {
      text += fmt::format("{}: netsum {}\n", host_of_vertex(graph, vertex),
                          fmt::join(trees[tree].arguments(vertex, address), " "));
    }
  }
  text += "# The environment of each rank:\n";
  for (const size_t rank : graph.ranks()) {
    std::vector<std::string> addresses;
    for (size_t tree = 0; tree < trees.size(); ++tree)
      addresses.push_back(address_of(graph, tree, *trees[tree].joins_at(rank)));
    text += fmt::format("{}: NETSUM_HIERARCHY=1 NETSUM_AGGREGATOR={}\n", host_of_vertex(graph, rank),
                        fmt::join(addresses, ","));
  }
  return text;
}

plan::RelayPlan relay_plan(const plan::Graph& graph, const std::vector<RackTree>& trees,
                           const std::string& network,
                           const std::function<std::string(size_t, size_t)>& address_of) {
  const std::vector<size_t> ranks = graph.ranks();
  plan::RelayPlan relays{.network = network, .job = {}, .ranks = static_cast<int>(ranks.size()), .trees = {}};
  std::replace(relays.network.begin(), relays.network.end(), ' ', '_');
  for (size_t number = 0; number < trees.size(); ++number) {
    plan::RelayTree tree{.rate_bps = trees[number].rate_bits, .aggregators = {}, .joins = {}};
    const std::vector<size_t> inner = trees[number].inner();
    const auto index_of = [](const std::vector<size_t>& all, size_t vertex) {
      return static_cast<size_t>(std::find(all.begin(), all.end(), vertex) - all.begin());
    };
    for (const size_t vertex : inner) {
      const size_t rank = index_of(ranks, vertex);
      plan::RelayTree::Aggregator one{
          address_of(number, vertex), rank < ranks.size() ? static_cast<int>(rank) : -1, {}};
      if (const auto above = trees[number].parent(vertex)) one.above = index_of(inner, *above);
      tree.aggregators.push_back(std::move(one));
    }
    for (const size_t rank : ranks) tree.joins.push_back(index_of(inner, *trees[number].joins_at(rank)));
    relays.trees.push_back(std::move(tree));
  }
  return relays;
}

std::string relay_text(const plan::Graph& graph, const std::vector<RackTree>& trees,
                       const std::string& network) {
  std::string commands;
  for (size_t tree = 0; tree < trees.size(); ++tree) {
    const auto address = [&](size_t vertex) { return address_of(graph, tree, vertex); };
    for (const size_t vertex : trees[tree].inner()) {
      if (graph.vertices[vertex].kind == plan::VertexKind::kRank) continue;
      commands += fmt::format("# {}: netsum {}\n", host_of_vertex(graph, vertex),
                              fmt::join(trees[tree].arguments(vertex, address), " "));
    }
  }
  std::string text = "# For all ranks: NETSUM_AGGREGATOR=plan:FILE. They are";
  for (const size_t rank : graph.ranks()) text += " " + host_of_vertex(graph, rank);
  if (!commands.empty()) text += "\n# Other aggregators to start:";
  return text + "\n" + commands + to_text(relay_plan(graph, trees, network, [&](size_t tree, size_t vertex) {
           return address_of(graph, tree, vertex);
         }));
}

RackGraph load_rack_graph(const std::string& file, bool trees) {
  const auto refuse = [&](const Status& status) {
    throw UsageError(file + ": " + printable(status.message()));
  };
  RackGraph rack{.graph = load_graph(file), .trees = {}};
  if (const Status status = check_rack_graph(rack.graph, file); !status.ok())
    throw UsageError(status.message());
  for (plan::Vertex& vertex : rack.graph.vertices) vertex.line = 0;
  for (plan::Arc& arc : rack.graph.arcs) arc.line = 0;
  if (!trees) return rack;
  Result<plan::TreePlan> plan = plan_trees(rack.graph, plan::TreeCollective::kAllReduce);
  if (!plan.ok()) refuse(plan.status());
  const plan::Fraction planned = plan->time;
  if (const Status status = use_routes(GraphRoutes(rack.graph), &*plan); !status.ok()) refuse(status);
  Result<std::vector<RackTree>> made = rack_trees(*plan);
  if (!made.ok()) throw UsageError(file + ": --trees: " + made.status().message());
  if (plan->time > planned) {
    std::fprintf(
        stderr,
        "netsum rack: the trees take %.3g s per GB on the rack's routes, not %.3g, because packets for one "
        "node take one way\n",
        plan->time.to_double() * 8e9, planned.to_double() * 8e9);
  }
  rack.trees = std::move(made).value();
  return rack;
}

}  // namespace netsum::tool
