// Operations whose input arrives piece by piece, in virtual time. Until a piece arrives its memory is poison; results are
// compared with what the numerics define, whenever they count as delivered, and at the end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "emulate/simulation.h"
#include "src/base/rng.h"

namespace netsum::emulate::watermarks_test {
namespace {

using testing::HasSubstr;

constexpr int kRanks = 4;
constexpr double kBytesPerUs = 12.5;

OperationPlan operation_of(Collective collective, size_t bytes) {
  OperationPlan plan;
  plan.collective = collective;
  plan.type = moves_bytes(collective) ? DataType::kByte : DataType::kFloat32;
  const size_t parts = has_parts(collective) ? kRanks : 1;
  plan.tensors.assign(parts, {bytes / parts / size_of(plan.type), false});
  plan.submit_at_us.assign(kRanks, 0);
  return plan;
}

Scenario scenario_of(std::vector<OperationPlan> operations, int stripes = 1) {
  Scenario scenario = quiet_scenario(kRanks, DataType::kFloat32, 1);
  scenario.payload_bytes = 1440;
  scenario.aggregators = stripes;
  for (LinkOptions* link : {&scenario.worker_up, &scenario.worker_down})
    *link = {.delay_us = 100, .bytes_per_us = kBytesPerUs, .queue_bytes = 1'000'000};
  scenario.jobs[0].data_slots = 256;
  scenario.jobs[0].scale_slots = 16;
  scenario.jobs[0].operations = std::move(operations);
  return scenario;
}

// All of a mode's operations sum in that mode.
enum class Mode { kFixed, kPredicted, kFloats, kVerified };
constexpr Mode kModes[] = {Mode::kFixed, Mode::kPredicted, Mode::kFloats, Mode::kVerified};

void set_mode(Mode mode, JobPlan* job) {
  job->predicts_scales = mode == Mode::kPredicted ? UINT64_MAX : 0;
  job->sums_values = job->adds_floats = mode == Mode::kFloats;
  job->verifies_sums = mode == Mode::kVerified;
}

TEST(Watermarks, ResultsAreRightHoweverInputArrives) {
  constexpr Collective kCollectives[] = {
      Collective::kAllReduce, Collective::kReduceScatter, Collective::kReduce, Collective::kAllGather,
      Collective::kBroadcast, Collective::kScatter,       Collective::kGather};
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    std::vector<OperationPlan> operations;
    for (int i = 0; i < 8; ++i) {
      OperationPlan plan = operation_of(kCollectives[rng.below(7)], 8 * rng.below(3'000));
      plan.root = static_cast<int>(rng.below(kRanks));
      for (TensorPlan& tensor : plan.tensors) tensor.in_place = rng.chance(0.5);
      plan.arrival = {.ranks = rng.next(),
                      .piece_bytes = 1 + rng.below(3'000),
                      .pause_us = static_cast<int64_t>(rng.below(2'000))};
      operations.push_back(std::move(plan));
    }
    Scenario scenario = scenario_of(std::move(operations), 1 + static_cast<int>(rng.below(3)));
    scenario.seed = seed;
    scenario.payload_bytes = seed % 2 == 0 ? 64 : 256;
    scenario.racks = rng.chance(0.3) ? 2 : 0;
    set_mode(kModes[seed % 4], &scenario.jobs[0]);
    scenario.jobs[0].data_slots = seed % 3 == 0 ? 4 : 32;
    for (LinkOptions* link : {&scenario.worker_up, &scenario.worker_down})
      *link = {.delay_us = 50, .jitter_us = 200, .loss = rng.chance(0.5) ? 0.05 : 0, .duplicate = 0.02};
    const Report report = Simulation(scenario).run();
    ASSERT_EQ(report.first_problem(), "");
  }
}

// One after the other they would take the time of two. In fixed point, a stripe begins with a scale group, here of 1 MB.
TEST(Watermarks, InputArrivesWhileTheNetworkSums) {
  struct Case {
    Mode mode;
    int stripes;
    size_t bytes;
  };
  for (const Case& c : {Case{Mode::kFloats, 1, 2 << 20}, Case{Mode::kFloats, 3, 2 << 20},
                        Case{Mode::kPredicted, 1, 6 << 20}}) {
    Scenario scenario = scenario_of({operation_of(Collective::kAllReduce, c.bytes)}, c.stripes);
    set_mode(c.mode, &scenario.jobs[0]);
    const Report at_once = Simulation(scenario).run();
    ASSERT_EQ(at_once.first_problem(), "");
    constexpr size_t kPiece = 64 << 10;
    scenario.jobs[0].operations[0].arrival = {
        .ranks = 0b0101, .piece_bytes = kPiece, .pause_us = static_cast<int64_t>(2 * kPiece / kBytesPerUs)};
    const Report piecewise = Simulation(scenario).run();
    ASSERT_EQ(piecewise.first_problem(), "");
    EXPECT_LT(piecewise.ended_at_us, 1.5 * static_cast<double>(at_once.ended_at_us))
        << "mode " << static_cast<int>(c.mode) << ", " << c.stripes << " stripes";
  }
}

Report run_with_missing_input(Mode mode, size_t most_bytes, int stripes) {
  OperationPlan first = operation_of(Collective::kAllReduce, 100'000), second = first;
  first.arrival = {.ranks = 0b0010, .piece_bytes = 5'000, .pause_us = 10, .most_bytes = most_bytes};
  first.timeout_us = second.timeout_us = 2'000'000;
  Scenario scenario = scenario_of({first, second}, stripes);
  scenario.jobs[0].ending = Ending::kAny;
  set_mode(mode, &scenario.jobs[0]);
  return Simulation(scenario).run();
}

TEST(Watermarks, InputThatNeverComesEndsAtTheDeadlineAndSaysSo) {
  for (const Mode mode : kModes) {
    for (const size_t most_bytes : {0, 4, 50'000, 99'999}) {
      const Report report = run_with_missing_input(mode, most_bytes, 2);
      EXPECT_THAT(report.violations, testing::IsEmpty());
      for (int rank = 0; rank < kRanks; ++rank) {
        for (const OperationReport& operation : report.jobs[0][static_cast<size_t>(rank)].operations) {
          EXPECT_TRUE(operation.ended);
          EXPECT_EQ(operation.status.code(), ErrorCode::kTimeout);
          EXPECT_EQ(operation.status.rank(), 1) << operation.status.to_string();
          const std::string why = "this rank has made available " + std::to_string(most_bytes) +
                                  " of 100000 bytes of the input of all_reduce #0";
          EXPECT_THAT(operation.status.message(), HasSubstr(rank == 1 ? why : "waiting for rank 1"));
        }
      }
    }
  }
}

TEST(Watermarks, TheCallerFailsAnOperation) {
  OperationPlan plan = operation_of(Collective::kAllReduce, 100'000);
  plan.arrival = {.ranks = 0b0010, .piece_bytes = 5'000, .pause_us = 10, .most_bytes = 50'000};
  plan.timeout_us = 2'000'000;
  Scenario scenario = scenario_of({plan, plan});
  scenario.jobs[0].ending = Ending::kAny;
  Simulation simulation(scenario);
  simulation.fail_input(0, 1, 0, 500'000, {ErrorCode::kInternal, "the device has failed"});
  const Report report = simulation.run();
  EXPECT_THAT(report.violations, testing::IsEmpty());
  for (const OperationReport& operation : report.jobs[0][1].operations) {
    EXPECT_EQ(operation.status.code(), ErrorCode::kInternal);
    EXPECT_EQ(operation.status.message(), "the device has failed");
    EXPECT_EQ(operation.ended_at_us, 500'000) << "without a timer";
  }
}

}  // namespace
}  // namespace netsum::emulate::watermarks_test
