// Lower bounds of the time of collectives in a graph, exact and in fractions.
//
// A time is that of one gradient of size 1: of the whole gradient on each rank, also for an all-gather or reduce-scatter,
// whose shards are 1 / N of it. Headers, latency and processor time are neglected. docs/placement.md has the sources.
#ifndef NETSUM_SRC_PLAN_BOUNDS_H_
#define NETSUM_SRC_PLAN_BOUNDS_H_

#include <cstddef>
#include <optional>
#include <string>

#include "netsum/status.h"
#include "src/plan/fold.h"
#include "src/plan/fraction.h"
#include "src/plan/graph.h"

namespace netsum::plan {

struct Bound {
  Fraction time;
  std::string how;    // how it was found, for a person
  bool exact = true;  // some schedule takes this time; otherwise the best one may take longer
};

// All errors are those of check(), and kResourceExhausted for a graph that is too large for its shape.

// Also of a reduce-scatter, which is an all-gather backwards, if both directions have the same rates.
Result<Bound> all_gather_bound(const Graph& graph);

// From the vertex `root`, which must be a rank.
Result<Bound> broadcast_bound(const Graph& graph, size_t root);

// Of an all-reduce, by the closed form for trees of switches. None if the graph cannot be folded to a tree. In one that
// is not folded exactly, it is a bound only.
std::optional<Bound> all_reduce_bound_of_racks(const Graph& graph);

// The same for a tree.
Fraction all_reduce_time(const Fold& fold);

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_BOUNDS_H_
