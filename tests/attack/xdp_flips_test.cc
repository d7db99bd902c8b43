// Bits flip in the memory of the XDP program's slots while real ranks sum, also below a daemon. No wrong sum is delivered, and
// every job ends with an error that says where.
#include "tests/attack/lies_rack_fixture.h"

namespace netsum::attack::xdp_flips_test {
namespace {

class XdpFlips : public VerifiedXdpRack {};

TEST_F(XdpRack, WithoutVerifiedSumsFlippedBitsAreDelivered) {
  if (!run({.jobs = 5, .operations = 40, .verify = Verify::kPacket, .flips_bits = true})) return;
  EXPECT_GT(report_.flips, 0u);
  EXPECT_GT(report_.sum(&RankReport::wrong_results), 0u);
}

TEST_P(XdpFlips, BitsThatFlipInSlotsAreFound) {
  if (!run({.jobs = 10, .operations = 1'000, .verify = GetParam(), .flips_bits = true})) return;
  EXPECT_GT(report_.flips, 0u);
  EXPECT_GT(report_.path.wrong_in_time, report_.path.wrong_tag);
  EXPECT_EQ(report_.sum(&RankReport::wrong_results), 0u);
  EXPECT_GT(report_.sum(&RankReport::sums_refused), 0u);
  expect_all_jobs(&RankReport::jobs_wrong_sum, 10);
}

TEST_P(XdpFlips, BelowADaemonSumsAreRight) {
  if (!run({.jobs = 2, .operations = 10, .verify = GetParam(), .has_parent = true})) return;
  EXPECT_EQ(report_.sum(&RankReport::wrong_results), 0u);
  EXPECT_EQ(report_.sum(&RankReport::operations), uint64_t{kMostRanks} * 20);
  EXPECT_GT(report_.sum(&RankReport::sums_verified), 0u);
  EXPECT_EQ(report_.sum(&RankReport::sums_refused), 0u);
  EXPECT_GT(report_.path.right, 0u);
  EXPECT_EQ(report_.path.wrong, 0u);
}

TEST_P(XdpFlips, BitsThatFlipBelowADaemonAreFound) {
  if (!run({.jobs = 5, .operations = 1'000, .verify = GetParam(), .flips_bits = true, .has_parent = true}))
    return;
  EXPECT_GT(report_.path.wrong_in_time, report_.path.wrong_tag);
  EXPECT_EQ(report_.sum(&RankReport::wrong_results), 0u);
  EXPECT_GT(report_.sum(&RankReport::sums_refused), 0u);
  expect_all_jobs(&RankReport::jobs_wrong_sum, 5, kMostRanks);
}

INSTANTIATE_TEST_SUITE_P(Modes, XdpFlips, ::testing::Values(Verify::kBoth, Verify::kSum), name_of_mode);

}  // namespace
}  // namespace netsum::attack::xdp_flips_test
