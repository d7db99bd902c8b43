#include "src/plan/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "src/base/rng.h"
#include "src/plan/testing.h"
#include "src/worker/chunk_map.h"

namespace netsum::plan::planner_test {
namespace {

using ::testing::ElementsAre;
using testing::equal_ranks;
using ::testing::HasSubstr;
using testing::in_switch;
using testing::kMbit;
using testing::link;
using testing::spare_host;
using testing::with_spare_hosts;

constexpr double kSecondsPerByteAt100Mbit = 8 / (100 * kMbit);

Plan planned(const Topology& topology) {
  Result<Plan> plan = make_plan(topology);
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  return plan.ok() ? std::move(plan).value() : Plan{};
}

// The formula of equal links: N ranks of rate `rank`, k spare hosts of rate `spare`, a switch that sums `stream` from
// each rank. Seconds per byte.
double formula(double n, double k, double rank, double spare, double stream) {
  const double beside = stream + k * spare / n;
  const double shards = 2 * (n - 1) / ((n - 2) * beside + n * rank);
  const bool none_negative = shards * rank >= 1;
  return 8 * (none_negative ? shards : std::max(1 / rank, 1 / beside));
}

double load_of(const Plan& plan, const std::string& name) {
  for (const LinkLoad& link : plan.links) {
    if (link.name == name) return link.load;
  }
  ADD_FAILURE() << "no link " << name;
  return 0;
}

TEST(Planner, EqualSpareHostsReachTheFormula) {
  const std::map<size_t, double> ratios = {{0, 1.00}, {1, 1.09}, {2, 1.19}, {4, 1.38}, {8, 1.75}};
  for (const auto& [spares, ratio] : ratios) {
    const Plan plan = planned(with_spare_hosts(8, spares));
    EXPECT_NEAR(plan.ring_s_per_byte / plan.optimum_s_per_byte, ratio, 0.006) << spares;
    EXPECT_NEAR(plan.optimum_s_per_byte, formula(8, static_cast<double>(spares), 100 * kMbit, 100 * kMbit, 0),
                1e-16);
    EXPECT_GE(plan.rounding_loss(), -1e-9);
    EXPECT_LT(plan.rounding_loss(), 0.01) << spares;
    EXPECT_LE(plan.period, 256u);
  }
}

TEST(Planner, MoreSpareHostsThanRanksShareEvenlyAndNoShardSums) {
  const Plan plan = planned(with_spare_hosts(4, 8));
  EXPECT_DOUBLE_EQ(plan.s_per_byte, kSecondsPerByteAt100Mbit);
  EXPECT_THAT(plan.weights(), ElementsAre(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0));
}

TEST(Planner, EqualShardsAreARing) {
  const Plan plan = planned(equal_ranks(8));
  EXPECT_THAT(plan.weights(), ElementsAre(1, 1, 1, 1, 1, 1, 1, 1));
  EXPECT_NEAR(plan.speed_up, 1, 1e-12);
  EXPECT_NEAR(load_of(plan, "worker3, in"), 2 * 7.0 / 8, 1e-12);
  EXPECT_EQ(plan.bottlenecks, 16u) << "both directions of each link";
}

TEST(Planner, AFasterSpareLinkCountsAsThatManySpareHosts) {
  const Plan fast = planned(with_spare_hosts(8, 1, 100, 400));
  EXPECT_NEAR(fast.optimum_s_per_byte, formula(8, 4, 100 * kMbit, 100 * kMbit, 0), 1e-16);
  EXPECT_NEAR(fast.speed_up, 1.375, 0.01);
}

TEST(Planner, FourPortsCountAsFourSpareHostsEachWithACoreOfItsOwn) {
  Topology topology = equal_ranks(8);
  topology.places.push_back(spare_host("spare", 100, 4));
  const Plan plan = planned(topology);
  EXPECT_NEAR(plan.optimum_s_per_byte, formula(8, 4, 100 * kMbit, 100 * kMbit, 0), 1e-16);
  ASSERT_EQ(plan.stripes.size(), 12u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(plan.stripes[i].port, i);
    EXPECT_EQ(plan.stripes[i].core, i);
    EXPECT_NEAR(plan.stripes[i].weight, plan.stripes[0].weight, 1);
  }
}

TEST(Planner, ThePortsOfAPlaceShareItsLimit) {
  Topology topology = equal_ranks(8);
  topology.places.push_back(spare_host("spare", 400, 4));
  topology.places[0].limits.adds_per_second = 8 * 30 * kMbit / 32;  // 30 Mbit/s from each of 8 ranks
  const Plan plan = planned(topology);
  EXPECT_NEAR(plan.optimum_s_per_byte, formula(8, 0, 100 * kMbit, 1, 30 * kMbit), 1e-16);
}

TEST(Planner, CoresOfOnePortTakeEqualParts) {
  Topology topology = with_spare_hosts(4, 1, 100, 200);
  topology.places[0].cores = 3;
  for (Rank& rank : topology.ranks) rank.shard = false;
  const Plan plan = planned(topology);
  ASSERT_EQ(plan.stripes.size(), 3u);
  uint32_t sum = 0;
  for (const StripePlan& stripe : plan.stripes) {
    EXPECT_NEAR(stripe.weight, static_cast<double>(plan.period) / 3, 1);
    sum += stripe.weight;
  }
  EXPECT_EQ(sum, plan.period);
}

TEST(Planner, SlowRanksSumLess) {
  Topology topology = equal_ranks(8);
  for (size_t i = 0; i < 4; ++i) topology.ranks[i].link = link(50);
  const Plan plan = planned(topology);
  // g = (t R - 1) / 6, which sums to 1: 4 (50 t - 1) + 4 (100 t - 1) = 6.
  EXPECT_NEAR(plan.optimum_s_per_byte, 8 * 14.0 / 600 / kMbit, 1e-16);
  EXPECT_NEAR(plan.speed_up, 1.5, 0.02);
  EXPECT_LT(plan.stripes[0].weight * 5, plan.stripes[7].weight);
  EXPECT_THAT(plan.links[plan.bottleneck].name, HasSubstr("worker"));
}

TEST(Planner, ASwitchAtHalfTheRateSharesWithTheRanks) {
  Topology topology = equal_ranks(8);
  topology.places.push_back(in_switch(50));
  const Plan plan = planned(topology);
  EXPECT_NEAR(plan.optimum_s_per_byte, formula(8, 0, 100 * kMbit, 1, 50 * kMbit), 1e-16);
  EXPECT_LT(plan.rounding_loss(), 0.01);
  EXPECT_NEAR(load_of(plan, "tor, sums"), plan.stripes[0].weight / static_cast<double>(plan.period), 1e-12);
}

TEST(Planner, ASwitchThatKeepsUpSumsAll) {
  Topology topology = with_spare_hosts(8, 2);
  topology.places.push_back(in_switch(0));  // no limit
  const Plan plan = planned(topology);
  EXPECT_THAT(plan.weights(), ElementsAre(0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_DOUBLE_EQ(plan.s_per_byte, kSecondsPerByteAt100Mbit);
  EXPECT_DOUBLE_EQ(load_of(plan, "worker5, out"), 1);
}

TEST(Planner, AllCoresOfASwitchSum) {
  Topology topology = equal_ranks(4);
  topology.places.push_back(in_switch(0));
  topology.places[0].cores = 3;
  EXPECT_THAT(planned(topology).weights(), ElementsAre(1, 1, 1, 0, 0, 0, 0));
  topology.places.push_back(in_switch(0));
  topology.places[1].name = "another";
  EXPECT_THAT(planned(topology).weights(), ElementsAre(1, 1, 1, 3, 0, 0, 0, 0));
}

TEST(Planner, SlotsLimitASwitchByTheRoundTrip) {
  Topology topology = equal_ranks(8);
  topology.places.push_back(in_switch(0));
  topology.places[0].limits = {.slots = 125, .slot_bytes = 1000, .round_trip_s = 0.02};  // 50 Mbit/s
  EXPECT_NEAR(planned(topology).optimum_s_per_byte, formula(8, 0, 100 * kMbit, 1, 50 * kMbit), 1e-16);
}

TEST(Planner, AMulticastResultLeavesOnce) {
  Topology topology = with_spare_hosts(8, 1);
  for (Rank& rank : topology.ranks) rank.shard = false;
  topology.places[0].multicast = true;
  Plan plan = planned(topology);
  EXPECT_DOUBLE_EQ(load_of(plan, "spare0, in"), 8);
  EXPECT_DOUBLE_EQ(load_of(plan, "spare0, out"), 1);
  EXPECT_EQ(plan.links[plan.bottleneck].name, "spare0, in");
  // Where only the outgoing direction is slow, it matters.
  topology.places[0].ports[0] = {800 * kMbit, 100 * kMbit};
  EXPECT_DOUBLE_EQ(planned(topology).s_per_byte, kSecondsPerByteAt100Mbit);
  topology.places[0].multicast = false;
  EXPECT_DOUBLE_EQ(planned(topology).s_per_byte, 8 * kSecondsPerByteAt100Mbit);
}

TEST(Planner, OneSpareHostAloneIsSlowerThanARing) {
  Topology topology = with_spare_hosts(8, 1);
  for (Rank& rank : topology.ranks) rank.shard = false;
  const Plan plan = planned(topology);
  EXPECT_TRUE(plan.slower_than_ring());
  EXPECT_NEAR(1 / plan.speed_up, 8 / 1.75, 1e-9);
}

TEST(Planner, AUselessPlaceGetsNothing) {
  Topology topology = with_spare_hosts(8, 2);
  topology.places[1].ports[0] = {1e3, 1e3};  // 1 kbit/s
  const Plan plan = planned(topology);
  EXPECT_GT(plan.stripes[0].weight, 0u);
  EXPECT_EQ(plan.stripes[1].weight, 0u);
}

TEST(Planner, TwoRanks) {
  const Plan shards = planned(equal_ranks(2));
  EXPECT_THAT(shards.weights(), ElementsAre(1, 1));
  EXPECT_DOUBLE_EQ(shards.s_per_byte, kSecondsPerByteAt100Mbit);
  EXPECT_NEAR(shards.speed_up, 1, 1e-12);
  EXPECT_DOUBLE_EQ(planned(with_spare_hosts(2, 1)).s_per_byte, kSecondsPerByteAt100Mbit);
}

TEST(Planner, OneRank) {
  const Plan alone = planned(equal_ranks(1));
  EXPECT_THAT(alone.weights(), ElementsAre(1));
  EXPECT_EQ(alone.s_per_byte, 0);
  EXPECT_EQ(alone.speed_up, 1);
  EXPECT_FALSE(alone.slower_than_ring());
  Topology sends = with_spare_hosts(1, 1);
  sends.ranks[0].shard = false;
  EXPECT_DOUBLE_EQ(planned(sends).s_per_byte, kSecondsPerByteAt100Mbit);
}

// Two racks of 4 with a slow uplink each: a share that is summed behind an uplink crosses it for the 4 ranks elsewhere.
TEST(Planner, AnUplinkIsCountedAndNamed) {
  Topology topology = equal_ranks(8);
  topology.racks = {{"a", link(50), kNoRack}, {"b", link(50), kNoRack}};
  for (size_t i = 0; i < 8; ++i) topology.ranks[i].rack = i < 4 ? 0 : 1;
  const Plan plan = planned(topology);
  EXPECT_NEAR(load_of(plan, "uplink of a, in"), 4, 1e-12);
  EXPECT_THAT(plan.links[plan.bottleneck].name, HasSubstr("uplink of"));
  EXPECT_DOUBLE_EQ(plan.s_per_byte, 8 * 4 / (50 * kMbit));
  EXPECT_DOUBLE_EQ(plan.ring_s_per_byte, 8 * 1.75 / (50 * kMbit))
      << "a ring by racks crosses each uplink once";
  EXPECT_TRUE(plan.slower_than_ring());
}

// Two racks of `members` ranks each, below a place of rate `top_mbit`, with aggregators of these rates.
Place hierarchy(const std::string& name, double top_mbit, std::vector<double> racks_mbit, size_t members) {
  Place top = spare_host(name, top_mbit);
  top.members = racks_mbit.size();
  for (size_t i = 0; i < racks_mbit.size(); ++i) {
    top.below.push_back(spare_host(name + "-rack" + std::to_string(i), racks_mbit[i]));
    top.below[i].members = members;
  }
  return top;
}

Topology without_shards(size_t ranks, std::vector<Place> places, double mbit = 1000) {
  Topology topology = equal_ranks(ranks, mbit);
  for (Rank& rank : topology.ranks) rank.shard = false;
  topology.places = std::move(places);
  return topology;
}

// The link of an aggregator with n members, below another one, carries (n + 1) times its share each way; the topmost one's
// carries it once for each rack. The shares of several hierarchies are in proportion to what their slowest link allows.
TEST(Planner, AHierarchyIsAsFastAsItsSlowestAggregator) {
  const Plan alone = planned(without_shards(8, {hierarchy("a", 100, {100, 50}, 4)}));
  EXPECT_DOUBLE_EQ(alone.s_per_byte, 8 * 5 / (50 * kMbit));
  EXPECT_DOUBLE_EQ(load_of(alone, "a, in"), 2);
  EXPECT_DOUBLE_EQ(load_of(alone, "a-rack0, out"), 5);
  EXPECT_EQ(alone.links[alone.bottleneck].name, "a-rack1, in");
  EXPECT_TRUE(alone.slower_than_ring());

  const Plan both =
      planned(without_shards(8, {hierarchy("a", 100, {100, 50}, 4), hierarchy("b", 60, {1000, 1000}, 4)}));
  // 50 / 5 = 10 and 60 / 2 = 30 Mbit/s of gradient.
  EXPECT_THAT(both.weights(), ElementsAre(1, 3));
  EXPECT_DOUBLE_EQ(both.s_per_byte, 8 / (40 * kMbit));
}

TEST(Planner, BesideAHierarchyASpareHostOfAllRanksCarriesEachRank) {
  const Plan plan = planned(without_shards(8, {hierarchy("a", 100, {100, 100}, 4), spare_host("spare", 80)}));
  EXPECT_THAT(plan.weights(), ElementsAre(2, 1)) << "100 / 5 and 80 / 8";
  EXPECT_DOUBLE_EQ(plan.s_per_byte, 8 / (30 * kMbit));
}

TEST(Planner, OfASwitchBelowAnotherOnlyTheUplinkCounts) {
  std::vector<Place> places;
  for (const double mbit : {50.0, 200.0}) {
    Place top = in_switch(0);
    top.name = "spine" + std::to_string(places.size());
    top.members = 2;
    for (const char* rack : {"-left", "-right"}) {
      Place tor = in_switch(0);
      tor.name = top.name + rack;
      tor.members = 4;
      tor.uplink = link(mbit);
      top.below.push_back(tor);
    }
    places.push_back(top);
  }
  const Plan plan = planned(without_shards(8, places, 250));
  EXPECT_THAT(plan.weights(), ElementsAre(1, 4));
  EXPECT_DOUBLE_EQ(load_of(plan, "uplink of spine0-left, out"), 0.2);
  EXPECT_DOUBLE_EQ(plan.s_per_byte, 8 / (250 * kMbit)) << "no slower than the links of the ranks";
  places[1].below[0].uplink.reset();
  places[1].below[1].uplink = link(50);
  EXPECT_THAT(planned(without_shards(8, places, 250)).weights(), ElementsAre(1, 1));
}

TEST(Planner, EachLevelOfAHierarchyCounts) {
  Place top = hierarchy("core", 1000, {300, 1000}, 1);
  top.members = 3;  // a rank, too
  top.below[0].members = 2;
  top.below[0].below = {spare_host("rack", 100)};
  top.below[0].below[0].members = 3;
  const Plan plan = planned(without_shards(6, {top}));
  EXPECT_DOUBLE_EQ(load_of(plan, "core, in"), 3);
  EXPECT_DOUBLE_EQ(load_of(plan, "core-rack0, in"), 3);
  EXPECT_DOUBLE_EQ(load_of(plan, "rack, in"), 4);
  EXPECT_EQ(plan.links[plan.bottleneck].name, "rack, in");
}

TEST(Planner, OnlyTheLowestAggregatorsSendResultsByMulticast) {
  Place top = hierarchy("a", 100, {100, 100}, 4);
  top.multicast = top.below[0].multicast = true;
  const Plan plan = planned(without_shards(8, {top}));
  EXPECT_DOUBLE_EQ(load_of(plan, "a, out"), 2) << "its members are aggregators";
  EXPECT_DOUBLE_EQ(load_of(plan, "a-rack0, out"), 2) << "a result, and the sum upwards";
  EXPECT_DOUBLE_EQ(load_of(plan, "a-rack1, out"), 5);
}

TEST(Planner, WhatAnAggregatorOfAHierarchyCanSumIsOfItsMembers) {
  Place top = hierarchy("a", 1e5, {1e5, 1e5}, 4);
  top.below[1].limits.adds_per_second = 4 * 20 * kMbit / 32;  // 20 Mbit/s from each of 4 members
  EXPECT_DOUBLE_EQ(planned(without_shards(8, {top})).s_per_byte, 8 / (20 * kMbit));
  top.limits.adds_per_second = 2 * 10 * kMbit / 32;
  EXPECT_DOUBLE_EQ(planned(without_shards(8, {top})).s_per_byte, 8 / (10 * kMbit));
}

TEST(Planner, PortsOfAHierarchyHaveUnequalSharesWhereTheStripesAllowIt) {
  Place top = hierarchy("a", 1000, {0, 1000}, 4);
  top.cores = 2;
  top.below[0].ports = {link(100), link(300)};
  top.below[0].cores = top.below[1].cores = 2;
  const Plan plan = planned(without_shards(8, {top}));
  EXPECT_THAT(plan.weights(), ElementsAre(1, 3));
  EXPECT_DOUBLE_EQ(plan.s_per_byte, 8 * 5 / (400 * kMbit));
  EXPECT_DOUBLE_EQ(load_of(plan, "a-rack0 port 1, in"), 5 * 0.75);

  // The second rack's ports divide four stripes otherwise: all of them hang together.
  top.cores = top.below[0].cores = top.below[1].cores = 4;
  top.below[0].ports = {link(100), link(100)};  // two stripes each
  top.below[1].ports = {link(300), link(50)};   // three and one
  const Plan four = planned(without_shards(8, {top}));
  EXPECT_THAT(four.weights(), ElementsAre(1, 1, 1, 1));
  EXPECT_DOUBLE_EQ(load_of(four, "a-rack1 port 0, in"), 5 * 0.75);
  EXPECT_DOUBLE_EQ(load_of(four, "a-rack0 port 0, in"), 5 * 0.5);
}

TEST(Planner, AHierarchyHasAsManyStripesAsItsSmallestAggregator) {
  Place top = hierarchy("a", 100, {100, 100}, 4);
  top.cores = 5;
  top.below[0].cores = top.below[1].cores = 3;
  EXPECT_THAT(planned(without_shards(8, {top})).weights(), ElementsAre(1, 1, 1));
  top.ports.assign(2, link(100));  // three cores for the first, two for the second
  EXPECT_DOUBLE_EQ(load_of(planned(without_shards(8, {top})), "a port 0, in"), 2);
}

// More stripes than short periods have positions.
TEST(Planner, TheLargestGroupsLoseNothingToRounding) {
  Topology topology = with_spare_hosts(512, 64);
  for (size_t i = 0; i < 512; ++i)
    topology.ranks[i].link = link(i % 2 == 0 ? 100 : 250 + 0.1 * static_cast<double>(i));
  for (Place& place : topology.places) place.cores = 2;
  const Plan plan = planned(topology);
  EXPECT_LT(plan.rounding_loss(), 0.01);
  EXPECT_LE(plan.period, ChunkMap::kMaxPeriod);
}

TEST(Planner, LargeGroupsBesideAUselessPlaceAreStillARing) {
  Topology topology = with_spare_hosts(300, 1);
  topology.places[0].ports[0] = {1e3, 1e3};
  const Plan plan = planned(topology);
  EXPECT_FALSE(plan.slower_than_ring());
  EXPECT_EQ(plan.period, 300u);
}

TEST(Planner, LargeGroupsUseEveryStripeOnce) {
  const Plan plan = planned(equal_ranks(512));
  EXPECT_EQ(plan.period, 512u);
  EXPECT_NEAR(plan.speed_up, 1, 1e-9);
}

TEST(Planner, EvaluatesGivenWeights) {
  const Topology topology = with_spare_hosts(8, 1);
  const Result<Plan> equal = evaluate(topology, std::vector<uint32_t>(9, 1));
  ASSERT_TRUE(equal.ok());
  EXPECT_NEAR(load_of(*equal, "worker0, in"), 1 + 6.0 / 9, 1e-12);
  EXPECT_NEAR(load_of(*equal, "spare0, out"), 8.0 / 9, 1e-12);
  const Plan best = planned(topology);
  EXPECT_EQ(evaluate(topology, best.weights())->s_per_byte, best.s_per_byte);
  EXPECT_THAT(evaluate(topology, {1, 2}).status().message(), HasSubstr("2 weights for 9 stripes"));
  EXPECT_THAT(evaluate(topology, std::vector<uint32_t>(9)).status().message(), HasSubstr("above 0"));
}

TEST(Planner, WeightsWhoseSumIsNoNumberOf32BitsAreRefused) {
  const Result<Plan> plan = evaluate(with_spare_hosts(2, 1), {UINT32_MAX, 1, 1});
  EXPECT_THAT(plan.status().message(), HasSubstr("more than the limit of 4294967295"));
}

// Whatever the numbers are, the answer is a plan with finite times, or an error.
TEST(Planner, ExtremeNumbersEndInAPlanOrAnError) {
  const double extremes[] = {5e-324, 1e-300, 1e-20, 1,    1e3,  1e14,     1e18,
                             1e20,   1e300,  -1,    1e-9, 1e-6, INFINITY, NAN};
  Rng rng(7);
  const auto any = [&] { return extremes[rng.below(std::size(extremes))]; };
  int planned = 0;
  for (int i = 0; i < 400; ++i) {
    Topology topology = with_spare_hosts(i % 2 == 0 ? 64 : 3, 2);
    if (i % 3 == 0) topology.places[0].ports[0].in_bps = any();
    if (i % 5 == 0) topology.ranks[1].link.out_bps = any();
    SumLimits& limits = i % 4 == 0 ? topology.ranks[0].limits : topology.places[1].limits;
    limits.adds_per_second = any();
    if (i % 7 == 0) limits.stream_bps = any();
    if (i % 11 == 0) limits.slots = limits.slot_bytes = limits.round_trip_s = any();
    const Result<Plan> plan = make_plan(topology);
    if (!plan.ok()) continue;
    ++planned;
    EXPECT_TRUE(std::isfinite(plan->s_per_byte) && plan->s_per_byte > 0) << i;
    EXPECT_GT(plan->period, 0u);
  }
  EXPECT_GT(planned, 20);
}

}  // namespace
}  // namespace netsum::plan::planner_test
