// Trees for a fabric of tiers with many ranks: built along its fold, a few at a time, instead of searched.
#ifndef NETSUM_SRC_PLAN_WEAVE_H_
#define NETSUM_SRC_PLAN_WEAVE_H_

#include <cstdint>
#include <vector>

#include "src/plan/fold.h"
#include "src/plan/fraction.h"
#include "src/plan/graph.h"
#include "src/plan/tree.h"

namespace netsum::plan {

// Two-way trees of weight 1 each, at most `most_trees`, for an all-reduce that is to take about `time`, which is at least
// all_reduce_time() of the fold without its limited aggregators. As few trees as lose at most 0.3 % of it by whole
// numbers, or as many as lose least. All ranks relay.
std::vector<Tree> weave(const Graph& graph, const Fold& fold, double time, uint32_t most_trees);

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_WEAVE_H_
