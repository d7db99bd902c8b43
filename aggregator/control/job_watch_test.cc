#include "aggregator/control/job_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace netsum {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

JobProgress at(uint64_t oldest, uint64_t missing) {
  JobProgress progress;
  progress.oldest = oldest;
  progress.missing = missing;
  return progress;
}

TEST(JobWatchTest, NobodyIsWaitedForWhileNothingIsUnderWay) {
  JobWatch watch({0, 1, 2});
  watch.look(1000, at(0, 0));
  watch.look(2000, at(0, 0));
  EXPECT_THAT(watch.waiting_for(), IsEmpty());
  EXPECT_EQ(watch.waiting_us(), 0);
  EXPECT_THAT(watch.waited_us(), ElementsAre(0, 0, 0));
}

TEST(JobWatchTest, TheWaitLastsFromTheFirstLookAtTheSameSum) {
  JobWatch watch({0, 1, 2});
  watch.look(1000, at(7, 0b110));
  EXPECT_EQ(watch.waiting_us(), 0);
  watch.look(51'000, at(7, 0b100));  // rank 1 has come
  EXPECT_THAT(watch.waiting_for(), ElementsAre(2));
  EXPECT_EQ(watch.waiting_us(), 50'000);
  watch.look(61'000, at(8, 0b100));
  EXPECT_EQ(watch.waiting_us(), 0) << "another sum";
  EXPECT_THAT(watch.waited_us(), ElementsAre(0, 0, 60'000));
}

TEST(JobWatchTest, AWaitEndsWhenTheSumIsDone) {
  JobWatch watch({0, 1});
  watch.look(1000, at(7, 0b10));
  watch.look(2000, at(0, 0));
  watch.look(3000, at(7, 0b10));  // an equal number by chance: since when is not known
  EXPECT_EQ(watch.waiting_us(), 0);
}

TEST(JobWatchTest, OneLookAfterALongPauseDoesNotStandForAllOfIt) {
  JobWatch watch({0});
  watch.look(0, at(1, 1));
  watch.look(60'000'000, at(1, 1));
  EXPECT_EQ(watch.waiting_us(), 60'000'000) << "the same sum all the time";
  EXPECT_THAT(watch.waited_us(), ElementsAre(1'000'000));
}

TEST(JobWatchTest, FaultsAreThoseOfRanks) {
  JobWatch watch({0, 0, 1});
  JobProgress progress;
  progress.members.resize(2);
  progress.members[0].lost = {0, 100};
  for (faults::MemberTotals& member : progress.members) {
    member.kept = {10'000, 10'000};
    member.contributions = 10'000;
  }
  progress.members[1].late_us = 30'000'000;
  watch.look(1000, progress);
  const std::vector<AggregatorJobStatus::Fault> faults = watch.faults();
  ASSERT_EQ(faults.size(), 2u);
  EXPECT_THAT(faults[0].ranks, ElementsAre(0, 1));
  EXPECT_EQ(faults[0].kind, "loss_from_aggregator");
  EXPECT_NEAR(faults[0].value, 0.01, 0.001);
  EXPECT_THAT(faults[1].ranks, ElementsAre(2));
  EXPECT_EQ(faults[1].kind, "slow");
  EXPECT_DOUBLE_EQ(faults[1].value, 0.003);
}

TEST(JobWatchTest, TheRanksOfARackAreOneMember) {
  JobWatch watch({0, 0, 1});
  watch.look(1000, at(7, 0b01));
  EXPECT_THAT(watch.waiting_for(), ElementsAre(0, 1));
}

}  // namespace
}  // namespace netsum
