// The planner's time for a group of ranks with a number of places. Before it is timed, the plan must not be slower
// than a ring. Half of the ranks have slower links, and every second place has two ports, so that few shares are equal.
//
//   netsum_plan_bench
#include <benchmark/benchmark.h>

#include "src/base/assert.h"
#include "src/plan/planner.h"

namespace netsum::plan {
namespace {

Topology topology(size_t ranks, size_t places, bool racks) {
  Topology topology;
  if (racks) {
    for (int i = 0; i < 16; ++i)
      topology.racks.push_back({"rack" + std::to_string(i), {1e12, 1e12}, kNoRack});
  }
  for (size_t i = 0; i < ranks; ++i) {
    Rank rank;
    rank.name = "worker" + std::to_string(i);
    const double bps = (i % 2 == 0 ? 25e9 : 40e9) + 1e6 * static_cast<double>(i);
    rank.link = {bps, bps};
    if (racks) rank.rack = static_cast<int>(i * 16 / ranks);
    topology.ranks.push_back(rank);
  }
  for (size_t i = 0; i < places; ++i) {
    Place place;
    place.name = "spare" + std::to_string(i);
    place.ports.assign(1 + i % 2, {100e9 + 1e7 * static_cast<double>(i), 100e9});
    place.cores = 2;
    topology.places.push_back(place);
  }
  return topology;
}

void plan_time(benchmark::State& state) {
  const Topology input =
      topology(static_cast<size_t>(state.range(0)), static_cast<size_t>(state.range(1)), state.range(2) != 0);
  const Result<Plan> plan = make_plan(input);
  NETSUM_ASSERT(plan.ok() && (state.range(2) != 0 || !plan->slower_than_ring()));
  for (auto _ : state) benchmark::DoNotOptimize(make_plan(input));
  state.counters["speed_up"] = plan->speed_up;
  state.counters["rounding_loss"] = plan->rounding_loss();
}

BENCHMARK(plan_time)
    ->ArgNames({"ranks", "places", "racks"})
    ->Args({8, 1, 0})
    ->Args({8, 8, 0})
    ->Args({64, 8, 0})
    ->Args({256, 64, 0})
    ->Args({512, 64, 0})
    ->Args({512, 64, 1});

}  // namespace
}  // namespace netsum::plan

BENCHMARK_MAIN();
