#include "src/worker/slots/start_gate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "src/base/rng.h"

namespace netsum::start_gate_test {
namespace {

constexpr int64_t kPeriodUs = 1000, kOffsetUs = 300;

TEST(StartGate, TheFirstStepWaitsForItsPhase) {
  EXPECT_EQ(StartGate(kPeriodUs, kOffsetUs).ready_us(5301, 0), 6300);
  EXPECT_EQ(StartGate(kPeriodUs, kOffsetUs).ready_us(5300, 0), 5300);
  EXPECT_EQ(StartGate(kPeriodUs, kOffsetUs).ready_us(5299, 0), 5300);
  EXPECT_EQ(StartGate(kPeriodUs, kOffsetUs - 7 * kPeriodUs).ready_us(5299, 0), 5300) << "before time 0";
  EXPECT_EQ(StartGate(kPeriodUs, kOffsetUs).ready_us(-5701, -9000), -5700);
}

TEST(StartGate, AnEarlyStepWaitsAndALateOneDoesNot) {
  StartGate gate(kPeriodUs, kOffsetUs);
  ASSERT_EQ(gate.ready_us(300, 0), 300);
  EXPECT_EQ(gate.ready_us(1290, 700), 1300);
  EXPECT_EQ(gate.ready_us(2350, 1800), 2350);
  EXPECT_EQ(gate.ready_us(3000, 2800), 3300);
  EXPECT_EQ(gate.ready_us(4799, 4000), 4799) << "late by almost half a period";
  EXPECT_EQ(gate.ready_us(5800, 5100), 6300) << "early by half";
}

TEST(StartGate, OtherOperationsOfAStepPass) {
  StartGate gate(kPeriodUs, kOffsetUs);
  ASSERT_EQ(gate.ready_us(300, 0), 300);
  EXPECT_EQ(gate.ready_us(799, 400), 799) << "half a period has not passed";
  EXPECT_EQ(gate.ready_us(1000, 900), 1000) << "a short pause in a long step";
  EXPECT_EQ(gate.ready_us(1200, 1075), 1300);
  ASSERT_EQ(gate.ready_us(2700, 2000), 2700);
  EXPECT_EQ(gate.ready_us(2900, 2750), 2900) << "of the late step";
}

TEST(StartGate, ManyLateStepsAreCorrected) {
  StartGate gate(kPeriodUs, kOffsetUs);
  ASSERT_EQ(gate.ready_us(300, 0), 300);
  int64_t now_us = 300;
  for (int step = 0; step < StartGate::kMostLate; ++step) {
    now_us = 1500 + step * kPeriodUs;
    ASSERT_EQ(gate.ready_us(now_us, now_us - 600), now_us) << step;
  }
  EXPECT_EQ(gate.ready_us(now_us + kPeriodUs, now_us + 400), now_us + kPeriodUs + 800);
  // It counts anew, and a step that is nearly punctual ends the succession.
  now_us += 2 * kPeriodUs + 800;
  for (int step = 0; step < 3 * StartGate::kMostLate; ++step, now_us += kPeriodUs) {
    const int64_t late_us = step % StartGate::kMostLate == StartGate::kMostLate - 1 ? 125 : 200;
    ASSERT_EQ(gate.ready_us(now_us + late_us, now_us - 400), now_us + late_us) << step;
  }
}

TEST(StartGate, AfterALongPauseAStepWaits) {
  StartGate gate(kPeriodUs, kOffsetUs);
  ASSERT_EQ(gate.ready_us(300, 0), 300);
  EXPECT_EQ(gate.ready_us(9400, 7400), 9400);
  EXPECT_EQ(gate.ready_us(19'400, 17'399), 20'300);
}

TEST(StartGate, WhereTurnsAreGivenOnlyTheFirstStepsWaitForTheirPhases) {
  StartGate gate(kPeriodUs, kOffsetUs, /*has_turns=*/true);
  ASSERT_EQ(gate.ready_us(200, 0), 300);
  EXPECT_EQ(gate.turn_us(300), 1300);
  EXPECT_EQ(gate.ready_us(1400, 700), 2300);
  EXPECT_EQ(gate.ready_us(3200, 2700), 3200) << "early";
  EXPECT_EQ(gate.turn_us(3200), 4200);
  EXPECT_EQ(gate.ready_us(3500, 3300), 3500) << "of the same step";
  EXPECT_EQ(gate.turn_us(3500), 3500);
  int64_t now_us = 3500;
  for (int step = 0; step < 3 * StartGate::kMostLate; ++step) {
    now_us += kPeriodUs;
    ASSERT_EQ(gate.ready_us(now_us, now_us - 600), now_us) << "late, " << step;
  }
  EXPECT_EQ(gate.ready_us(now_us + 3 * kPeriodUs + 1, now_us), now_us + 3 * kPeriodUs + 800) << "a pause";
  StartGate without(kPeriodUs, kOffsetUs);
  ASSERT_EQ(without.ready_us(200, 0), 300);
  EXPECT_EQ(without.turn_us(300), 300);
}

// Whatever comes, a wait is shorter than a period.
TEST(StartGate, WaitsAreBounded) {
  Rng rng(20261129);
  for (int run = 0; run < 200; ++run) {
    const auto period_us = static_cast<int64_t>(1 + rng.below(2000));
    StartGate gate(period_us, static_cast<int64_t>(rng.below(5000)) - 2500);
    int64_t now_us = static_cast<int64_t>(rng.below(100'000)) - 50'000;
    for (int step = 0; step < 200; ++step) {
      const auto idle_us = static_cast<int64_t>(rng.below(static_cast<uint64_t>(3 * period_us)));
      now_us += idle_us;
      const int64_t ready_us = gate.ready_us(now_us, now_us - idle_us);
      ASSERT_GE(ready_us, now_us);
      ASSERT_LT(ready_us, now_us + period_us);
      now_us = ready_us + static_cast<int64_t>(rng.below(static_cast<uint64_t>(period_us)));
    }
  }
}

// Two jobs, each busy for 400 of 1000 and computing for 590, on a link that one uses at a time.
TEST(StartGate, TwoJobsTakeTurns) {
  const auto collisions = [](bool with_gates) {
    std::vector<StartGate> gates = {{1000, 0}, {1000, 500}};
    int64_t free_us = 0;
    int found = 0;
    const auto start_us = [&](size_t job, int64_t now_us, int64_t idle_since_us) {
      return with_gates ? gates[job].ready_us(now_us, idle_since_us) : now_us;
    };
    std::vector<int64_t> starts_us = {start_us(0, 150, 0), start_us(1, 300, 0)};
    for (int step = 0; step < 200; ++step) {
      const size_t job = starts_us[0] <= starts_us[1] ? 0 : 1;
      found += starts_us[job] < free_us;
      free_us = std::max(free_us, starts_us[job]) + 400;
      starts_us[job] = start_us(job, free_us + 590, free_us);
    }
    return found;
  };
  EXPECT_EQ(collisions(true), 0);
  EXPECT_GT(collisions(false), 0);
}

}  // namespace
}  // namespace netsum::start_gate_test
