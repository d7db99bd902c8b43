#include "tools/netsum/rack_graph_trees.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "src/base/text.h"
#include "src/plan/topology.h"
#include "tools/netsum/flags.h"
#include "tools/netsum/graph_file.h"
#include "tools/netsum/plan_file.h"
#include "tools/netsum/rack_plan.h"

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
  const auto host = [&](size_t vertex) {
    const std::string& name = graph.vertices[vertex].name;
    return printable(name.substr(0, name.find(kInSwitch)));
  };
  std::string text = "# On each host, aggregators: parents first.\n", ranks;
  for (size_t tree = 0; tree < trees.size(); ++tree) {
    const auto address = [&](size_t vertex) {
      return fmt::format("{}:{}", host(vertex), kRackControlPort + tree);
    };
    for (const size_t vertex : trees[tree].inner()) {
      text += fmt::format("{}: netsum {}\n", host(vertex),
                          fmt::join(trees[tree].arguments(vertex, address), " "));
    }
  }
  text += "# The environment of each rank:\n";
  for (const size_t rank : graph.ranks()) {
    std::vector<std::string> addresses;
    for (size_t tree = 0; tree < trees.size(); ++tree)
      addresses.push_back(fmt::format("{}:{}", host(*trees[tree].joins_at(rank)), kRackControlPort + tree));
    text +=
        fmt::format("{}: NETSUM_HIERARCHY=1 NETSUM_AGGREGATOR={}\n", host(rank), fmt::join(addresses, ","));
  }
  return text;
}

RackGraph load_rack_graph(const std::string& file, bool trees) {
  PlanInput input = load_plan_input(file);
  const auto refuse = [&](const Status& status) {
    throw UsageError(file + ": " + printable(status.message()));
  };
  if (!input.graph) {
    Result<plan::Graph> graph = graph_of(*input.topology);
    if (!graph.ok()) refuse(graph.status());
    input.graph = std::move(graph).value();
  }
  if (const Status status = check_rack_graph(*input.graph, file); !status.ok())
    throw UsageError(status.message());
  RackGraph rack{.graph = std::move(*input.graph), .trees = {}};
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
