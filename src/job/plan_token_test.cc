#include "src/job/plan_token.h"

#include <gmock/gmock.h>

namespace netsum::plan_token_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(PlanTokenTest, APlanFollowsTheToken) {
  EXPECT_EQ(without_plan(with_plan("secret", "rack.yaml 1")), "secret");
  EXPECT_EQ(without_plan(with_plan("", "rack.yaml 1")), "");
  EXPECT_EQ(without_plan("secret"), "secret");
  EXPECT_EQ(without_plan("of two\nlines"), "of two\nlines");
}

TEST(PlanTokenTest, OnlyTwoPlansCanDiffer) {
  const std::string first = with_plan("secret", "rack.yaml 1"), second = with_plan("other", "rack.yaml 2");
  EXPECT_TRUE(check_plans(first, first).ok());
  EXPECT_TRUE(check_plans(first, "secret").ok());
  EXPECT_TRUE(check_plans("secret", first).ok());
  const Status refused = check_plans(first, second);
  EXPECT_EQ(refused.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.message(),
              AllOf(HasSubstr("rack.yaml 1, and"), HasSubstr("rack.yaml 2:"), Not(HasSubstr("secret"))));
}

}  // namespace
}  // namespace netsum::plan_token_test
