// The share planner: computes how much of the gradient each place sums, so that an all-reduce takes the least time.
//
// The model: a link's time is its load, in units of the gradient, divided by its rate. Headers, latency and processor time
// are neglected. Without side effects and deterministic: the same topology gives the same weights on every host, bit for
// bit. docs/decisions.md describes the method.
#ifndef NETSUM_SRC_PLAN_PLANNER_H_
#define NETSUM_SRC_PLAN_PLANNER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "netsum/status.h"
#include "src/plan/topology.h"

namespace netsum::plan {

// One stripe of a plan. Its weight is its chunks per period of the ChunkMap; 0 gets none.
struct StripePlan {
  static constexpr size_t kNone = SIZE_MAX;

  size_t place = kNone;  // index in Topology::places, or kNone for an embedded shard
  size_t rank = kNone;   // of an embedded shard
  size_t port = 0;       // of the place; a switch has one, 0
  size_t core = 0;
  uint32_t weight = 0;

  bool operator==(const StripePlan&) const = default;
};

// A link in one direction, or the limit of a place's sums.
struct LinkLoad {
  std::string name;       // "worker3, in"
  double rate_bps = 0;    // for a limit of sums: gradient bits per second, from each rank
  double load = 0;        // in units of the gradient
  double s_per_byte = 0;  // of gradient, if this were the only link
};

struct Plan {
  // The stripes of places, in the order of Topology::places, by port and core; then the embedded shards, by rank. A job
  // that uses the plan must number its stripes in this order.
  std::vector<StripePlan> stripes;
  uint32_t period = 0;  // sum of the weights

  double s_per_byte = 0;          // of gradient, with these weights
  double optimum_s_per_byte = 0;  // with shares that are real numbers
  double ring_s_per_byte = 0;     // a ring over the same links, its ranks ordered by rack
  double speed_up = 1;            // relative to the ring; 1 if nothing has to be sent

  std::vector<LinkLoad> links;
  size_t bottleneck = 0;   // index in links
  size_t bottlenecks = 0;  // number of links that take at least 99 % of the bottleneck's time

  // The relative time that is lost because weights are small integers: 0.01 is 1 %.
  double rounding_loss() const { return optimum_s_per_byte > 0 ? s_per_byte / optimum_s_per_byte - 1 : 0; }
  // Possible only if the uplinks of racks are the bottleneck, or if shards are not allowed.
  bool slower_than_ring() const { return s_per_byte > ring_s_per_byte * (1 + 1e-6) && ring_s_per_byte > 0; }
  std::vector<uint32_t> weights() const;  // [stripe], for ChunkMap
};

// Errors: those of check().
Result<Plan> make_plan(const Topology& topology);

// The same figures for given weights, one for each stripe in the order of Plan::stripes. They are not rounded, unlike in a
// ChunkMap. Errors: those of check(); kInvalidArgument also for a wrong number of weights, or if all are 0.
Result<Plan> evaluate(const Topology& topology, const std::vector<uint32_t>& weights);

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_PLANNER_H_
