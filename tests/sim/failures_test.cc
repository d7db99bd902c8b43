// Runs that must fail: what each rank is told, and when.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "emulate/simulation.h"
#include "wire/codec.h"

namespace netsum::emulate::failures_test {
namespace {

using testing::HasSubstr;

void expect_all(const Report& report, ErrorCode code, int except_rank = kNoRank) {
  EXPECT_THAT(report.violations, testing::IsEmpty());
  for (size_t rank = 0; rank < report.jobs[0].size(); ++rank) {
    if (static_cast<int>(rank) == except_rank) continue;
    for (const OperationReport& operation : report.jobs[0][rank].operations) {
      ASSERT_TRUE(operation.ended) << "rank " << rank;
      EXPECT_EQ(operation.status.code(), code) << "rank " << rank << ": " << operation.status.to_string();
    }
  }
}

TEST(Failures, AWorkerThatStopsIsNamedOnEveryOtherRank) {
  for (const int stripes : {1, 3}) {
    for (const int64_t stops_at_us : {0, 150, 300, 700, 2'000}) {
      Scenario scenario = quiet_scenario(4, DataType::kFloat32, 16 * 3000);
      scenario.aggregators = stripes;
      scenario.jobs[0].data_slots = 16;
      scenario.jobs[0].operations[0].timeout_us = 3'000'000;
      Simulation simulation(scenario);
      simulation.stop_worker(0, 2, stops_at_us);
      const Report report = simulation.run();
      expect_all(report, ErrorCode::kTimeout, 2);
      for (const size_t rank : {0u, 1u, 3u}) {
        const OperationReport& operation = report.jobs[0][rank].operations[0];
        EXPECT_EQ(operation.status.rank(), 2) << operation.status.to_string();
        EXPECT_EQ(operation.ended_at_us, 3'000'000);
      }
      EXPECT_EQ(report.jobs[0][0].retransmissions, 0u);
    }
  }
}

TEST(Failures, AStoppedWorkerIsNamedThoughTheNetworkIsBad) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Scenario scenario = quiet_scenario(4, DataType::kFloat32, 16 * 3000);
    scenario.seed = seed;
    scenario.jobs[0].operations[0].timeout_us = 4'000'000;
    for (LinkOptions* link : {&scenario.worker_up, &scenario.worker_down}) {
      link->loss = 0.05;
      link->late = 0.02;
      link->late_us = 4'000;
    }
    Simulation simulation(scenario);
    simulation.stop_worker(0, 1, 5'000);
    const Report report = simulation.run();
    expect_all(report, ErrorCode::kTimeout, 1);
    for (const size_t rank : {0u, 2u, 3u}) {
      EXPECT_EQ(report.jobs[0][rank].operations[0].status.rank(), 1)
          << "seed " << seed << ": " << report.jobs[0][rank].operations[0].status.to_string();
    }
  }
}

TEST(Failures, AnAggregatorThatStopsIsNamedOnEveryRank) {
  for (const int64_t stops_at_us : {150, 700, 2'000}) {
    Scenario scenario = quiet_scenario(3, DataType::kFloat32, 16 * 6000);
    scenario.aggregators = 2;
    scenario.jobs[0].operations[0].timeout_us = 3'000'000;
    Simulation simulation(scenario);
    simulation.stop_aggregator(1, stops_at_us);
    const Report report = simulation.run();
    expect_all(report, ErrorCode::kTimeout);
    for (const RankReport& rank : report.jobs[0]) {
      EXPECT_THAT(rank.operations[0].status.message(), HasSubstr("10.0.255.1:5152"));
      EXPECT_EQ(rank.operations[0].status.rank(), kNoRank);
    }
  }
}

TEST(Failures, AnAggregatorThatWasNeverThere) {
  Scenario scenario = quiet_scenario(2, DataType::kFloat32, 16);
  scenario.jobs[0].operations[0].timeout_us = 3'000'000;
  Simulation simulation(scenario);
  simulation.stop_aggregator(0, 0);
  const Report report = simulation.run();
  expect_all(report, ErrorCode::kTimeout);
  for (const RankReport& rank : report.jobs[0]) {
    EXPECT_THAT(rank.not_connected_reason, HasSubstr("10.0.255.0:5152 does not answer"));
    EXPECT_LT(rank.packets_sent, 40u);  // HELLOs become rarer
  }
}

TEST(Failures, APathWithASmallMtuSaysSo) {
  Scenario scenario = quiet_scenario(2, DataType::kFloat32, 16);
  scenario.payload_bytes = 1440;
  scenario.jobs[0].operations[0].timeout_us = 2'000'000;
  scenario.worker_down.mtu_bytes = 1400;
  const Report report = Simulation(scenario).run();
  for (const RankReport& rank : report.jobs[0]) {
    EXPECT_THAT(rank.not_connected_reason, HasSubstr("MTU is smaller than configured"));
    EXPECT_THAT(rank.not_connected_reason, HasSubstr("1472 bytes"));
  }
  expect_all(report, ErrorCode::kTimeout);
}

// Rank 1 plans something else than ranks 0 and 2 for operation 1 of 3.
Report run_mismatch(const OperationPlan& other, double loss) {
  Scenario scenario = quiet_scenario(3, DataType::kFloat32, 16 * 100, 3);
  scenario.aggregators = 2;
  scenario.jobs[0].operations[0].timeout_us = 10'000'000;
  scenario.worker_up.loss = scenario.worker_down.loss = loss;
  for (OperationPlan& operation : scenario.jobs[0].operations) operation.timeout_us = 10'000'000;
  Simulation simulation(scenario);
  OperationPlan plan = other;
  plan.submit_at_us.assign(3, 0);
  plan.timeout_us = 10'000'000;
  simulation.override_plan(0, 1, 1, plan);
  return simulation.run();
}

void expect_mismatch(const Report& report) {
  EXPECT_THAT(report.violations, testing::IsEmpty());
  for (const RankReport& rank : report.jobs[0]) {
    const OperationReport& operation = rank.operations[1];
    ASSERT_TRUE(operation.ended);
    EXPECT_EQ(operation.status.code(), ErrorCode::kMismatch) << operation.status.to_string();
    EXPECT_NE(operation.status.rank(), kNoRank);
    EXPECT_LT(operation.ended_at_us, 1'000'000);  // long before the deadline
    EXPECT_THAT(operation.status.message(), HasSubstr("all_reduce #1"));
  }
}

TEST(Failures, AnotherSizeTypeOperationOrListOnOneRankIsReportedToAll) {
  OperationPlan other;
  other.tensors = {{16 * 100, false}};
  for (const double loss : {0.0, 0.1}) {
    OperationPlan size = other;
    size.tensors[0].count -= 1;
    expect_mismatch(run_mismatch(size, loss));
    OperationPlan type = other;
    type.type = DataType::kInt32;
    expect_mismatch(run_mismatch(type, loss));
    OperationPlan half = other;
    half.type = DataType::kBFloat16;
    expect_mismatch(run_mismatch(half, loss));
    OperationPlan op = other;
    op.op = ReduceOp::kAvg;
    expect_mismatch(run_mismatch(op, loss));
    OperationPlan list = other;
    list.tensors = {{800, false}, {800, true}};
    expect_mismatch(run_mismatch(list, loss));
  }
}

TEST(Failures, AnotherOrderOnOneRankIsReportedToAll) {
  Scenario scenario = quiet_scenario(3, DataType::kFloat32, 500, 2);
  scenario.jobs[0].operations[1].tensors[0].count = 700;
  Simulation simulation(scenario);
  simulation.override_plan(0, 2, 0, scenario.jobs[0].operations[1]);
  simulation.override_plan(0, 2, 1, scenario.jobs[0].operations[0]);
  const Report report = simulation.run();
  expect_all(report, ErrorCode::kMismatch);
  EXPECT_EQ(simulation.aggregator(0).mismatches() > 0, true);
}

TEST(Failures, OperationsAfterAFailureEndAtOnce) {
  Scenario scenario = quiet_scenario(2, DataType::kFloat32, 500, 2);
  scenario.jobs[0].operations[0].submit_at_us = {0, 5'000'000};
  scenario.jobs[0].operations[0].timeout_us = 1'000'000;
  scenario.jobs[0].operations[1].submit_at_us = {2'000'000, 5'000'000};
  scenario.jobs[0].operations[1].timeout_us = 9'000'000;
  const Report report = Simulation(scenario).run();
  const auto& operations = report.jobs[0][0].operations;
  EXPECT_EQ(operations[0].status.code(), ErrorCode::kTimeout);
  EXPECT_EQ(operations[0].status.rank(), 1);
  EXPECT_EQ(operations[0].ended_at_us, 1'000'000);
  EXPECT_EQ(operations[1].status.code(), ErrorCode::kTimeout);
  EXPECT_EQ(operations[1].ended_at_us, 2'000'000);
}

TEST(Failures, AnAggregatorThatDiesAfterALongPauseIsNotBlamedForThePause) {
  Scenario scenario = quiet_scenario(2, DataType::kFloat32, 500, 2);
  scenario.jobs[0].operations[1].submit_at_us = {100'000'000, 100'000'000};
  scenario.jobs[0].operations[1].timeout_us = 3'000'000;
  Simulation simulation(scenario);
  simulation.stop_aggregator(0, 50'000'000);
  const Report report = simulation.run();
  for (const RankReport& rank : report.jobs[0]) {
    EXPECT_TRUE(rank.operations[0].status.ok());
    EXPECT_EQ(rank.operations[1].status.code(), ErrorCode::kTimeout);
    EXPECT_THAT(rank.operations[1].status.message(), HasSubstr("has not answered for 3.0 s"));
  }
}

}  // namespace
}  // namespace netsum::emulate::failures_test
