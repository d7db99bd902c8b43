#include "src/plan/job_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace netsum::plan::job_plan_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr double kMbit = 1e6;

LinkRate rate(double mbit) {
  LinkRate link;
  link.set_in_bps(mbit * kMbit);
  link.set_out_bps(mbit * kMbit);
  return link;
}

PlaceInfo spare(uint64_t id, double mbit = 0) {
  PlaceInfo place;
  place.set_id(id);
  place.set_address("10.0.0." + std::to_string(id) + ":5151");
  place.set_cores(1);
  place.set_stripes(1);
  if (mbit > 0) *place.add_ports()->mutable_link() = rate(mbit);
  return place;
}

JobTopology job(size_t ranks, double mbit, std::vector<PlaceInfo> places) {
  return {.links = std::vector<LinkRate>(ranks, rate(mbit)), .shards = true, .places = std::move(places)};
}

JobPlan planned(const JobTopology& topology, Shares shares = Shares::kAuto) {
  const Result<JobPlan> plan = plan_job(topology, shares);
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  return plan.ok() ? *plan : JobPlan{};
}

// Seconds for one byte, in units of the ring's.
double relative_time(const JobPlan& plan) {
  return plan.summary.s_per_byte() / plan.summary.ring_s_per_byte();
}

TEST(JobPlan, SpareHostsTakeWhatTheFormulaSays) {
  const double ratios[] = {1.00, 1.09, 1.19, 1.38, 1.75};
  const size_t counts[] = {0, 1, 2, 4, 8};
  for (size_t i = 0; i < 5; ++i) {
    std::vector<PlaceInfo> places;
    for (size_t k = 0; k < counts[i]; ++k) places.push_back(spare(k + 1));
    const JobPlan plan = planned(job(8, 100, places));
    EXPECT_NEAR(1 / relative_time(plan), ratios[i], 0.01) << counts[i] << " spare hosts";
    EXPECT_THAT(plan.of_places, SizeIs(counts[i]));
    EXPECT_THAT(plan.of_shards, SizeIs(8));
  }
}

TEST(JobPlan, WithoutAnyRateAllLinksAreEqual) {
  const JobPlan known = planned(job(4, 100, {spare(1), spare(2)}));
  const JobPlan unknown = planned(job(4, 0, {spare(1), spare(2)}));
  EXPECT_EQ(known.of_places, unknown.of_places);
  EXPECT_EQ(known.of_shards, unknown.of_shards);
  EXPECT_THAT(unknown.summary.text(), HasSubstr("no rate is known, all links are taken as equal"));
  EXPECT_THAT(known.summary.text(), HasSubstr("2 links are taken as 100 Mbit/s"));
}

TEST(JobPlan, AnUnknownRateIsThatOfTheSlowestKnownRank) {
  JobTopology topology = job(4, 100, {spare(1, 400)});
  topology.links[1] = rate(50);
  topology.links[3] = LinkRate();
  JobTopology same = topology;
  same.links[3] = rate(50);
  EXPECT_EQ(planned(topology).of_shards, planned(same).of_shards);
  EXPECT_THAT(planned(topology).summary.text(), HasSubstr("1 link is taken as 50 Mbit/s"));
  EXPECT_THAT(planned(same).summary.text(), Not(HasSubstr("taken as")));
}

TEST(JobPlan, ASwitchTakesAllAndShardsNothing) {
  PlaceInfo tor = spare(1);
  tor.set_kind(PlaceInfo::SWITCH);
  const JobPlan plan = planned(job(8, 100, {tor}));
  EXPECT_THAT(plan.of_places, ElementsAre(1));
  EXPECT_THAT(plan.of_shards, Each(0));
  EXPECT_THAT(plan.summary.text(), AllOf(HasSubstr("10.0.0.1:5151 100 %"), Not(HasSubstr("shard"))));

  tor.set_stream_bps(50 * kMbit);
  EXPECT_NEAR(1 / relative_time(planned(job(8, 100, {tor}))), 1.375, 0.01);
}

TEST(JobPlan, UnequalRanksSumInProportion) {
  JobTopology topology = job(8, 100, {});
  for (size_t rank = 0; rank < 4; ++rank) topology.links[rank] = rate(50);
  const JobPlan plan = planned(topology);
  EXPECT_NEAR(1 / relative_time(plan), 1.5, 0.01);
  EXPECT_LT(plan.of_shards[0], plan.of_shards[7]);
  EXPECT_THAT(plan.of_places, IsEmpty());
}

TEST(JobPlan, SeveralPortsAndCoresAreStripes) {
  PlaceInfo four = spare(1);
  for (int port = 0; port < 4; ++port) *four.add_ports()->mutable_link() = rate(100);
  four.set_cores(2);
  four.set_stripes(4);
  const JobPlan plan = planned(job(8, 100, {four}));
  EXPECT_THAT(plan.of_places, SizeIs(4));
  EXPECT_NEAR(1 / relative_time(plan), 1.38, 0.01);
  four.set_stripes(3);
  EXPECT_THAT(plan_job(job(8, 100, {four}), Shares::kAuto).status().message(),
              HasSubstr("10.0.0.1:5151 has 3 stripes, but its 4 ports and 2 cores make 4"));
}

TEST(JobPlan, OffDescribesEqualSharesAndWarns) {
  const JobPlan plan = planned(job(8, 100, {spare(1), spare(2)}), Shares::kOff);
  EXPECT_THAT(plan.of_places, ElementsAre(1, 1));
  EXPECT_THAT(plan.of_shards, Each(0));
  EXPECT_THAT(plan.summary.text(), AllOf(HasSubstr("equal shares: "), HasSubstr("a ring would be faster"),
                                         HasSubstr("NETSUM_SHARES=auto")));
  EXPECT_THAT(planned(job(8, 100, {spare(1), spare(2)})).summary.text(), Not(HasSubstr("WARNING")));
  EXPECT_THAT(planned(job(8, 100, {}), Shares::kOff).summary.text(), Not(HasSubstr("WARNING")))
      << "equal shards are a ring";
}

TEST(JobPlan, NeverSlowerThanARingByDefault) {
  for (size_t ranks = 2; ranks <= 64; ranks += 3) {
    for (size_t places = 0; places <= 9; places += 3) {
      std::vector<PlaceInfo> spares;
      for (size_t k = 0; k < places; ++k) spares.push_back(spare(k + 1));
      EXPECT_LE(relative_time(planned(job(ranks, 0, spares))), 1 + 1e-6) << ranks << ", " << places;
    }
  }
}

TEST(JobPlan, OneRankSumsAtTheAggregator) {
  const JobPlan plan = planned(job(1, 100, {spare(1)}));
  EXPECT_THAT(plan.of_places, ElementsAre(1));
  EXPECT_THAT(plan.of_shards, ElementsAre(0));
  EXPECT_THAT(plan.summary.text(), Not(HasSubstr("ring")));
}

// Aggregators with these ids and rates, for `ranks` ranks each, below one with an unknown rate.
PlaceInfo hierarchy(uint64_t id, std::vector<std::pair<uint64_t, double>> racks, uint32_t ranks) {
  PlaceInfo top = spare(id);
  for (const auto& [rack, mbit] : racks) {
    PlaceInfo& below = *top.add_below();
    below = spare(rack, mbit);
    below.set_ranks(ranks);
  }
  return top;
}

TEST(JobPlan, HierarchiesShareByTheirSlowestAggregators) {
  JobTopology topology =
      job(8, 100, {hierarchy(1, {{11, 100}, {12, 50}}, 4), hierarchy(2, {{21, 150}, {22, 200}}, 4)});
  topology.shards = false;  // the ranks' aggregators have taken them out
  const JobPlan plan = planned(topology);
  EXPECT_THAT(plan.of_places, ElementsAre(1, 3)) << "50 / 5 and 150 / 5";
  EXPECT_THAT(plan.of_shards, Each(0));
  EXPECT_DOUBLE_EQ(plan.summary.s_per_byte(), 8 / (40 * kMbit));
  EXPECT_THAT(plan.summary.bottleneck(), HasSubstr("aggregator 10.0.0.12:5151"));
  EXPECT_THAT(plan.summary.text(),
              AllOf(HasSubstr("aggregator 10.0.0.1:5151 (and 2 below it) 25 %"),
                    HasSubstr("2 links are taken as 100 Mbit/s"),
                    HasSubstr("WARNING: a ring would be faster, unless links between switches limit it: put "
                              "the aggregators of this hierarchy into "
                              "switches")));
  EXPECT_THAT(planned(topology, Shares::kOff).of_places, ElementsAre(1, 1));
  EXPECT_THAT(planned(topology, Shares::kOff).summary.text(), HasSubstr("NETSUM_SHARES=auto"));
}

TEST(JobPlan, AHierarchyOfSwitchesIsLimitedByItsUplinks) {
  std::vector<PlaceInfo> places = {hierarchy(1, {{11, 0}, {12, 0}}, 4), hierarchy(2, {{21, 0}, {22, 0}}, 4)};
  for (PlaceInfo& top : places) {
    top.set_kind(PlaceInfo::SWITCH);
    for (PlaceInfo& rack : *top.mutable_below()) rack.set_kind(PlaceInfo::SWITCH);
  }
  JobTopology topology = job(8, 100, places);
  topology.shards = false;
  const JobPlan equal = planned(topology);
  EXPECT_THAT(equal.of_places, ElementsAre(1, 1)) << "nothing limits them";
  EXPECT_THAT(equal.summary.text(),
              AllOf(HasSubstr("1.75 times as fast"), Not(HasSubstr("WARNING")), Not(HasSubstr("taken as"))));
  *topology.places[0].mutable_below(1)->mutable_uplink() = rate(30);
  *topology.places[1].mutable_below(0)->mutable_uplink() = rate(70);
  EXPECT_THAT(planned(topology).of_places, ElementsAre(3, 7));
  *topology.places[1].mutable_below(0)->mutable_uplink() = rate(1e12);
  EXPECT_THAT(plan_job(topology, Shares::kAuto).status().message(),
              AllOf(HasSubstr("the shares cannot be planned"),
                    HasSubstr("the uplink of place 'aggregator 10.0.0.21:5151'"), HasSubstr("100 Tbit/s")));
}

TEST(JobPlan, TheStripesOfEachAggregatorOfAHierarchyAreChecked) {
  JobTopology topology = job(8, 100, {hierarchy(1, {{11, 0}, {12, 0}}, 4)});
  topology.shards = false;
  topology.places[0].mutable_below(1)->set_stripes(2);
  EXPECT_THAT(plan_job(topology, Shares::kAuto).status().message(),
              HasSubstr("aggregator 10.0.0.12:5151 has 2 stripes, but its 1 ports and 1 cores make 1"));
}

TEST(JobPlan, RefusesWhatCannotBe) {
  const auto refused = [](const JobTopology& topology) {
    return plan_job(topology, Shares::kAuto).status().message();
  };
  EXPECT_THAT(refused(job(4, 1e-9, {})), AllOf(HasSubstr("rank 0"), HasSubstr("0.001 bit/s")));
  EXPECT_THAT(refused(job(4, 100, {spare(1, 1e12)})),
              AllOf(HasSubstr("10.0.0.1:5151"), HasSubstr("from 1 kbit/s to 100 Tbit/s")));
  EXPECT_THAT(
      refused(job(4, 100, {spare(1), spare(2), spare(1)})),
      HasSubstr(
          "aggregator 10.0.0.1:5151 and aggregator 10.0.0.1:5151 are the same aggregator: name it once"));
  JobTopology nan = job(4, 100, {});
  nan.links[2].set_in_bps(std::nan(""));
  EXPECT_THAT(refused(nan), HasSubstr("rank 2"));
}

TEST(JobPlan, ADeclaredRateIsCheckedAtOnce) {
  EXPECT_TRUE(check_declared_rate(0, "link_rate_bps").ok());
  EXPECT_TRUE(check_declared_rate(25e9, "link_rate_bps").ok());
  for (const double bad : {-1.0, 999.0, 1.1e14, std::nan(""), 1e300}) {
    const Status status = check_declared_rate(bad, "link_rate_bps");
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << bad;
    EXPECT_THAT(status.message(), AllOf(HasSubstr("link_rate_bps is"), HasSubstr("1 kbit/s to 100 Tbit/s")));
  }
}

}  // namespace
}  // namespace netsum::plan::job_plan_test
