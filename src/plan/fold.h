// A fabric of switches as a tree. If it is none, it is folded: parallel switches of one tier become one node.
#ifndef NETSUM_SRC_PLAN_FOLD_H_
#define NETSUM_SRC_PLAN_FOLD_H_

#include <cstddef>
#include <optional>
#include <vector>

#include "src/plan/fraction.h"
#include "src/plan/graph.h"

namespace netsum::plan {

struct FoldNode {
  std::vector<size_t> members;  // vertices of the graph: one rank, or switches
  size_t parent = kNone;
  Integer up;         // the sum of the rates to the parent, alike in both directions
  bool sums = false;  // an aggregator is in or at one of the switches; the tree takes it as unlimited
  // This aggregator, if it is in the node's only switch and has no limit.
  size_t aggregator = kNone;
  size_t ranks = 0;  // in and below the node
  std::vector<size_t> children;
  bool is_rank = false;
};

struct Fold {
  // Parents before their children; the first one is the root.
  std::vector<FoldNode> nodes;
  // Whether the fabric carries all that the tree carries: all parallel ways have the same parts of the rates at every
  // level. Otherwise the tree is at least as fast as the fabric.
  bool exact = true;
};

// None if ranks are linked to each other, or if the rates of both directions differ somewhere. The graph must be valid.
std::optional<Fold> fold(const Graph& graph);

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_FOLD_H_
