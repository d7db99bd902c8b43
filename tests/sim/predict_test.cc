// Predicted scales: how many round trips and packets operations take, in virtual time, and that results are the same bits.
// (Every run compares all results with the definition of docs/numerics.md, which knows nothing of predictions.)
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "emulate/simulation.h"

namespace netsum::emulate::predict_test {
namespace {

constexpr int64_t kRoundTripUs = 100;  // of quiet_scenario()
constexpr size_t kChunks = 20;         // of a payload of 64 bytes, in one scale group

// One operation after the other.
Scenario iterations(int ranks, DataType type, int operations) {
  Scenario scenario =
      quiet_scenario(ranks, type, 64 / std::max<size_t>(4, size_of(type)) * kChunks, operations);
  JobPlan& job = scenario.jobs[0];
  job.lane_bits = 32;
  job.data_slots = 64;
  job.predicts_scales = UINT64_MAX;
  for (size_t i = 0; i < job.operations.size(); ++i) {
    job.operations[i].data_of = i == 0 ? -1 : 0;
    job.operations[i].submit_at_us.assign(static_cast<size_t>(ranks), static_cast<int64_t>(i + 1) * 50'000);
  }
  return scenario;
}

struct Cost {
  std::vector<double> round_trips;  // by operation, of rank 0
  uint64_t packets = 0, bytes = 0;  // that rank 0 has sent
  uint64_t predicted = 0, mispredicted = 0;
};

Cost run(const Scenario& scenario) {
  const Report report = Simulation(scenario).run();
  EXPECT_EQ(report.first_problem(), "");
  const RankReport& rank = report.jobs[0][0];
  Cost cost{{}, rank.packets_sent, rank.bytes_sent, rank.scales_predicted, rank.scales_mispredicted};
  for (const OperationReport& operation : rank.operations)
    cost.round_trips.push_back(static_cast<double>(operation.ended_at_us - operation.submitted_at_us) /
                               kRoundTripUs);
  return cost;
}

Cost run_without(Scenario scenario) {
  scenario.jobs[0].predicts_scales = 0;
  return run(scenario);
}

TEST(Predict, OneRoundTripOnceTheScalesHaveRecurred) {
  for (const DataType type :
       {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16, DataType::kInt32}) {
    for (const int racks : {0, 2}) {
      SCOPED_TRACE(testing::Message() << data_type_name(type) << ", " << racks << " racks");
      Scenario scenario = iterations(4, type, 10);
      scenario.racks = racks;
      const double round_trip = racks > 0 ? 2 : 1;
      const Cost cost = run(scenario), without = run_without(scenario);
      for (size_t i = 0; i < 10; ++i) {
        EXPECT_NEAR(without.round_trips[i], 2 * round_trip, 0.1) << i;
        EXPECT_NEAR(cost.round_trips[i], i < 3 ? 2 * round_trip : round_trip, 0.1) << i;
      }
      EXPECT_EQ(cost.packets, without.packets);
      EXPECT_EQ(cost.bytes, without.bytes);
      EXPECT_EQ(cost.predicted, 7 * kChunks);
      EXPECT_EQ(cost.mispredicted, 0u);
    }
  }
}

TEST(Predict, EachOfSeveralStripesRemembersItsChunks) {
  Scenario scenario = iterations(3, DataType::kFloat32, 24);
  scenario.aggregators = 2;
  scenario.stripe_weights = {1, 2};  // the stripes' chunks are the same again after three operations
  const Cost cost = run(scenario);
  for (size_t i = 0; i < cost.round_trips.size(); ++i)
    EXPECT_NEAR(cost.round_trips[i], i < 9 ? 2 : 1, 0.1) << i;
  EXPECT_EQ(cost.mispredicted, 0u);
}

// Whatever the scales do, a chunk costs at most one packet more, and never another round trip.
void expect_bounded(const Scenario& scenario, uint64_t least_mispredicted) {
  const Cost cost = run(scenario), without = run_without(scenario);
  EXPECT_GE(cost.mispredicted, least_mispredicted);
  EXPECT_EQ(cost.packets, without.packets + cost.mispredicted);
  EXPECT_LE(cost.mispredicted, scenario.jobs[0].operations.size() * kChunks);
  for (size_t i = 0; i < cost.round_trips.size(); ++i)
    EXPECT_LE(cost.round_trips[i], without.round_trips[i] + 0.01) << i;
}

TEST(Predict, RandomExponentsAreNotPredicted) {
  Scenario scenario = iterations(4, DataType::kFloat32, 30);
  for (OperationPlan& operation : scenario.jobs[0].operations) {
    operation.content = Content::kWideRange;
    operation.data_of = -1;
  }
  expect_bounded(scenario, 0);
  EXPECT_LT(run(scenario).predicted, 3u);
}

TEST(Predict, AlternatingMagnitudesAreNotPredicted) {
  Scenario scenario = iterations(4, DataType::kFloat32, 30);
  for (size_t i = 1; i < 30; i += 2) {
    scenario.jobs[0].operations[i].content = Content::kWideRange;
    scenario.jobs[0].operations[i].data_of = i == 1 ? -1 : 1;
  }
  EXPECT_EQ(run(scenario).predicted, 0u);
}

// As bad as it can be: what has just become trustworthy changes.
TEST(Predict, ScalesThatAlwaysChangeWhenTheyArePredicted) {
  Scenario scenario = iterations(4, DataType::kFloat32, 40);
  for (size_t i = 3; i < 40; i += 4) {
    scenario.jobs[0].operations[i].content = Content::kWideRange;
    scenario.jobs[0].operations[i].data_of = i == 3 ? -1 : 3;
  }
  expect_bounded(scenario, 9 * kChunks);
}

TEST(Predict, NansNowAndThen) {
  Scenario scenario = iterations(4, DataType::kFloat32, 40);
  for (size_t i = 5; i < 40; i += 5) {
    scenario.jobs[0].operations[i].content = Content::kSpecial;
    scenario.jobs[0].operations[i].data_of = -1;
  }
  expect_bounded(scenario, 1);
  // All the time.
  for (OperationPlan& operation : scenario.jobs[0].operations) {
    operation.content = Content::kSpecial;
    operation.data_of = -1;
  }
  expect_bounded(scenario, 0);
}

TEST(Predict, NothingIsSentForZeros) {
  Scenario scenario = iterations(4, DataType::kFloat32, 20);
  for (OperationPlan& operation : scenario.jobs[0].operations) operation.content = Content::kZeros;
  const Cost cost = run(scenario), without = run_without(scenario);
  EXPECT_EQ(cost.packets, without.packets);
  EXPECT_EQ(cost.predicted, 0u);
}

// The packets that tell the scales are lost: results of data arrive before them.
TEST(Predict, DataMayOvertakeItsScales) {
  for (const int racks : {0, 2}) {
    Scenario scenario = iterations(4, DataType::kFloat32, 30);
    scenario.racks = racks;
    for (size_t i = 10; i < 30; i += 6) {
      scenario.jobs[0].operations[i].content = Content::kWideRange;
      scenario.jobs[0].operations[i].data_of = -1;
    }
    Simulation simulation(scenario);
    uint64_t lost = 0;
    std::vector<std::vector<uint8_t>> seen;
    simulation.set_filter([&](const Address&, const OutPacket& packet) {
      netsum_fields fields{};
      EXPECT_EQ(netsum_parse(packet.data, packet.size, &fields), NETSUM_DROP_NONE);
      if (fields.format != NETSUM_FORMAT_MAX_U8) return true;
      const std::vector<uint8_t> bytes(packet.data, packet.data + packet.size);
      if (std::find(seen.begin(), seen.end(), bytes) != seen.end()) return true;
      seen.push_back(bytes);
      ++lost;
      return false;
    });
    const Report report = simulation.run();
    EXPECT_EQ(report.first_problem(), "");
    EXPECT_GT(lost, 30u);
    EXPECT_GT(report.jobs[0][0].scales_predicted, 10 * kChunks);
    EXPECT_GT(report.jobs[0][0].scales_mispredicted, kChunks);
  }
}

// Operations in flight at the same time end no later than without predictions.
TEST(Predict, QueuedOperationsEndNoLater) {
  Scenario scenario = iterations(4, DataType::kFloat32, 60);
  for (size_t i = 0; i < 60; ++i) {
    scenario.jobs[0].operations[i].submit_at_us.assign(4, static_cast<int64_t>(i / 10 + 1) * 50'000);
  }
  const Cost cost = run(scenario), without = run_without(scenario);
  for (size_t i = 0; i < 60; ++i) EXPECT_LE(cost.round_trips[i], without.round_trips[i] + 0.01) << i;
  EXPECT_GT(cost.predicted, 0u);
}

// A rank that predicts and one that does not are found by their signatures.
TEST(Predict, ARankThatDoesNotPredictIsAMismatch) {
  Scenario scenario = iterations(3, DataType::kFloat32, 6);
  scenario.jobs[0].predicts_scales = 0b011;
  const Report report = Simulation(scenario).run();
  const OperationReport& last = report.jobs[0][0].operations[5];
  EXPECT_EQ(last.status.code(), ErrorCode::kMismatch) << last.status.to_string();
}

}  // namespace
}  // namespace netsum::emulate::predict_test
