// What needs no aggregator. The others: tests/cli/doctor_test.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/netsum/doctor_checks.h"

namespace netsum::tool::doctor_sums_test {
namespace {

using ::testing::HasSubstr;

TEST(DoctorSumsTest, AModeThatTheAggregatorDoesNotAnnounceIsNotTried) {
  GroupCheck check;
  check.address = "192.0.2.1:5151";
  check.verify = Verify::kBoth;
  const Finding finding = check_sums(check, {"sum"});
  EXPECT_EQ(finding.grade, Grade::kFail);
  EXPECT_EQ(finding.subject, "192.0.2.1:5151 sums");
  EXPECT_THAT(finding.found, HasSubstr("cannot sum for jobs with verify 'both', only with sum"));
  EXPECT_THAT(finding.advice, HasSubstr("set verify to sum on all ranks"));
}

}  // namespace
}  // namespace netsum::tool::doctor_sums_test
