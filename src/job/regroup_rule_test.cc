#include "netsum/regroup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "src/job/ranks.h"

namespace netsum::regroup_rule_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

RegroupRule rule_of(int world_size, int min_members) {
  const auto rule = RegroupRule::make(world_size, min_members, seconds(1));
  EXPECT_TRUE(rule.ok()) << rule.status().to_string();
  return *rule;
}

TEST(RegroupRuleTest, HalfOfTheRanksAreNeededUnlessTheCallerSaysOtherwise) {
  struct Case {
    int world_size, asked, needed;
  };
  for (const auto& [world_size, asked, needed] :
       {Case{1, 0, 1}, {2, 0, 1}, {3, 0, 2}, {4, 0, 2}, {5, 0, 3}, {512, 0, 256}, {4, 1, 1}, {4, 4, 4}})
    EXPECT_EQ(rule_of(world_size, asked).min_members(), needed) << asked << " of " << world_size;
}

// Two groups could otherwise go on with the same state.
TEST(RegroupRuleTest, TwoDisjointGroupsContinueOnlyIfEachHasHalf) {
  for (int world_size = 1; world_size <= 64; ++world_size)
    for (int here = 0; here <= world_size; ++here) {
      const RegroupRule rule = rule_of(world_size, 0);
      const bool both = rule.closes_after(here) && rule.closes_after(world_size - here);
      EXPECT_EQ(both, here * 2 == world_size) << here << " of " << world_size;
    }
}

TEST(RegroupRuleTest, InvalidNumbersAreNamed) {
  for (const int min_members : {-1, 5}) {
    const Status status = RegroupRule::make(4, min_members, seconds(1)).status();
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.message(),
                HasSubstr("min_members is " + std::to_string(min_members) + "; it must be 1 to 4"));
  }
  EXPECT_EQ(RegroupRule::make(4, 0, milliseconds(-1)).status().code(), ErrorCode::kInvalidArgument);
}

TEST(RegroupRuleTest, ClosesAtOnceWithAllAndNeverWithTooFew) {
  const RegroupRule rule = rule_of(4, 2);
  EXPECT_EQ(rule.closes_after(0), std::nullopt);
  EXPECT_EQ(rule.closes_after(1), std::nullopt);
  EXPECT_EQ(rule.closes_after(2), seconds(1));
  EXPECT_EQ(rule.closes_after(3), seconds(1));
  EXPECT_EQ(rule.closes_after(4), seconds(0));
  EXPECT_EQ(rule_of(4, 4).closes_after(4), seconds(0));
}

TEST(RegroupRuleTest, RanksAreRenumberedInTheOldOrder) {
  const std::array members{1, 2, 5};
  EXPECT_EQ(RegroupRule::new_rank(members, 1), 0);
  EXPECT_EQ(RegroupRule::new_rank(members, 5), 2);
  EXPECT_EQ(RegroupRule::new_rank(members, 0), kNoRank);
  EXPECT_EQ(RegroupRule::new_rank(members, 3), kNoRank);
}

TEST(RegroupRuleTest, ErrorsNameTheRanks) {
  const Status few = rule_of(4, 3).timed_out(std::array{1, 3}, milliseconds(1500));
  EXPECT_EQ(few.code(), ErrorCode::kTimeout);
  EXPECT_EQ(few.rank(), 1);
  EXPECT_EQ(few.message(),
            "2 of 4 ranks came to regroup within 1.5 s, and 3 are needed; missing: ranks 1 and 3");
  EXPECT_EQ(
      rule_of(4, 2).timed_out(std::array{3}, milliseconds(500)).message(),
      "3 of 4 ranks came to regroup within 500 ms, but that is not enough time to wait 1 s for another rank; "
      "missing: rank 3");
  const Status late = RegroupRule::came_too_late(2, std::array{0, 1, 3});
  EXPECT_EQ(late.code(), ErrorCode::kPeerLost);
  EXPECT_EQ(late.rank(), 2);
  EXPECT_EQ(late.message(), "rank 2 came too late: ranks 0, 1 and 3 go on without it");
  EXPECT_THAT(RegroupRule::came_too_late(2, std::array{0}).message(), HasSubstr("rank 0 goes on"));
  EXPECT_THAT(RegroupRule::came_too_late(2, {}).message(), HasSubstr("the others go on"));
}

// A job that was never complete is asked about differently from one that ranks should have regrouped to.
TEST(RegroupRuleTest, AJobThatLacksRanksSaysHowManyItNeeds) {
  JobSpec spec = new_job_spec();
  spec.set_name("train");
  spec.set_world_size(4);
  const std::array missing{2};
  EXPECT_THAT(ranks_missing(spec, missing, 200).message(), HasSubstr("Were they started"));
  spec.set_min_members(4);
  const Status status = ranks_missing(spec, missing, 200);
  EXPECT_EQ(status.code(), ErrorCode::kTimeout);
  EXPECT_EQ(status.rank(), 2);
  EXPECT_EQ(status.message(),
            "job 'train': 3 of 4 ranks came to regroup within 200 ms, and 4 are needed; missing: rank 2");
}

}  // namespace
}  // namespace netsum::regroup_rule_test
