// The plan of a collective in a graph: trees with whole weights, what they take, and how far that is from a bound.
#ifndef NETSUM_SRC_PLAN_TREE_PLAN_H_
#define NETSUM_SRC_PLAN_TREE_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "netsum/status.h"
#include "src/plan/bounds.h"
#include "src/plan/fraction.h"
#include "src/plan/graph.h"
#include "src/plan/tree.h"

namespace netsum::plan {

inline constexpr uint32_t kMostTreePeriod = 256;

enum class TreeCollective : uint8_t { kAllReduce, kBroadcast };

// Times are those of one gradient of size 1, in the unit of the graph's rates.
struct TreePlan {
  TreeCollective collective = TreeCollective::kAllReduce;
  std::vector<Tree> trees;  // the heaviest first
  uint32_t period = 0;      // sum of the weights
  Fraction time;
  Bound bound;  // no schedule takes less
  Fraction
      optimum;  // the best time that trees with fractional weights were shown to take; `time` if none is known
  Fraction ring;  // of an all-reduce: one ring over the ranks in `ring_order`
  std::vector<size_t> ring_order;
  std::vector<Fraction> load;  // [arc]: in gradients
  std::vector<Fraction>
      sums;  // [vertex]: the part of the gradient that an aggregator or rank sums for others

  // The relative time that is lost because weights are small whole numbers.
  double rounding_loss() const { return optimum > 0 ? (time / optimum).to_double() - 1 : 0; }
};

// `root` is for a broadcast. A graph with one rank has a plan without trees.
// Errors: those of check(); kInvalidArgument for a root that is no rank; kResourceExhausted for a graph that is too large
// and no fabric of tiers; kUnreachable if no tree joins the ranks.
Result<TreePlan> plan_trees(const Graph& graph, TreeCollective collective, size_t root = 0);

// Computes loads and the time of the trees in whole numbers, after checking that each is a tree over all ranks whose edges
// are ways through switches. Sets `load`, `sums`, `period` and `time`. kInvalidArgument, with the tree and what is wrong.
Status measure(const Graph& graph, TreePlan* plan);

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_TREE_PLAN_H_
