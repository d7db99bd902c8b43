// The ring that a plan is compared with.
#ifndef NETSUM_SRC_PLAN_RING_H_
#define NETSUM_SRC_PLAN_RING_H_

#include <cstddef>
#include <vector>

#include "src/plan/fraction.h"
#include "src/plan/graph.h"

namespace netsum::plan {

struct Ring {
  std::vector<size_t> order;  // vertices of the ranks
  Fraction time;              // of an all-reduce of one gradient
};

// One ring over all ranks. Of up to 8 ranks it is the best order; of more, the order of the fabric's racks, or that of
// the graph. Packets take a way with the fewest arcs through switches, or through other ranks where there is no other.
Ring ring_over(const Graph& graph);

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_RING_H_
