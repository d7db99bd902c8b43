// Whole weights for trees.
#ifndef NETSUM_SRC_PLAN_ROUNDING_H_
#define NETSUM_SRC_PLAN_ROUNDING_H_

#include <cstdint>
#include <vector>

#include "src/plan/graph.h"
#include "src/plan/pack.h"
#include "src/plan/tree.h"

namespace netsum::plan {

// The trees of a packing, and if need be further ones, with whole weights whose sum is at most `most_period`, so that the
// slowest arc or aggregator takes little time; of equal times the smallest sum. Trees without weight are left out.
std::vector<Tree> with_whole_weights(const Graph& graph, TreeKind kind, size_t root, const Packing& packing,
                                     uint32_t most_period);

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_ROUNDING_H_
