// The time of an all-reduce over hosts below a tree of switches, exact, and the hosts and summing switches that make it
// least. docs/placement.md has the conditions.
#ifndef NETSUM_SRC_PLAN_PLACEMENT_TIME_H_
#define NETSUM_SRC_PLAN_PLACEMENT_TIME_H_

#include <cstddef>
#include <optional>
#include <vector>

#include "src/plan/cluster.h"
#include "src/plan/fraction.h"

namespace netsum::plan {

// How many ranks each switch's own hosts may get.
struct Counts {
  std::vector<size_t> least;  // [switch]
  std::vector<size_t> most;
};

struct TimedCounts {
  Fraction time;                    // of a gradient of one bit, in seconds
  std::vector<size_t> counts;       // [switch]: ranks at its own hosts, always the fastest ones
  std::vector<size_t> aggregators;  // switches that sum
};

class PlacementTimes {
 public:
  static constexpr size_t kAll = SIZE_MAX;  // of aggregators: any switches that may sum, however many

  // Only switches marked in `tops` may hold all ranks. The cluster must be valid.
  PlacementTimes(const Cluster& cluster, std::vector<bool> tops);

  // The rates of the free hosts of a switch, the largest first.
  const std::vector<int64_t>& rates(size_t at) const { return rates_[at]; }

  // The least time for `ranks` ranks, at least 2, with at most `aggregators` summing switches, and of these as few as the
  // time allows. None if there are too few hosts. Counts are within `counts`.
  std::optional<TimedCounts> least(const Counts& counts, size_t ranks, size_t aggregators) const;
  // The same if it is less than `time`, and otherwise none. It does not look for the fewest aggregators.
  std::optional<TimedCounts> less(const Counts& counts, size_t ranks, size_t aggregators,
                                  const Fraction& time) const;
  // Whether some counts within `counts` take at most `time`.
  bool feasible(const Counts& counts, size_t ranks, size_t aggregators, const Fraction& time) const;
  // Of these counts with these summing switches.
  Fraction of(const std::vector<size_t>& counts, const std::vector<size_t>& aggregators) const;
  // A ring in the order of racks.
  Fraction ring(const std::vector<size_t>& counts) const;
  // Additions and comparisons of one call of feasible().
  double work(const Counts& counts, size_t ranks, size_t aggregators) const;

 private:
  const Cluster& cluster_;
  std::vector<bool> tops_;
  std::vector<std::vector<size_t>> children_;
  std::vector<std::vector<int64_t>> rates_;
};

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_PLACEMENT_TIME_H_
