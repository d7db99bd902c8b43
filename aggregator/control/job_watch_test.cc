#include "aggregator/control/job_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace netsum::job_watch_test {
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

TEST(JobWatchTest, AClockThatStepsBackTakesNothingAway) {
  JobWatch watch({0, 1});
  watch.look(5'000'000, at(7, 0b10));
  watch.look(5'200'000, at(7, 0b10));
  watch.look(1'000'000, at(7, 0b10));
  EXPECT_EQ(watch.waiting_us(), 0);
  EXPECT_THAT(watch.waited_us(), ElementsAre(0, 200'000));
  watch.look(1'100'000, at(7, 0b10));
  EXPECT_EQ(watch.waiting_us(), 100'000);
  EXPECT_THAT(watch.waited_us(), ElementsAre(0, 300'000));
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

// Each path is over the links of two ranks. `bad`: number of a rank whose link to the network, or else from it, loses 2 %.
std::vector<AggregatorJobStatus::Path> paths_of(int ranks, int bad, bool out, uint64_t packets) {
  std::vector<AggregatorJobStatus::Path> paths;
  for (int owner = 0; owner < ranks; ++owner) {
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == owner) continue;
      const uint64_t to = bad == (out ? rank : owner) ? packets / 50 : 0;
      const uint64_t from = bad == (out ? owner : rank) ? packets / 50 : 0;
      paths.push_back({.ranks = {rank},
                       .shard = owner,
                       .kept_to = packets - to,
                       .lost_to = to,
                       .kept_from = packets - from,
                       .lost_from = from});
    }
  }
  return paths;
}

TEST(JobWatchTest, OfShardsTheLossyLinkOfARankIsNamed) {
  for (int ranks = 3; ranks <= 9; ++ranks) {
    for (const bool out : {true, false}) {
      JobWatch watch(std::vector<uint16_t>(static_cast<size_t>(ranks)));
      watch.look_at_shards({});
      EXPECT_THAT(watch.faults(), IsEmpty());
      watch.look_at_shards(paths_of(ranks, 1, out, 0));
      watch.look_at_shards(paths_of(ranks, 1, out, 4000));
      ASSERT_EQ(watch.faults().size(), 1u);
      EXPECT_THAT(watch.faults()[0].ranks, ElementsAre(1));
      EXPECT_EQ(watch.faults()[0].kind, out ? "loss_to_aggregator" : "loss_from_aggregator");
      EXPECT_NEAR(watch.faults()[0].value, 0.02, 0.002);
      watch.look_at_shards(paths_of(ranks, 2, out, 100));  // began anew
      EXPECT_THAT(watch.faults()[0].ranks, ElementsAre(1));
      watch.look_at_shards(paths_of(ranks, -1, out, 3'000'000));
      EXPECT_THAT(watch.faults(), IsEmpty()) << "repaired";
    }
  }
}

// Between ranks 0 and 1 and the others.
TEST(JobWatchTest, OfALinkBetweenSwitchesNoRankIsNamed) {
  JobWatch watch(std::vector<uint16_t>(4));
  watch.look_at_shards(paths_of(4, -1, true, 0));
  std::vector<AggregatorJobStatus::Path> paths = paths_of(4, -1, true, 8000);
  for (AggregatorJobStatus::Path& path : paths)
    (path.shard >= 2 ? path.lost_to : path.lost_from) = (path.ranks[0] < 2) == (path.shard < 2) ? 0 : 160;
  watch.look_at_shards(paths);
  EXPECT_THAT(watch.faults(), IsEmpty());
}

TEST(JobWatchTest, TheRanksOfARackAreOneMember) {
  JobWatch watch({0, 0, 1});
  watch.look(1000, at(7, 0b01));
  EXPECT_THAT(watch.waiting_for(), ElementsAre(0, 1));
}

}  // namespace
}  // namespace netsum::job_watch_test
