#include "emulate/ghost/cast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace netsum::ghost::cast_test {
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
  for (const Contributions of : {Contributions::kNoise, Contributions::kScales}) {
    EXPECT_THAT(why(of, {}), testing::HasSubstr("step 4: all_reduce has no scales"));
    EXPECT_EQ(why(of, {.scales = {1, 2}}), "");
    EXPECT_EQ(why(of, {.type = DataType::kInt32}), "");
    EXPECT_EQ(why(of, {.op = ReduceOp::kMax}), "");
    EXPECT_EQ(why(of, {.collective = program::Collective::kAllGather}), "");
  }
}

// A leader of FSDP: each step gathers (0), computes, gathers in advance (1), computes, and sums (2) beside computing.
class PaceTest : public testing::Test {
 protected:
  static constexpr int64_t kMs = 1'000'000;
  using Kind = program::Instruction::Kind;

  PaceTest() {
    step_.operations.resize(3);
    step_.threads = {{{Kind::kCompute, kMs},
                      {Kind::kSubmit, 0},
                      {Kind::kWait, 0},
                      {Kind::kCompute, 4 * kMs},
                      {Kind::kSubmit, 1},
                      {Kind::kCompute, 2 * kMs},
                      {Kind::kWait, 1},
                      {Kind::kCompute, 6 * kMs},
                      {Kind::kSubmit, 2},
                      {Kind::kCompute, 3 * kMs},
                      {Kind::kWait, 2}}};
    step_.duration_ns = 20 * kMs;
  }

  // Of a job of two steps, before operation `number`. Times of operations in ms; 0: there is none yet.
  std::optional<double> factor(uint64_t number, double share = 1, bool follows_level = true) const {
    Pace pace({&step_, &step_}, 0, share, follows_level);
    std::optional<double> factor;
    while (pace.number() <= number) {
      factor = pace.next([&](uint64_t of) { return submitted_ms_[of] * kMs; },
                         [&](uint64_t of) { return done_ms_[of] * kMs; });
      if (!factor) return factor;
    }
    return factor;
  }

  program::Step step_;
  std::vector<int64_t> submitted_ms_ = {1, 6, 14, 118, 123, 131};
  std::vector<int64_t> done_ms_ = {2, 7, 17, 119, 124, 140};
};

TEST_F(PaceTest, TellsWhatTheLeaderComputesFromWhenItSubmits) {
  EXPECT_EQ(factor(4), 1) << "4 since the end of the operation before";
  submitted_ms_[4] = 125;
  EXPECT_EQ(factor(4), 1.5);
  EXPECT_EQ(factor(4, 0.5), 1.25) << "half of what it takes more";
  submitted_ms_[4] = 1000;
  EXPECT_EQ(factor(4), 4) << "it paused";
  submitted_ms_[4] = 0;
  EXPECT_EQ(factor(4), std::nullopt) << "it has not submitted it";
}

TEST_F(PaceTest, TellsComputingFromWaiting) {
  // 2 and 6 after the submission, at the earliest 6 after the end of what it waits for.
  submitted_ms_[5] = 139;
  EXPECT_EQ(factor(5), 2) << "16 in place of 8: it never waited";
  done_ms_[4] = 130;
  EXPECT_EQ(factor(5), 1.5) << "9 in place of 6 after it has waited";
  done_ms_[4] = 0;
  EXPECT_EQ(factor(5), std::nullopt) << "ghosts do not know yet when that was";
}

TEST_F(PaceTest, KeepsTheLatestFactorWhereTimesDoNotTell) {
  EXPECT_EQ(factor(1), 1) << "the first step sets up";
  submitted_ms_[3] = 22;  // 8 in place of 4
  EXPECT_EQ(factor(3), 2);
  step_.operations.push_back({.group = 7});
  step_.threads[0].insert(step_.threads[0].begin() + 4, {{Kind::kSubmit, 3}, {Kind::kWait, 3}});
  EXPECT_EQ(factor(4), 2) << "it waits for another group";
  EXPECT_EQ(factor(5), 1);
}

TEST_F(PaceTest, KeepsTheLatestFactorWhereAWaitHasHeldUpTheLeader) {
  step_.threads[0].erase(step_.threads[0].begin());
  submitted_ms_[3] = done_ms_[2] = 140;
  EXPECT_EQ(factor(3), 1) << "it has computed nothing since";
  submitted_ms_[3] = 20;
  done_ms_[2] = 15;
  EXPECT_EQ(factor(3), 2) << "6 in place of 3, and the wait was over";
}

// 2 in place of 1 all the time, and then 3 in place of 1.
TEST_F(PaceTest, FollowsChangesAloneWhereThatIsAskedFor) {
  step_.threads = {{{Kind::kSubmit, 0},
                    {Kind::kCompute, kMs},
                    {Kind::kSubmit, 1},
                    {Kind::kCompute, kMs},
                    {Kind::kSubmit, 2},
                    {Kind::kCompute, kMs}}};
  submitted_ms_ = {2, 4, 6, 8, 10, 13};
  EXPECT_EQ(factor(5), 3);
  EXPECT_EQ(factor(3, 1, false), 2) << "it is not known yet that this is all the time";
  EXPECT_EQ(factor(4, 1, false), 1);
  EXPECT_EQ(factor(5, 1, false), 1.5);
  step_.threads[0][1].value = 10 * kMs;  // The second stretch of each step was long in the record.
  submitted_ms_ = {2, 4, 6, 8, 10, 12};
  EXPECT_EQ(factor(5, 1, false), 1) << "it does not decide what is usual";
}

TEST_F(PaceTest, CoversWhatCanBeTold) {
  EXPECT_DOUBLE_EQ(Pace({&step_, &step_}, 0, 1, true).covers(), (4 + 4 + 8) / 20.0);
  EXPECT_EQ(Pace({&step_, &step_}, 1, 1, true).covers(), 0);
  EXPECT_EQ(Pace({&step_}, 0, 1, true).covers(), 0);
}

}  // namespace
}  // namespace netsum::ghost::cast_test
