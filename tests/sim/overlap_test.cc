// Operations in opposite directions at the same time, in virtual time.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "emulate/simulation.h"
#include "src/base/rng.h"

namespace netsum::emulate::overlap_test {
namespace {

constexpr int kRanks = 8;

OperationPlan operation_of(Collective collective, int ranks, size_t bytes) {
  OperationPlan plan;
  plan.collective = collective;
  plan.type = moves_bytes(collective) ? DataType::kByte : DataType::kFloat32;
  const size_t parts = has_parts(collective) ? static_cast<size_t>(ranks) : 1;
  plan.tensors.assign(parts, {bytes / parts / size_of(plan.type), false});
  plan.submit_at_us.assign(static_cast<size_t>(ranks), 0);
  return plan;
}

// Links of 100 Mbit/s, slots as of a usual job.
Scenario scenario_of(std::vector<OperationPlan> operations, int stripes = 1) {
  Scenario scenario = quiet_scenario(kRanks, DataType::kFloat32, 1);
  scenario.payload_bytes = 1440;
  scenario.aggregators = stripes;
  for (LinkOptions* link : {&scenario.worker_up, &scenario.worker_down})
    *link = {.delay_us = 100, .bytes_per_us = 12.5, .queue_bytes = 1'000'000};
  scenario.jobs[0].data_slots = 256;
  scenario.jobs[0].scale_slots = 16;
  scenario.jobs[0].operations = std::move(operations);
  return scenario;
}

double time_of(const Scenario& scenario) {
  const Report report = Simulation(scenario).run();
  EXPECT_EQ(report.first_problem(), "");
  return static_cast<double>(report.ended_at_us);
}

TEST(Overlap, AnAllGatherAndAReduceScatterTogetherTakeTheTimeOfOne) {
  constexpr size_t kBytes = 1 << 20;
  const OperationPlan gather = operation_of(Collective::kAllGather, kRanks, kBytes);
  const OperationPlan reduce = operation_of(Collective::kReduceScatter, kRanks, kBytes);
  for (const int stripes : {1, 3}) {
    const double gather_us = time_of(scenario_of({gather}, stripes));
    const double reduce_us = time_of(scenario_of({reduce}, stripes));
    // (N-1)/N of the bytes, and headers.
    EXPECT_LT(gather_us, kBytes * 7 / 8 / 12.5 / 0.85);
    EXPECT_LT(reduce_us, kBytes * 7 / 8 / 12.5 / 0.85);
    // Each loads both directions, the other one with 1/8 and headers.
    const double longer_us = std::max(gather_us, reduce_us);
    EXPECT_LT(time_of(scenario_of({gather, reduce}, stripes)), 1.25 * longer_us) << stripes << " stripes";
    EXPECT_LT(time_of(scenario_of({reduce, gather}, stripes)), 1.25 * longer_us) << stripes << " stripes";
  }
}

// As in FSDP's backward pass: the next layer's parameters are gathered while gradients leave.
TEST(Overlap, OperationsOfOneStreamDoNotHoldBackTheOther) {
  constexpr size_t kLarge = 2 << 20;
  for (const Collective large :
       {Collective::kReduceScatter, Collective::kAllReduce, Collective::kAllGather}) {
    const Collective small =
        large == Collective::kAllGather ? Collective::kReduceScatter : Collective::kAllGather;
    const OperationPlan first = operation_of(large, kRanks, kLarge);
    const Scenario scenario = scenario_of({first, first, operation_of(small, kRanks, 100'000)});
    const Report report = Simulation(scenario).run();
    EXPECT_EQ(report.first_problem(), "");
    for (const RankReport& rank : report.jobs[0])
      EXPECT_LT(rank.operations[2].ended_at_us, report.ended_at_us / 4) << collective_name(large);
  }
}

// They are in different streams, and meet in the slots that open operations.
TEST(Overlap, RanksInOppositeOperationsAreTold) {
  const OperationPlan gather = operation_of(Collective::kAllGather, kRanks, 100'000);
  const OperationPlan reduce = operation_of(Collective::kReduceScatter, kRanks, 100'000);
  for (const OperationPlan& first : {gather, reduce}) {
    for (const OperationPlan& usual : {gather, reduce}) {
      Scenario scenario = scenario_of({first, usual});
      OperationPlan odd = usual.collective == gather.collective ? reduce : gather;
      odd.timeout_us = scenario.jobs[0].operations[1].timeout_us = 5'000'000;
      Simulation simulation(scenario);
      simulation.override_plan(0, 2, 1, odd);
      const Report report = simulation.run();
      for (const RankReport& rank : report.jobs[0])
        EXPECT_EQ(rank.operations[1].status.code(), ErrorCode::kMismatch)
            << rank.operations[1].status.to_string();
    }
  }
}

TEST(Overlap, BothStreamsAreRightUnderFaults) {
  constexpr Collective kCollectives[] = {
      Collective::kAllReduce, Collective::kReduceScatter, Collective::kReduce, Collective::kAllGather,
      Collective::kBroadcast, Collective::kScatter,       Collective::kGather};
  for (uint64_t seed = 1; seed <= 15; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    std::vector<OperationPlan> operations;
    for (int i = 0; i < 12; ++i) {
      operations.push_back(
          operation_of(kCollectives[rng.below(7)], kRanks, 8 * rng.below(seed % 5 == 0 ? 20'000 : 3'000)));
      operations.back().root = static_cast<int>(rng.below(kRanks));
    }
    Scenario scenario = scenario_of(operations, 1 + static_cast<int>(rng.below(3)));
    scenario.seed = seed;
    scenario.payload_bytes = seed % 2 == 0 ? 64 : 256;
    scenario.racks = rng.chance(0.3) ? 2 : 0;
    scenario.jobs[0].sums_values = rng.chance(0.5);
    scenario.jobs[0].adds_floats = scenario.jobs[0].sums_values && seed % 3 != 0;
    scenario.jobs[0].takes_empty_packets = rng.chance(0.8);
    scenario.jobs[0].data_slots = seed % 3 == 0 ? 4 : 32;
    scenario.jobs[0].scale_slots = seed % 3 == 0 ? 8 : 16;
    for (LinkOptions* link : {&scenario.worker_up, &scenario.worker_down}) {
      *link = {.delay_us = 50,
               .jitter_us = 100,
               .loss = rng.chance(0.5) ? 0.03 : 0.002,
               .duplicate = 0.02,
               .corrupt = 0.01,
               .late = 0.01,
               .late_us = 4'000};
    }
    EXPECT_EQ(Simulation(scenario).run().first_problem(), "");
  }
}

}  // namespace
}  // namespace netsum::emulate::overlap_test
