// A lying aggregator as real ranks of the XDP dataplane see it: somebody on its links who has its keys alters what it sends, or
// what it receives. No wrong sum is delivered, and every lie that reaches a rank in time is noticed.
#include "tests/attack/lies_rack_fixture.h"

namespace netsum::attack::xdp_lies_test {
namespace {

using emulate::Lie;
class XdpLies : public VerifiedXdpRack {};

// The test sees what it is to find.
TEST_F(XdpRack, WithoutVerifiedSumsLiesAreDelivered) {
  RackOptions options{.jobs = kKinds, .operations = 4, .verify = Verify::kPacket};
  options.liar = {.probability = 0.3, .kind = Lie::kNoise};
  if (!run(options)) return;
  EXPECT_GT(report_.sum(&RankReport::wrong_results), 0u);
  EXPECT_EQ(report_.sum(&RankReport::sums_refused), 0u);
}

TEST_P(XdpLies, LiesThatAreNotRepeatedAreNoticedAndAskedForAgain) {
  RackOptions options{.jobs = kKinds, .operations = 10, .verify = GetParam()};
  options.liar = {.probability = 0.3, .times = 2};
  if (!run(options)) return;
  expect_injected(kKinds);
  EXPECT_EQ(report_.sum(&RankReport::wrong_results), 0u);
  EXPECT_EQ(report_.sum(&RankReport::operations), uint64_t{kRackRanks} * kKinds * 10);
  // Every one was noticed, but perhaps some whose tag was wrong in a bit that does not count, and nothing else was refused.
  const uint64_t refused = report_.sum(&RankReport::sums_refused);
  EXPECT_LE(refused, report_.path.wrong_in_time);
  EXPECT_GE(refused, report_.path.wrong_in_time - report_.path.wrong_tag);
  EXPECT_GT(report_.path.wrong_in_time, report_.path.wrong_tag);
}

TEST_P(XdpLies, WhatStaysWrongEndsTheJob) {
  RackOptions options{.jobs = kKinds, .operations = 20, .verify = GetParam()};
  options.liar = {.probability = 1, .times = 1'000'000, .about = PathLiar::About::kAllResults};
  if (!run(options)) return;
  expect_injected(kKinds);
  EXPECT_EQ(report_.sum(&RankReport::wrong_results), 0u);
  EXPECT_GT(report_.sum(&RankReport::sums_refused), 0u);
  expect_all_jobs(&RankReport::jobs_wrong_sum);
}

// Each job takes a while to meet again, so there are a few only.
TEST_P(XdpLies, TheJobLeavesTheAggregatorForTheHosts) {
  constexpr int kJobs = 3;
  RackOptions options{.jobs = kJobs, .operations = 10, .verify = GetParam(), .failover = true};
  options.liar = {.probability = 1, .times = 1'000'000, .about = PathLiar::About::kAllResults};
  if (!run(options)) return;
  expect_injected(kJobs);
  EXPECT_EQ(report_.sum(&RankReport::wrong_results), 0u);
  EXPECT_GT(report_.sum(&RankReport::sums_refused), 0u);
  expect_all_jobs(&RankReport::jobs_whole, kJobs);
  EXPECT_EQ(report_.sum(&RankReport::failovers), uint64_t{kRackRanks} * kJobs);
}

// The program adds what has been altered, so its sums are wrong for all ranks and stay so, though what is repeated is right.
TEST_P(XdpLies, AlteredContributionsEndTheJob) {
  RackOptions options{.jobs = kKinds, .operations = 20, .verify = GetParam()};
  options.liar = {.probability = 1, .times = 1, .about = PathLiar::About::kContributions};
  if (!run(options)) return;
  expect_injected(kKinds);
  EXPECT_EQ(report_.sum(&RankReport::wrong_results), 0u);
  EXPECT_GT(report_.sum(&RankReport::sums_refused), 0u);
  expect_all_jobs(&RankReport::jobs_wrong_sum);
}

INSTANTIATE_TEST_SUITE_P(Modes, XdpLies, ::testing::Values(Verify::kBoth, Verify::kSum), name_of_mode);

}  // namespace
}  // namespace netsum::attack::xdp_lies_test
