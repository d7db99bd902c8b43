// What is recommended after a measurement. That it measures: tests/cli/doctor_test.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/netsum/doctor_checks.h"

namespace netsum::tool::doctor_pace_test {
namespace {

using ::testing::HasSubstr;

// So many turns, the first one with `first_ms` instead.
std::vector<PaceTrial> turns(double ms, uint64_t sent_again, double first_ms = 0, size_t count = 5) {
  std::vector<PaceTrial> all;
  for (size_t i = 0; i < count; ++i) {
    const double of_turn = i == 0 && first_ms > 0 ? first_ms : ms;
    all.push_back({.ms = {of_turn, 1000, of_turn, 0, of_turn}, .packets = 2'000, .sent_again = sent_again});
  }
  return all;
}

Finding judged(const std::vector<PaceTrial>& without, const std::vector<PaceTrial>& with) {
  return judge_pace("192.0.2.1:5151", 9e7, without, with);
}

TEST(DoctorPaceTest, IsRecommendedIfSumsAreFaster) {
  const Finding finding = judged(turns(20, 0), turns(18, 0));
  EXPECT_EQ(finding.grade, Grade::kWarn);
  EXPECT_EQ(finding.subject, "192.0.2.1:5151 pace");
  EXPECT_THAT(finding.found,
              HasSubstr("without: 20.00 ms a sum, 0 of 10000 packets sent again; at 90mbit: 18.00"));
  EXPECT_THAT(finding.advice,
              HasSubstr("NETSUM_PACE=90mbit on all ranks: in these sums it saved 10 % of the time"));
}

TEST(DoctorPaceTest, IsRecommendedIfFewerPacketsAreSentAgainInAsMuchTime) {
  EXPECT_THAT(judged(turns(20, 24), turns(20.3, 4)).advice, HasSubstr("1.0 % fewer packets were sent again"));
  const Finding slower = judged(turns(20, 24), turns(21, 4));
  EXPECT_EQ(slower.advice, "");
  EXPECT_THAT(slower.found, HasSubstr("costs 5 % more time"));
}

TEST(DoctorPaceTest, IsNotRecommendedWithoutAGain) {
  for (const Finding& finding : {judged(turns(20, 0), turns(20, 0)), judged(turns(20, 0), turns(19.5, 0)),
                                 judged(turns(20, 4), turns(20, 2)), judged(turns(20, 0), turns(20, 18))}) {
    EXPECT_EQ(finding.grade, Grade::kOk) << finding.found;
    EXPECT_EQ(finding.advice, "") << finding.found;
    EXPECT_THAT(finding.found, HasSubstr("gains nothing"));
  }
}

TEST(DoctorPaceTest, IsNotRecommendedByNoise) {
  // A turn without the pace was as good, or one with it as bad.
  auto restless = turns(20, 24);
  restless[2].sent_again = 0;
  for (const Finding& finding : {judged(turns(20, 0, 17), turns(18, 0)),
                                 judged(turns(20, 0), turns(18, 0, 21)), judged(restless, turns(20, 4))}) {
    EXPECT_EQ(finding.grade, Grade::kOk) << finding.found;
    EXPECT_EQ(finding.advice, "") << finding.found;
    EXPECT_THAT(finding.found, HasSubstr("turns without it do not reach"));
  }
  const Finding noisy = judged(turns(20, 0, 40), turns(30, 0));
  EXPECT_THAT(noisy.found, HasSubstr("; pacing gains nothing here")) << "nor does it cost anything for sure";
  // Three turns of each way happen to be in this order once in 20 times.
  const Finding few = judged(turns(20, 0, 0, 3), turns(10, 0, 0, 3));
  EXPECT_EQ(few.advice, "");
  EXPECT_THAT(few.found, HasSubstr("3 turns of each way do not show"));
}

}  // namespace
}  // namespace netsum::tool::doctor_pace_test
