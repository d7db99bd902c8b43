// The planner against a general solver of linear programs (Clp), against all weights there are, and random properties.
// The models here route each packet by itself and share no code with the planner.
#include <gtest/gtest.h>

#include <chrono>
#include <coin/ClpSimplex.hpp>
#include <coin/CoinPackedMatrix.hpp>
#include <coin/CoinPackedVector.hpp>
#include <cstdlib>

#include "src/base/soak.h"
#include "src/plan/planner.h"
#include "src/plan/routes_testing.h"
#include "src/plan/testing.h"
#include "src/worker/chunk_map.h"

namespace netsum::plan::programs_test {
namespace {

using testing::in_switch;
using testing::random_topology;
using testing::route;
using testing::Routes;
using testing::spare_host;
using testing::time_of;

// The smallest time, in seconds per bit: variables are the shares and the time.
double solve_by_clp(const Routes& routes) {
  const auto leaves = static_cast<int>(routes.leaves);
  const double unit = 1e7;  // rates and times near 1
  CoinPackedMatrix matrix(false, 0, 0);
  matrix.setDimensions(0, leaves + 1);
  std::vector<double> lower;
  std::vector<double> upper;
  for (const auto& link : routes.links) {
    CoinPackedVector row;
    for (int leaf = 0; leaf < leaves; ++leaf) {
      if (const double load = link.load[static_cast<size_t>(leaf)]; load != 0) row.insert(leaf, load);
    }
    row.insert(leaves, -link.rate_bps / unit);
    matrix.appendRow(row);
    lower.push_back(-COIN_DBL_MAX);
    upper.push_back(0);
  }
  CoinPackedVector sum;
  for (int leaf = 0; leaf < leaves; ++leaf) sum.insert(leaf, 1);
  matrix.appendRow(sum);
  lower.push_back(1);
  upper.push_back(1);
  const std::vector<double> least(routes.leaves + 1);
  const std::vector<double> most(routes.leaves + 1, COIN_DBL_MAX);
  std::vector<double> cost(routes.leaves + 1);
  cost.back() = 1;
  ClpSimplex model;
  model.setLogLevel(0);
  model.loadProblem(matrix, least.data(), most.data(), cost.data(), lower.data(), upper.data());
  model.setPrimalTolerance(1e-9);
  model.primal();
  EXPECT_TRUE(model.isProvenOptimal());
  return model.objectiveValue() / unit;
}

// From the plan's stripes: the cores of a port together.
std::vector<double> shares_of(const Plan& plan) {
  std::vector<double> shares;
  for (size_t i = 0; i < plan.stripes.size(); ++i) {
    const StripePlan& stripe = plan.stripes[i];
    const bool same_leaf = i > 0 && stripe.rank == StripePlan::kNone &&
                           plan.stripes[i - 1].place == stripe.place &&
                           plan.stripes[i - 1].port == stripe.port;
    if (!same_leaf) shares.push_back(0);
    shares.back() += static_cast<double>(stripe.weight) / plan.period;
  }
  return shares;
}

uint64_t first_seed() {
  if (const char* seed = std::getenv("NETSUM_SIM_SEED")) return std::strtoull(seed, nullptr, 10);
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()) % 1'000'000'000;
}

// Runs `check` on random topologies; each failure names its seed.
template <typename Check>
void for_random_topologies(int runs, size_t most_ranks, bool racks, Check check) {
  const uint64_t first = first_seed();
  for (int i = 0; i < runs && !::testing::Test::HasFailure(); ++i) {
    const uint64_t seed = first + static_cast<uint64_t>(i);
    SCOPED_TRACE("replay: NETSUM_SIM_SEED=" + std::to_string(seed));
    Rng rng(seed);
    check(random_topology(rng, most_ranks, racks), rng);
  }
}

void compare_with_clp(const Topology& topology) {
  const Result<Plan> plan = make_plan(topology);
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  const Routes routes = route(topology);
  const double best = solve_by_clp(routes) * 8;
  ASSERT_NEAR(plan->optimum_s_per_byte, best, 1e-7 * best + 1e-16);
  ASSERT_NEAR(time_of(routes, shares_of(*plan)) * 8, plan->s_per_byte, 1e-9 * plan->s_per_byte);
  ASSERT_GE(plan->rounding_loss(), -1e-9);
}

TEST(Programs, OptimumIsTheGeneralSolversWithoutRacks) {
  for_random_topologies(400, 12, false, [](const Topology& topology, Rng&) { compare_with_clp(topology); });
}

TEST(Programs, OptimumIsTheGeneralSolversWithNestedRacks) {
  for_random_topologies(400, 12, true, [](const Topology& topology, Rng&) { compare_with_clp(topology); });
}

// An aggregator with one port, or in a switch, above this number of levels of others.
Place random_aggregator(Rng& rng, const std::string& name, size_t levels) {
  Place place = rng.below(3) == 0 ? in_switch(0) : spare_host(name, static_cast<double>(1 + rng.below(500)));
  place.name = name;
  place.cores = 1 + rng.below(3);
  place.multicast = rng.below(3) == 0;
  if (rng.below(4) == 0) place.limits.adds_per_second = static_cast<double>(1 + rng.below(100)) * 1e6;
  if (rng.below(4) == 0) place.limits.stream_bps = static_cast<double>(1 + rng.below(100)) * 1e6;
  const size_t below = levels == 0 ? 0 : 1 + rng.below(3);
  for (size_t i = 0; i < below; ++i) {
    place.below.push_back(random_aggregator(rng, name + "." + std::to_string(i), levels - 1));
    if (rng.below(2) == 0) place.below[i].uplink = testing::link(static_cast<double>(1 + rng.below(300)));
  }
  place.members = below + rng.below(4) + (below == 0 ? 1 : 0);
  return place;
}

TEST(Programs, OptimumIsTheGeneralSolversWithHierarchies) {
  for_random_topologies(400, 12, false, [](Topology topology, Rng& rng) {
    const size_t hierarchies = 1 + rng.below(3);
    for (size_t i = 0; i < hierarchies; ++i)
      topology.places.push_back(random_aggregator(rng, "top" + std::to_string(i), 1 + rng.below(2)));
    compare_with_clp(topology);
  });
}

TEST(Programs, OptimumIsTheGeneralSolversForManyRanks) {
  for_random_topologies(5, 200, true, [](const Topology& topology, Rng&) { compare_with_clp(topology); });
}

// All weights of three stripes whose sum is at most 256. Longer periods may be faster.
TEST(Programs, NoOtherWeightsAreFaster) {
  // In the long form three million weights each.
  for_random_topologies(soak() ? 20 : 2, 1, false, [](const Topology&, Rng& rng) {
    Topology topology = testing::equal_ranks(3);
    for (Rank& rank : topology.ranks) rank.link = testing::link(static_cast<double>(50 + rng.below(100)));
    topology.ranks[2].shard = false;
    topology.places.push_back(spare_host("spare", static_cast<double>(20 + rng.below(200))));
    const Routes routes = route(topology);
    double best = INFINITY;
    for (size_t period = 1; period <= 256; period += soak() ? 1 : 5) {
      for (size_t a = 0; a <= period; ++a) {
        for (size_t b = 0; a + b <= period; ++b) {
          const auto sum = static_cast<double>(period);
          best = std::min(best, time_of(routes, {static_cast<double>(a) / sum, static_cast<double>(b) / sum,
                                                 static_cast<double>(period - a - b) / sum}));
        }
      }
    }
    const Result<Plan> plan = make_plan(topology);
    ASSERT_TRUE(plan.ok());
    ASSERT_LE(plan->s_per_byte, best * 8 * (1 + 1e-8));
    ASSERT_NEAR(plan->s_per_byte, time_of(routes, shares_of(*plan)) * 8, 1e-9 * plan->s_per_byte);
  });
}

TEST(Programs, TheChunkMapTakesTheWeightsExactly) {
  for_random_topologies(100, 300, true, [](const Topology& topology, Rng&) {
    const Result<Plan> plan = make_plan(topology);
    ASSERT_TRUE(plan.ok());
    const std::vector<uint32_t> weights = plan->weights();
    const ChunkMap map(weights);
    std::vector<uint64_t> places(weights.size());
    for (const uint16_t stripe : map.period()) ++places[stripe];
    for (size_t stripe = 0; stripe < weights.size(); ++stripe) {
      ASSERT_EQ(places[stripe] * plan->period, uint64_t{weights[stripe]} * map.period().size()) << stripe;
    }
  });
}

TEST(Programs, NeverSlowerThanARingWhereAllRanksMayEmbedShards) {
  for_random_topologies(300, 40, false, [](Topology topology, Rng&) {
    for (Rank& rank : topology.ranks) {
      rank.shard = true;
      rank.limits = {};
    }
    const Result<Plan> plan = make_plan(topology);
    ASSERT_TRUE(plan.ok());
    ASSERT_LE(plan->s_per_byte, plan->ring_s_per_byte * (1 + 1e-8));
    ASSERT_FALSE(plan->slower_than_ring());
  });
}

TEST(Programs, AnotherPlaceNeverMakesItSlower) {
  for_random_topologies(300, 30, true, [](Topology topology, Rng& rng) {
    const Result<Plan> before = make_plan(topology);
    topology.places.push_back(rng.below(2) == 0
                                  ? spare_host("one more", static_cast<double>(1 + rng.below(500)))
                                  : in_switch(static_cast<double>(1 + rng.below(100))));
    const Result<Plan> after = make_plan(topology);
    ASSERT_TRUE(before.ok() && after.ok());
    ASSERT_LE(after->optimum_s_per_byte, before->optimum_s_per_byte * (1 + 1e-9));
    ASSERT_LE(after->s_per_byte, before->s_per_byte * (1 + 1e-8));
  });
}

TEST(Programs, TheSameInputGivesTheSamePlan) {
  for_random_topologies(50, 60, true, [](const Topology& topology, Rng&) {
    const Result<Plan> one = make_plan(topology);
    const Result<Plan> other = make_plan(Topology(topology));
    ASSERT_EQ(one->stripes, other->stripes);
    ASSERT_EQ(one->s_per_byte, other->s_per_byte);
  });
}

}  // namespace
}  // namespace netsum::plan::programs_test
