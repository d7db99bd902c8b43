// Which hosts of a cluster a job gets, which switches sum for it, and which rank gets which shard of data: so that the job
// takes the least time. Deterministic; times are fractions. docs/placement.md describes model and method.
#ifndef NETSUM_SRC_PLAN_PLACEMENT_H_
#define NETSUM_SRC_PLAN_PLACEMENT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/plan/cluster.h"
#include "src/plan/fraction.h"
#include "src/plan/placement_data.h"

namespace netsum::plan {

// Up to so many racks, all counts of ranks in the racks are considered.
inline constexpr size_t kMostExactRacks = 16;

struct PlacementJob {
  size_t ranks = 0;  // one on each host
  int64_t gradient_bits = 0;
  Fraction compute_s;  // of an iteration
  int64_t iterations = 1;
  bool overlap = false;  // an iteration takes the longer of computing and all-reduce, not their sum
  std::vector<DataShard> shards;
  size_t aggregators = 0;  // at most so many switches sum
  size_t most_per_rack = SIZE_MAX;
  size_t tier = 0;        // all ranks below one switch of this tier or a lower one; 0: anywhere
  bool required = false;  // otherwise in a larger part of the cluster if the job does not fit
};

struct Placement {
  std::vector<size_t> hosts;        // [rank], in the order of racks
  std::vector<size_t> counts;       // [switch]: ranks at its own hosts
  std::vector<size_t> aggregators;  // switches that sum
  std::vector<size_t> shard_rank;   // [shard]
  std::vector<size_t> shard_replica;

  Fraction time;  // of an all-reduce of one bit by the best trees, in seconds
  Fraction ring;  // of a ring in the order of racks
  int64_t data_ns = 0;
  Fraction total_s;
  Fraction bound_s;        // no placement takes less
  bool all_tried = false;  // all counts were considered: also ties are decided by the rules below
  bool within_tier = true;

  // The part of the bound by which the job takes longer.
  double distance() const { return bound_s > 0 ? (total_s / bound_s).to_double() - 1 : 0; }
};

// Of several placements with the least total time, the one with the least time of an all-reduce; then with the fewest
// aggregators; then with the least difference between the racks' counts; then in the fewest racks; then the one that leaves
// the fewest hosts free in its racks; then the one that fills earlier racks more.
// Errors: those of check() and DataMoves::make(); kInvalidArgument for a job with values out of range; kResourceExhausted if
// there are too few free hosts.
Result<Placement> place(const Cluster& cluster, const PlacementJob& job);

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_PLACEMENT_H_
