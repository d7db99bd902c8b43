// Graphs for the planner's tests.
#ifndef NETSUM_SRC_PLAN_GRAPH_TESTING_H_
#define NETSUM_SRC_PLAN_GRAPH_TESTING_H_

#include <utility>
#include <vector>

#include "src/base/rng.h"
#include "src/plan/graph.h"

namespace netsum::plan::testing {

Graph ranks(size_t count);
// The switch follows the ranks.
Graph star(size_t count, int64_t rate);
// The racks' switches follow the ranks, and the core follows them.
Graph racks(size_t count, size_t ranks_each, int64_t rate, int64_t uplink);
Graph torus(size_t rows, size_t columns);
// Links of the first (P) and second (V) generation; of the latter, some are double.
Graph dgx1(bool second);
Graph part_of(const Graph& graph, const std::vector<size_t>& vertices);
// Hosts of 8 GPUs with a switch each, and one NIC per GPU to the even or the odd network.
Graph a100(size_t hosts);
// Hosts of 16 GPUs, linked to each other with 50 or a multiple, and one NIC of 16 per GPU.
Graph mi250(size_t hosts);
// 4 hosts x 2 ranks, an inner switch each, one NIC per rank to the switch of its rail.
Graph rails(bool one_dead);
Graph butterfly();
// k^3 / 4 ranks in three tiers, links of rate 10.
Graph fat_tree(size_t k);
// One to three tiers of switches, up to `most` ranks, some of the switches with an aggregator.
Graph random_racks(Rng& rng, size_t most);

}  // namespace netsum::plan::testing

#endif  // NETSUM_SRC_PLAN_GRAPH_TESTING_H_
