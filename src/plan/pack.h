// Packs trees into a graph so that an all-reduce or a broadcast takes the least time, and proves how good they are.
#ifndef NETSUM_SRC_PLAN_PACK_H_
#define NETSUM_SRC_PLAN_PACK_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "netsum/status.h"
#include "src/plan/bounds.h"
#include "src/plan/fraction.h"
#include "src/plan/graph.h"
#include "src/plan/tree.h"

namespace netsum::plan {

enum class TreeKind : uint8_t {
  kTwoWay,     // all-reduce: contributions go up a tree's edges, results down
  kBroadcast,  // from one rank
  kPairs,      // all-reduce by an in-tree and an out-tree of the same root: only for the bound
};

// Trees with fractional rates. No arc and no aggregator is overloaded.
struct Packing {
  std::vector<Tree> trees;
  std::vector<Fraction> rates;  // [tree]: gradients per unit of time
  Fraction rate;                // their sum
  Fraction most;  // no trees of this kind have a larger sum; if it is `rate`, the packing is proved best
};

// Graphs up to this size are packed by column generation.
inline constexpr size_t kMostPackedRanks = 64;
inline constexpr size_t kMostPackedArcs = 800;

// `root` is used for kBroadcast only. The graph must be valid and have at least two ranks.
// Errors: kResourceExhausted above these limits; kUnreachable if ranks that must not relay leave no tree.
Result<Packing> pack(const Graph& graph, TreeKind kind, size_t root = 0);

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_PACK_H_
