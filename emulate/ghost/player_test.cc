#include "emulate/ghost/player.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/program/replay.h"

namespace netsum::ghost::player_test {
namespace {

using program::Instruction;
using program::Step;
using testing::ElementsAre;

constexpr Instruction compute(uint64_t ns) {
  return {Instruction::Kind::kCompute, ns};
}
constexpr Instruction submit(uint64_t operation) {
  return {Instruction::Kind::kSubmit, operation};
}
constexpr Instruction wait(uint64_t operation) {
  return {Instruction::Kind::kWait, operation};
}

// Two buckets: the first is summed beside the computation of the second.
Step of_two_buckets() {
  Step step;
  step.operations.resize(2);
  step.operations[0].done_ns = 400;
  step.operations[1].done_ns = 600;
  step.operations[0].submitted_ns = 100;
  step.operations[1].submitted_ns = 250;
  step.threads = {{compute(100), submit(0), compute(150), submit(1), wait(0), wait(1), compute(50)}};
  step.duration_ns = 650;
  return step;
}

std::vector<uint64_t> ids(const std::vector<Player::Submission>& submissions) {
  std::vector<uint64_t> list;
  for (const auto& one : submissions) list.push_back(one.id);
  return list;
}

// Plays to the end, with each operation `takes_ns` after its submission; looks `late_ns` after each time.
std::vector<int64_t> play(Player* player, int64_t takes_ns, int64_t late_ns = 0) {
  int64_t now = 1000;
  player->start(now);
  std::vector<Player::Submission> due;
  std::vector<std::pair<int64_t, uint64_t>> ends;
  for (int rounds = 0; !player->ended() && rounds < 1000; ++rounds) {
    due.clear();
    for (auto& [at, id] : ends)
      if (at <= now) player->complete(id, std::exchange(at, INT64_MAX));
    player->advance(now, &due);
    for (const auto& one : due) ends.emplace_back(now + takes_ns, one.id);
    int64_t next = player->next_ns() == INT64_MAX ? INT64_MAX : player->next_ns() + late_ns;
    for (const auto& [at, id] : ends) next = std::min(next, at);
    if (next != INT64_MAX) now = std::max(now, next);
  }
  EXPECT_TRUE(player->ended());
  return player->begins_ns();
}

TEST(Player, TakesAsLongAsTheProgramModelSays) {
  const Step step = of_two_buckets();
  Player player({&step, &step, &step}, {});
  const int64_t duration =
      program::replay(step, {.after_submission = {320, 320}, .carried = {}})->duration_ns;
  EXPECT_THAT(play(&player, 320),
              ElementsAre(1000, 1000 + duration, 1000 + 2 * duration, 1000 + 3 * duration));
}

// Delays of the driver move neither what is computed next nor the next step.
TEST(Player, DelaysDoNotAddUp) {
  Step step;
  step.operations.resize(1);
  step.threads = {{compute(100), submit(0), compute(900)}};
  Player player({&step, &step}, {});
  EXPECT_THAT(play(&player, 1, 30), ElementsAre(1000, 2000, 3000));
  EXPECT_THAT(player.lateness_ns(), ElementsAre(30, 30));
}

TEST(Player, KnobsChangeComputingAlone) {
  const Step step = of_two_buckets();
  Player half({&step}, {.speed = 0.5});
  EXPECT_THAT(play(&half, 0), ElementsAre(1000, 1600));
  Knobs straggler;
  straggler.stragglers = {{.factor = 1.2, .from = 1, .to = 2}};
  straggler.pauses_ns = {{2, 5000}};
  Player player({&step, &step, &step}, straggler);
  EXPECT_THAT(play(&player, 0), ElementsAre(1000, 1300, 1660 + 5000, 1960 + 5000));
}

TEST(Player, StopsBeforeTheStepInWhichItCrashes) {
  const Step step = of_two_buckets();
  Knobs knobs;
  knobs.crash = 1;
  Player player({&step, &step}, knobs);
  player.start(0);
  std::vector<Player::Submission> due;
  for (int64_t now = 0; now < 2000; now += 10) {
    player.advance(now, &due);
    for (const auto& one : due) player.complete(one.id, now);
    EXPECT_EQ(player.crashes(), player.step() == 1);
  }
  EXPECT_TRUE(player.crashes());
  EXPECT_FALSE(player.ended());
  EXPECT_THAT(ids(due), ElementsAre(0, 1));
  EXPECT_EQ(player.next_ns(), INT64_MAX);
}

// All ranks must submit in one order, whatever the threads do.
TEST(Player, ThreadsSubmitInTheOrderOfTheRecord) {
  Step step;
  step.operations.resize(2);
  step.threads = {{compute(100), submit(0), wait(1)}, {submit(1)}};
  Player player({&step}, {});
  player.start(0);
  std::vector<Player::Submission> due;
  player.advance(0, &due);
  EXPECT_TRUE(due.empty());
  EXPECT_EQ(player.next_ns(), 100);
  player.advance(100, &due);
  EXPECT_THAT(ids(due), ElementsAre(0, 1));
  player.complete(1, 150);
  player.advance(150, &due);
  EXPECT_TRUE(player.ended());
}

TEST(Player, WaitsForAnOperationOfAnEarlierStep) {
  Step first, second;
  first.operations.resize(1);
  first.threads = {{submit(0)}};
  second.operations.resize(1);
  second.carried = {{.steps_back = 1, .operation = 0, .done_ns = 0}};
  second.threads = {{submit(0), wait(1), compute(10)}};
  Player player({&first, &second}, {});
  player.start(0);
  std::vector<Player::Submission> due;
  player.advance(0, &due);
  EXPECT_THAT(ids(due), ElementsAre(0, 1));
  EXPECT_EQ(player.next_ns(), INT64_MAX);
  player.complete(0, 70);
  player.advance(80, &due);
  EXPECT_THAT(player.begins_ns(), ElementsAre(0, 0, 80));
}

TEST(Player, ComputesAsFastAsItIsToldFromTheSecondStepOn) {
  Step step;
  step.operations.resize(1);
  step.threads = {{compute(100), submit(0), compute(50)}};
  Player player({&step, &step}, {.speed = 0.5});
  player.follow(0);
  player.start(0);
  std::vector<Player::Submission> due;
  player.set_factor(1, 0);
  player.advance(300, &due);
  EXPECT_THAT(ids(due), ElementsAre(0));
  EXPECT_EQ(player.step(), 1u);
  EXPECT_EQ(player.next_ns(), INT64_MAX) << "until there is a factor";
  player.advance(900, &due);
  EXPECT_THAT(ids(due), ElementsAre(0));
  player.set_factor(1.5, 590);
  EXPECT_EQ(player.next_ns(), 300);
  player.advance(620, &due);
  EXPECT_THAT(ids(due), ElementsAre(0, 1));
  // Due at 300 + 2 * 100 * 1.5, and since the first one at 200.
  EXPECT_THAT(player.lateness_ns(), ElementsAre(100, 20));
  player.advance(750, &due);
  EXPECT_TRUE(player.ended());
  EXPECT_THAT(player.begins_ns(), ElementsAre(0, 300, 750));
}

TEST(Player, DoesNotWaitForAFactorBeforeAnOperationOfAnotherGroup) {
  Step step;
  step.operations.resize(2);
  step.operations[0].group = 5;
  step.threads = {{compute(100), submit(0), compute(30), submit(1)}};
  Player player({&step, &step, &step}, {});
  player.follow(0);
  player.start(0);
  std::vector<Player::Submission> due;
  player.set_factor(1, 0);
  player.advance(240, &due);
  EXPECT_THAT(ids(due), ElementsAre(0, 1, 2)) << "130 + 100";
  EXPECT_EQ(player.next_ns(), INT64_MAX);
  player.set_factor(2, 290);
  player.advance(291, &due);
  EXPECT_THAT(ids(due), ElementsAre(0, 1, 2, 3)) << "230 + 30 * 2";
  // By the latest factor.
  player.advance(489, &due);
  EXPECT_EQ(due.size(), 4u);
  player.advance(490, &due);
  EXPECT_THAT(ids(due), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(player.lateness_ns(), ElementsAre(140, 110, 10, 1, 0));
}

}  // namespace
}  // namespace netsum::ghost::player_test
