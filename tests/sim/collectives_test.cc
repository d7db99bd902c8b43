// Collectives other than all-reduce, in virtual time: results, ranks that disagree, ranks that die.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "emulate/simulation.h"
#include "wire/codec.h"

namespace netsum::emulate::collectives_test {
namespace {

using testing::HasSubstr;

constexpr Collective kCollectives[] = {
    Collective::kAllReduce, Collective::kBroadcast, Collective::kAllGather,    Collective::kGather,
    Collective::kScatter,   Collective::kReduce,    Collective::kReduceScatter};

OperationPlan operation_of(Collective collective, int ranks, size_t count) {
  OperationPlan plan;
  plan.collective = collective;
  plan.type = moves_bytes(collective) ? DataType::kByte : DataType::kFloat32;
  plan.root = ranks - 1;
  const size_t parts = has_parts(collective) ? static_cast<size_t>(ranks) : 2;
  for (size_t i = 0; i < parts; ++i) plan.tensors.push_back({i == 1 ? 0 : count + 3 * i, i % 2 == 0});
  plan.submit_at_us.assign(static_cast<size_t>(ranks), 0);
  return plan;
}

Scenario scenario_of(int ranks, std::vector<OperationPlan> operations) {
  Scenario scenario = quiet_scenario(ranks, DataType::kFloat32, 1);
  scenario.jobs[0].operations = std::move(operations);
  return scenario;
}

void set_loss(Scenario* scenario, double loss) {
  scenario->worker_up.loss = scenario->worker_down.loss = loss;
}

TEST(Collectives, EachIsRightInEverySizeOnEveryPathUnderLoss) {
  for (const Collective collective : kCollectives) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{13}, size_t{700}, size_t{9'001}}) {
      for (const int racks : {0, 2}) {
        SCOPED_TRACE(std::string(collective_name(collective)) + " of " + std::to_string(count) + ", " +
                     std::to_string(racks) + " racks");
        const OperationPlan operation = operation_of(collective, 4, count);
        Scenario scenario = scenario_of(4, {operation, operation, operation});
        scenario.aggregators = 2;
        scenario.racks = racks;
        scenario.jobs[0].sums_values = scenario.jobs[0].adds_floats = true;
        set_loss(&scenario, 0.03);
        EXPECT_EQ(Simulation(scenario).run().first_problem(), "");
      }
    }
  }
}

TEST(Collectives, AllTogetherInOneStream) {
  std::vector<OperationPlan> operations;
  for (const size_t count : {5'000u, 40u})
    for (const Collective collective : kCollectives) operations.push_back(operation_of(collective, 5, count));
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Scenario scenario = scenario_of(5, operations);
    scenario.seed = seed;
    scenario.aggregators = 3;
    scenario.jobs[0].sums_values = seed % 2 == 0;
    scenario.jobs[0].adds_floats = seed % 4 == 0;
    set_loss(&scenario, 0.02);
    EXPECT_EQ(Simulation(scenario).run().first_problem(), "") << "seed " << seed;
  }
}

// Without an agreement before it.
TEST(Collectives, BytesAreMovedInOneRoundTrip) {
  for (const Collective collective : kCollectives) {
    if (!moves_bytes(collective)) continue;
    Scenario scenario = scenario_of(4, {operation_of(collective, 4, 100)});
    Simulation simulation(scenario);
    int contributions = 0;
    simulation.set_filter([&](const Address& from, const OutPacket& packet) {
      netsum_fields fields{};
      EXPECT_EQ(netsum_parse(packet.data, packet.size, &fields), NETSUM_DROP_NONE);
      if (from == Simulation::worker_address(0, 0) && fields.type == NETSUM_TYPE_CONTRIBUTION) {
        ++contributions;
        EXPECT_EQ(fields.format, NETSUM_FORMAT_SUM_I64);
      }
      return true;
    });
    const Report report = simulation.run();
    EXPECT_EQ(report.first_problem(), "");
    size_t bytes = 0;
    for (const TensorPlan& tensor : scenario.jobs[0].operations[0].tensors) bytes += tensor.count;
    EXPECT_EQ(contributions, static_cast<int>((bytes + 63) / 64)) << collective_name(collective);
    // A HELLO and its answer, then one contribution and its result: 50 us each.
    EXPECT_EQ(report.jobs[0][0].operations[0].ended_at_us, 200) << collective_name(collective);
  }
}

// `odd` is what rank 2 does instead of `usual`.
void expect_mismatch(const OperationPlan& usual, const OperationPlan& odd, const std::string& what) {
  SCOPED_TRACE(what);
  Scenario scenario = scenario_of(4, {usual});
  scenario.jobs[0].operations[0].timeout_us = 5'000'000;
  OperationPlan instead = odd;
  instead.timeout_us = 5'000'000;
  Simulation simulation(scenario);
  simulation.override_plan(0, 2, 0, instead);
  const Report report = simulation.run();
  for (const RankReport& rank : report.jobs[0]) {
    const Status& status = rank.operations[0].status;
    ASSERT_TRUE(rank.operations[0].ended);
    EXPECT_EQ(status.code(), ErrorCode::kMismatch) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("all ranks must call the same collectives in the same order"));
  }
}

TEST(Collectives, RanksThatDisagreeAreAllTold) {
  for (const size_t count : {size_t{10}, size_t{3'000}}) {
    for (const Collective collective : kCollectives) {
      const OperationPlan usual = operation_of(collective, 4, count);
      const std::string name = collective_name(collective);
      for (const Collective other : kCollectives)
        if (other != collective)
          expect_mismatch(usual, operation_of(other, 4, count), name + " and " + collective_name(other));
      OperationPlan odd = usual;
      odd.tensors.front().count += 1;
      expect_mismatch(usual, odd, name + " of another size");
      odd = usual;
      std::swap(odd.tensors.front().count, odd.tensors.back().count);
      expect_mismatch(usual, odd, name + " of the same size in other parts");
      odd = usual;
      odd.root = 1;
      if (has_root(collective)) expect_mismatch(usual, odd, name + " with another root");
      odd = usual;
      odd.type = DataType::kInt32;
      if (!moves_bytes(collective)) expect_mismatch(usual, odd, name + " of another type");
    }
  }
}

TEST(Collectives, ARankThatDiesIsNamedInEachOfThem) {
  for (const Collective collective : kCollectives) {
    for (const int dead : {1, 3}) {  // 3: the root
      for (const int64_t stops_at_us : {0, 120, 400}) {
        SCOPED_TRACE(std::string(collective_name(collective)) + ", rank " + std::to_string(dead) + " at " +
                     std::to_string(stops_at_us));
        Scenario scenario = scenario_of(4, {operation_of(collective, 4, 16 * 3'000)});
        scenario.jobs[0].data_slots = 16;
        scenario.jobs[0].operations[0].timeout_us = 3'000'000;
        Simulation simulation(scenario);
        simulation.stop_worker(0, dead, stops_at_us);
        const Report report = simulation.run();
        EXPECT_THAT(report.violations, testing::IsEmpty());
        for (int rank = 0; rank < 4; ++rank) {
          if (rank == dead) continue;
          const OperationReport& operation = report.jobs[0][static_cast<size_t>(rank)].operations[0];
          ASSERT_TRUE(operation.ended) << "rank " << rank;
          EXPECT_EQ(operation.status.code(), ErrorCode::kTimeout) << operation.status.to_string();
          EXPECT_EQ(operation.status.rank(), dead) << operation.status.to_string();
        }
      }
    }
  }
}

}  // namespace
}  // namespace netsum::emulate::collectives_test
