#include "tools/netsum/rack_graph_trees.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "src/base/text.h"
#include "src/plan/topology.h"
#include "tools/netsum/flags.h"
#include "tools/netsum/plan_file.h"

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

Result<std::vector<RackTree>> rack_trees(const GraphRoutes& routes, plan::TreePlan* plan) {
  if (plan->trees.empty())
    return Status(ErrorCode::kInvalidArgument, "one rank has nothing to sum with; leave out --trees");
  if (plan->trees.size() > plan::kMaxPlaces) {
    return Status(ErrorCode::kResourceExhausted,
                  "the plan has " + std::to_string(plan->trees.size()) + " trees, and a job uses at most " +
                      std::to_string(plan::kMaxPlaces) + "; leave out --trees");
  }
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
  std::vector<RackTree> trees;
  for (plan::Tree& tree : plan->trees) {
    trees.push_back({.root = tree.root, .edges = {}});
    for (plan::TreeEdge& edge : tree.edges) {
      trees.back().edges.emplace_back(edge.child, edge.parent);
      edge.up = way(edge.child, edge.parent);
      edge.down = way(edge.parent, edge.child);
    }
    if (levels_of(trees.back()) <= plan::kMaxLevels) continue;
    return Status(ErrorCode::kResourceExhausted, "a tree of the plan has more than " +
                                                     std::to_string(plan::kMaxLevels) +
                                                     " aggregators below each other; leave out --trees");
  }
  if (const Status status = measure(routes.graph(), plan); !status.ok()) return status;
  for (size_t i = 0; i < trees.size(); ++i) {
    const double share = static_cast<double>(plan->trees[i].weight) / plan->period;
    trees[i].rate_bits =
        std::max<int64_t>(std::llround(plan::kMinRateBps), std::llround(share / plan->time.to_double()));
  }
  return trees;
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
  Result<std::vector<RackTree>> made = rack_trees(GraphRoutes(rack.graph), &*plan);
  if (!made.ok()) refuse(made.status());
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
