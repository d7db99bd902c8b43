// What is recommended after a measurement. That it measures: tests/cli/doctor_test.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/netsum/doctor_checks.h"

namespace netsum::tool {
namespace {

using ::testing::HasSubstr;

PaceTrial trial(double ms, uint64_t sent_again) {
  return {.ms = {ms, 1000, ms, 0, ms}, .packets = 10'000, .sent_again = sent_again};
}

Finding judged(const PaceTrial& without, const PaceTrial& with) {
  return judge_pace("192.0.2.1:5151", 9e7, without, with);
}

TEST(DoctorPaceTest, IsRecommendedIfSumsAreFaster) {
  const Finding finding = judged(trial(20, 0), trial(18, 0));
  EXPECT_EQ(finding.grade, Grade::kWarn);
  EXPECT_EQ(finding.subject, "192.0.2.1:5151 pace");
  EXPECT_THAT(finding.found,
              HasSubstr("without: 20.00 ms a sum, 0 of 10000 packets sent again; at 90mbit: 18.00"));
  EXPECT_THAT(finding.advice,
              HasSubstr("NETSUM_PACE=90mbit on all ranks: in these sums it saved 10 % of the time"));
}

TEST(DoctorPaceTest, IsRecommendedIfFewerPacketsAreSentAgainInAsMuchTime) {
  EXPECT_THAT(judged(trial(20, 120), trial(20.3, 20)).advice,
              HasSubstr("1.0 % fewer packets were sent again"));
  const Finding slower = judged(trial(20, 120), trial(21, 20));
  EXPECT_EQ(slower.advice, "");
  EXPECT_THAT(slower.found, HasSubstr("costs 5 % more time"));
}

TEST(DoctorPaceTest, IsNotRecommendedWithoutAGain) {
  for (const Finding& finding : {judged(trial(20, 0), trial(20, 0)), judged(trial(20, 0), trial(19.5, 0)),
                                 judged(trial(20, 20), trial(20, 10)), judged(trial(20, 0), trial(20, 90))}) {
    EXPECT_EQ(finding.grade, Grade::kOk) << finding.found;
    EXPECT_EQ(finding.advice, "") << finding.found;
    EXPECT_THAT(finding.found, HasSubstr("gains nothing"));
  }
}

}  // namespace
}  // namespace netsum::tool
