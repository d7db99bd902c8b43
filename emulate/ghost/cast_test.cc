#include "emulate/ghost/cast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace netsum::ghost {
namespace {

using program::Program;
using program::Step;
using testing::HasSubstr;

Step step_of(uint64_t number, uint64_t count, bool partial = false) {
  Step step;
  step.number = number;
  step.partial = partial;
  step.operations.resize(1);
  step.operations[0].count = count;
  step.threads = {{{program::Instruction::Kind::kSubmit, 0}}};
  return step;
}

// Set-up, three steps, and what comes behind them.
std::vector<Program> two_ranks() {
  std::vector<Program> records(2);
  for (int rank = 0; rank < 2; ++rank) {
    Program& record = records[static_cast<size_t>(rank)];
    record.header.world_size = 2;
    record.header.rank = rank;
    record.steps = {step_of(0, 9), step_of(1, 5), step_of(2, 5), step_of(3, 5), step_of(4, 1, true)};
  }
  return records;
}

Result<std::vector<const Step*>> cast(const std::vector<Program>& records, int rank, uint64_t whole_steps,
                                      uint64_t seed) {
  const auto made = Cast::of(records);
  return made.ok() ? made->steps(rank, whole_steps, seed) : made.status();
}

TEST(Cast, ARecordedRankPlaysItsOwnSteps) {
  const auto records = two_ranks();
  const auto steps = cast(records, 1, 0, 7);
  ASSERT_TRUE(steps.ok()) << steps.status().to_string();
  ASSERT_EQ(steps->size(), 5u);
  for (size_t k = 0; k < 5; ++k) EXPECT_EQ((*steps)[k], &records[1].steps[k]);
}

TEST(Cast, AnotherRankPlaysWholeStepsOfAll) {
  const auto records = two_ranks();
  std::set<const Step*> played;
  for (int rank = 2; rank < 40; ++rank) {
    const auto steps = cast(records, rank, 0, 7);
    ASSERT_TRUE(steps.ok());
    ASSERT_EQ(steps->size(), 5u);
    EXPECT_EQ((*steps)[0]->number, 0u);
    EXPECT_TRUE((*steps)[4]->partial);
    for (size_t k = 1; k < 4; ++k) {
      EXPECT_TRUE(same_operations(*(*steps)[k], records[0].steps[k]));
      EXPECT_FALSE((*steps)[k]->partial);
      played.insert((*steps)[k]);
    }
  }
  EXPECT_EQ(played.size(), 6u) << "the three steps of both ranks";
}

TEST(Cast, MoreOrFewerStepsKeepTheFirstAndTheRest) {
  const auto records = two_ranks();
  const auto more = cast(records, 0, 8, 7), fewer = cast(records, 0, 2, 7);
  ASSERT_TRUE(more.ok() && fewer.ok());
  ASSERT_EQ(more->size(), 9u);
  for (size_t k = 0; k < 9; ++k) EXPECT_EQ((*more)[k]->operations[0].count, k == 0 ? 9u : k < 8 ? 5u : 1u);
  ASSERT_EQ(fewer->size(), 3u);
  EXPECT_TRUE((*fewer)[2]->partial);
}

TEST(Cast, RecordsMustFitTogether) {
  auto records = two_ranks();
  records[1].steps[2].operations[0].count = 6;
  EXPECT_THAT(cast(records, 0, 0, 7).status().message(),
              HasSubstr("ranks 0 and 1 have recorded different operations in step 2"));
  records = two_ranks();
  records[1].steps.pop_back();
  EXPECT_THAT(cast(records, 0, 0, 7).status().message(), HasSubstr("in step 4"));
  records = two_ranks();
  for (Program& record : records) record.steps.resize(1);
  EXPECT_THAT(cast(records, 0, 5, 7).status().message(), HasSubstr("no step to repeat"));
}

// Groups 0 and 1 of four ranks, as each of them numbers them.
std::vector<Program> with_groups() {
  std::vector<Program> records(4);
  for (int rank = 0; rank < 4; ++rank) {
    Program& record = records[static_cast<size_t>(rank)];
    record.header.world_size = 4;
    record.header.rank = rank;
    record.header.groups = {{.id = 0, .ranks = {0, 1, 2, 3}},
                            {.id = 1, .ranks = {rank / 2 * 2, rank / 2 * 2 + 1}}};
    record.steps = {step_of(0, 9), step_of(1, 5), step_of(2, 5)};
    for (Step& step : record.steps) step.operations.push_back({.count = rank < 2 ? 3u : 4u, .group = 1});
  }
  return records;
}

TEST(Cast, GroupsOfEqualRanksShareAJob) {
  auto records = with_groups();
  const auto made = Cast::of(records);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  std::vector<std::string> jobs;
  for (int rank = 0; rank < 4; ++rank) {
    const auto groups = made->groups(rank, "job");
    ASSERT_TRUE(groups.ok() && groups->size() == 2) << groups.status().to_string();
    EXPECT_EQ((*groups)[0].job, "job");
    EXPECT_EQ((*groups)[0].id, 0);
    EXPECT_EQ((*groups)[1].rank_of(rank), rank % 2);
    jobs.push_back((*groups)[1].job);
  }
  EXPECT_EQ(jobs[0], jobs[1]);
  EXPECT_EQ(jobs[2], jobs[3]);
  EXPECT_EQ(std::set<std::string>(jobs.begin(), jobs.end()).size(), 2u);
  // More steps: those of the same groups.
  const auto steps = made->steps(3, 6, 7);
  ASSERT_TRUE(steps.ok());
  for (const Step* step : *steps) EXPECT_EQ(step->operations[1].count, 4u);
  records[1].steps[1].operations[1].count = 8;
  EXPECT_THAT(Cast::of(records).status().message(),
              HasSubstr("ranks 0 and 1 have recorded different operations in step 1"));
}

TEST(Cast, GroupsOfSomeRanksNeedARecordOfEach) {
  auto records = with_groups();
  records.pop_back();
  const auto made = Cast::of(records);
  ASSERT_TRUE(made.ok());
  EXPECT_THAT(made->groups(3, "job").status().message(), HasSubstr("rank 3 was not recorded"));
  EXPECT_THAT(change_world_size(8, &records[0]).message(), HasSubstr("groups of some ranks say nothing"));
}

// Two groups of all ranks, and none: the job of all ranks is there in any case.
TEST(Cast, TheFirstGroupOfAllRanksHasTheJob) {
  auto records = two_ranks();
  records[0].header.groups = {{.id = 0, .ranks = {0, 1}}, {.id = 1, .ranks = {0, 1}}};
  const auto twice = Cast::of(records)->groups(0, "job");
  ASSERT_TRUE(twice.ok() && twice->size() == 2);
  EXPECT_EQ((*twice)[0].id, 0);
  EXPECT_NE((*twice)[1].job, "job");
  records[0].header.groups = {{.id = 0, .ranks = {0}}};
  const auto alone = Cast::of(records)->groups(0, "job");
  ASSERT_TRUE(alone.ok() && alone->size() == 2);
  EXPECT_EQ((*alone)[0].id, -1);
  EXPECT_EQ((*alone)[0].ranks, (std::vector<int>{0, 1}));
}

TEST(Cast, CorrelationOfComputing) {
  auto records = two_ranks();
  const auto compute = [&](size_t rank, std::vector<uint64_t> ns) {
    for (size_t k = 0; k < ns.size(); ++k)
      records[rank].steps[k + 1].threads[0].push_back({program::Instruction::Kind::kCompute, ns[k]});
  };
  EXPECT_EQ(correlation_of(records), 0) << "nobody computes";
  compute(0, {10, 20, 30});
  EXPECT_EQ(correlation_of(records), 0) << "one does not vary";
  compute(1, {5, 6, 7});
  EXPECT_NEAR(correlation_of(records), 1, 1e-9);
  compute(1, {2, 0, 0});
  EXPECT_NEAR(correlation_of(records), 0, 1e-9);  // 7, 6, 7
  compute(1, {20, 0, 0});
  EXPECT_LT(correlation_of(records), -0.5);
  records.pop_back();
  EXPECT_EQ(correlation_of(records), 0);
}

TEST(Cast, AJobOfAnotherSizeHasTheSamePartForEachRank) {
  Program record = two_ranks()[0];
  record.steps[0].operations[0] = {.collective = program::Collective::kAllGather, .count = 20};
  record.steps[1].operations[0].count = 11;
  ASSERT_TRUE(change_world_size(8, &record).ok());
  EXPECT_EQ(record.steps[0].operations[0].count, 80u);
  EXPECT_EQ(record.steps[1].operations[0].count, 11u);
  EXPECT_EQ(record.header.world_size, 8);
  record.steps[0].operations[0].parts = {10, 10, 10, 10, 10, 10, 10, 11};
  EXPECT_THAT(change_world_size(2, &record).message(), HasSubstr("step 0: all_gather has unequal parts"));
}

TEST(Cast, NoiseNeedsTheScalesOfSums) {
  const auto why = [](Contributions contributions, program::Operation operation) {
    operation.count = 720;
    const program::Step step{.number = 4, .operations = {std::move(operation)}};
    return check_contributions(contributions, {step}).message();
  };
  EXPECT_EQ(why(Contributions::kZeros, {}), "");
  for (const Contributions of : {Contributions::kNoise, Contributions::kRecorded}) {
    EXPECT_THAT(why(of, {}), testing::HasSubstr("step 4: all_reduce has no scales"));
    EXPECT_EQ(why(of, {.scales = {1, 2}}), "");
    EXPECT_EQ(why(of, {.type = DataType::kInt32}), "");
    EXPECT_EQ(why(of, {.op = ReduceOp::kMax}), "");
    EXPECT_EQ(why(of, {.collective = program::Collective::kAllGather}), "");
  }
}

// Each step sums at 100, until 150; a sum of another group is before that.
TEST(Pace, FollowsFromWhatTheLeaderComputes) {
  program::Step step;
  step.operations = {{.group = 3, .submitted_ns = 10, .done_ns = 190},
                     {.submitted_ns = 100, .done_ns = 140},
                     {.submitted_ns = 110, .done_ns = 150}};
  step.duration_ns = 200;
  program::Step none;
  none.duration_ns = 50;
  const Pace pace({&step, &step, &none, &step}, 0, 0.5);
  ASSERT_EQ(pace.steps(), 4u);
  EXPECT_DOUBLE_EQ(pace.covers(), 350.0 / 450);
  EXPECT_EQ(pace.first_of(1), 2u);
  EXPECT_EQ(pace.first_of(2), 4u);
  EXPECT_EQ(pace.first_of(3), 4u);
  EXPECT_DOUBLE_EQ(pace.factor(1, 1000, 1150), 1) << "it took 150 in the record";
  EXPECT_DOUBLE_EQ(pace.factor(1, 1000, 1300), 1.5) << "half of what it takes more";
  EXPECT_DOUBLE_EQ(pace.factor(1, 1000, 1075), 0.75);
  EXPECT_DOUBLE_EQ(pace.factor(2, 1000, 1300), 1) << "no operation";
  EXPECT_DOUBLE_EQ(pace.factor(3, 1000, 1200), 1) << "150 and the step without any";
  EXPECT_DOUBLE_EQ(pace.factor(1, 1000, 900), 1) << "it was submitted before";
  EXPECT_DOUBLE_EQ(pace.factor(1, 0, 1'000'000), 4) << "it paused";
  EXPECT_DOUBLE_EQ(pace.factor(0, 0, 500), 1);
}

}  // namespace
}  // namespace netsum::ghost
