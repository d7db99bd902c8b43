#include "src/plan/tree_plan.h"

#include <algorithm>
#include <optional>

#include "src/plan/fold.h"
#include "src/plan/pack.h"
#include "src/plan/ring.h"
#include "src/plan/rounding.h"
#include "src/plan/tree_search.h"
#include "src/plan/weave.h"

namespace netsum::plan {
namespace {

// Ranks, above which trees are woven where they are proved to be as good as those of a search.
constexpr size_t kMostSearchedRanks = 32;
// Ranks, above which independent trees up and down are not searched for a bound.
constexpr size_t kMostPairRanks = 16;

bool all_relay(const Graph& graph) {
  return std::all_of(graph.vertices.begin(), graph.vertices.end(),
                     [](const Vertex& vertex) { return vertex.kind != VertexKind::kRank || vertex.relay; });
}

Fraction inverse(const Fraction& value) {
  return Fraction(1) / value;
}

// The bound of an all-reduce, given the best packing of two-way trees.
Result<Bound> all_reduce_bound(const Graph& graph, const Packing& packing, size_t ranks) {
  size_t aggregators = 0;
  for (const Vertex& vertex : graph.vertices) aggregators += vertex.kind == VertexKind::kAggregator ? 1 : 0;
  const bool searched = aggregators <= kMostSearchedAggregators;
  const bool proved = packing.rate == packing.most;
  if (symmetric(graph)) {
    if (searched) {
      return Bound{inverse(packing.most), "column generation: no trees are faster, proved in fractions",
                   proved};
    }
    if (std::optional<Bound> racks = all_reduce_bound_of_racks(graph)) {
      racks->exact = false;
      return *racks;
    }
  }
  if (!searched || ranks > kMostPairRanks) {
    return Bound{Fraction(0), "none is known for this graph", false};
  }
  const Result<Packing> pairs = pack(graph, TreeKind::kPairs);
  if (!pairs.ok()) return pairs.status();
  return Bound{inverse(pairs->most), "column generation over independent trees up and down",
               pairs->rate == pairs->most};
}

Status plan_by_search(const Graph& graph, size_t root, TreePlan* plan) {
  const TreeKind kind =
      plan->collective == TreeCollective::kBroadcast ? TreeKind::kBroadcast : TreeKind::kTwoWay;
  const Result<Packing> packing = pack(graph, kind, root);
  if (!packing.ok()) return packing.status();
  Result<Bound> bound = kind == TreeKind::kBroadcast
                            ? broadcast_bound(graph, root)
                            : all_reduce_bound(graph, *packing, graph.ranks().size());
  if (!bound.ok()) return bound.status();
  plan->bound = std::move(bound).value();
  plan->trees = with_whole_weights(graph, kind, root, *packing, kMostTreePeriod);
  plan->optimum = inverse(packing->rate);
  return measure(graph, plan);
}

Status plan_by_weaving(const Graph& graph, const Fold& tree, TreePlan* plan) {
  if (!all_relay(graph)) {
    return {ErrorCode::kResourceExhausted,
            "in a graph of this size every rank must relay; leave out 'relay: false'"};
  }
  // What the trees can do: limited aggregators are not used.
  Fold used = tree;
  for (FoldNode& node : used.nodes) node.sums = node.aggregator != kNone;
  const Fraction target = all_reduce_time(used);
  plan->trees = weave(graph, used, target.to_double(), kMostTreePeriod);
  plan->bound = Bound{all_reduce_time(tree), "the closed form for trees of switches", tree.exact};
  if (Status s = measure(graph, plan); !s.ok()) return s;
  plan->optimum = tree.exact ? target : plan->time;
  return {};
}

}  // namespace

Result<TreePlan> plan_trees(const Graph& graph, TreeCollective collective, size_t root) {
  if (Status s = check(graph); !s.ok()) return s;
  if (collective == TreeCollective::kBroadcast &&
      (root >= graph.vertices.size() || graph.vertices[root].kind != VertexKind::kRank)) {
    return Status(ErrorCode::kInvalidArgument, "the root of a broadcast is a rank; give one of them");
  }
  TreePlan plan;
  plan.collective = collective;
  const size_t ranks = graph.ranks().size();
  if (ranks < 2) {
    plan.bound = {0, "a single rank", true};
    plan.load.resize(graph.arcs.size());
    plan.sums.resize(graph.vertices.size());
    return plan;
  }
  const bool searchable = ranks <= kMostPackedRanks && graph.arcs.size() <= kMostPackedArcs;
  const bool small = ranks <= kMostSearchedRanks && searchable;
  const std::optional<Fold> tree = small ? std::nullopt : fold(graph);
  Status done;
  if (tree && collective == TreeCollective::kAllReduce && (tree->exact || !searchable)) {
    done = plan_by_weaving(graph, *tree, &plan);
  } else {
    done = plan_by_search(graph, root, &plan);
  }
  if (!done.ok()) return done;
  std::stable_sort(plan.trees.begin(), plan.trees.end(),
                   [](const Tree& a, const Tree& b) { return a.weight > b.weight; });
  if (collective == TreeCollective::kAllReduce) {
    Ring ring = ring_over(graph);
    plan.ring = ring.time;
    plan.ring_order = std::move(ring.order);
  }
  return plan;
}

}  // namespace netsum::plan
