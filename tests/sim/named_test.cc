// Faults that earlier systems got wrong, one by one, on the real engine: stale packets, retransmission of the
// first window, short tensors, stragglers, NaN and overflow, strangers' packets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "emulate/simulation.h"
#include "wire/codec.h"

namespace netsum::emulate::named_test {
namespace {

netsum_fields parse(const OutPacket& packet) {
  netsum_fields fields{};
  EXPECT_EQ(netsum_parse(packet.data, packet.size, &fields), NETSUM_DROP_NONE);
  return fields;
}

void set_everywhere(Scenario* scenario, void (*change)(LinkOptions*)) {
  change(&scenario->worker_up);
  change(&scenario->worker_down);
}

TEST(NamedRuns, LossOfEachPacketOfTheFirstWindowIsRepaired) {
  // The bug to catch: the packet is sent again with the neighbour's slot.
  for (int lost = 0; lost < 24; ++lost) {
    Scenario scenario = quiet_scenario(2, DataType::kFloat32, 16 * 40);
    Simulation simulation(scenario);
    int contributions = 0;
    simulation.set_filter([&](const Address& from, const OutPacket& packet) {
      if (from != Simulation::worker_address(0, 1)) return true;
      return parse(packet).type != NETSUM_TYPE_CONTRIBUTION || contributions++ != lost;
    });
    const Report report = simulation.run();
    ASSERT_EQ(report.first_problem(), "") << "packet " << lost;
    EXPECT_EQ(report.jobs[0][1].retransmissions, 1u);
    EXPECT_EQ(report.jobs[0][0].retransmissions, 0u);
  }
}

// More tensors than there is room for scales of 8-bit lanes, with NaN and infinities among them.
TEST(NamedRuns, ManySmallTensorsTravelIn8BitLanes) {
  for (const DataType type : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16}) {
    for (const Content content : {Content::kWideRange, Content::kSpecial, Content::kExtremes}) {
      for (const int ranks : {2, 3, 8}) {
        Scenario scenario = quiet_scenario(ranks, type, 1);
        scenario.jobs[0].lane_bits = 8;
        OperationPlan& operation = scenario.jobs[0].operations[0];
        operation.content = content;
        for (size_t i = 0; i < 300; ++i)
          operation.tensors.push_back({i % 100 < 70 ? 1 : i % 5 * 13, i % 2 == 0});
        ASSERT_EQ(Simulation(scenario).run().first_problem(), "")
            << data_type_name(type) << ", " << ranks << " ranks";
      }
    }
  }
}

TEST(NamedRuns, LossOfEachResultIsRepairedByOneContribution) {
  for (int lost = 0; lost < 24; ++lost) {
    Scenario scenario = quiet_scenario(3, DataType::kInt32, 16 * 40);
    Simulation simulation(scenario);
    int results = 0;
    simulation.set_filter([&](const Address&, const OutPacket& packet) {
      if (packet.to != Simulation::worker_address(0, 2)) return true;
      return parse(packet).type != NETSUM_TYPE_RESULT || results++ != lost;
    });
    const Report report = simulation.run();
    ASSERT_EQ(report.first_problem(), "") << "result " << lost;
    // Of the rank that lost it alone; none if there were fewer results.
    EXPECT_EQ(report.retransmissions(), lost < results ? 1u : 0u);
    EXPECT_EQ(report.jobs[0][2].retransmissions, report.retransmissions());
  }
}

// Chunks of 16 elements: 12 in the first operation, 1 in each of the others.
TEST(NamedRuns, StripesOfUnequalWeightShareTheChunksInTheirRatio) {
  Scenario scenario = quiet_scenario(3, DataType::kInt32, 16 * 12);
  scenario.aggregators = 3;
  scenario.stripe_weights = {1, 0, 3};
  const OperationPlan first = scenario.jobs[0].operations[0];
  for (int i = 0; i < 8; ++i) {
    scenario.jobs[0].operations.push_back(first);
    scenario.jobs[0].operations.back().tensors[0].count = 16;
  }
  Simulation simulation(scenario);
  std::vector<int> data(3);
  simulation.set_filter([&](const Address& from, const OutPacket& packet) {
    const netsum_fields fields = parse(packet);
    if (from == Simulation::worker_address(0, 1) && fields.type == NETSUM_TYPE_CONTRIBUTION &&
        fields.format == NETSUM_FORMAT_SUM_I32) {
      for (int i = 0; i < 3; ++i)
        data[static_cast<size_t>(i)] += packet.to == Simulation::aggregator_address(i);
    }
    return true;
  });
  EXPECT_EQ(simulation.run().first_problem(), "");
  EXPECT_EQ(data, (std::vector<int>{3 + 2, 0, 9 + 6}));
}

// The checker demands the sum of the contributors' inputs at the receivers, and untouched outputs elsewhere.
TEST(NamedRuns, AReduceSumsTheContributorsToTheReceivers) {
  for (const bool in_place : {false, true}) {
    for (const auto& [contributors, receivers] :
         {std::pair{0b1111, 0b0010}, {0b0100, 0b1011}, {0b0110, 0b0001}}) {
      Scenario scenario = quiet_scenario(4, DataType::kFloat32, 16 * 40 + 5, 3);
      scenario.aggregators = 2;
      set_everywhere(&scenario, [](LinkOptions* link) { link->loss = 0.05; });
      for (OperationPlan& operation : scenario.jobs[0].operations) {
        operation.contributors = static_cast<uint64_t>(contributors);
        operation.receivers = static_cast<uint64_t>(receivers);
        operation.tensors[0].in_place = in_place;
      }
      scenario.jobs[0].operations[1].content = Content::kSpecial;  // some wide lanes
      EXPECT_EQ(Simulation(scenario).run().first_problem(), "") << contributors << " to " << receivers;
    }
  }
}

// What a rank without inputs sends: a header and a word for each packet, and lanes only if it is asked to contribute again.
TEST(NamedRuns, RanksThatAddNothingSendNoLanes) {
  Scenario scenario = quiet_scenario(4, DataType::kFloat32, 16 * 40, 2);
  for (OperationPlan& operation : scenario.jobs[0].operations) operation.contributors = 0b0010;
  Simulation simulation(scenario);
  std::vector<size_t> bare(4), full(4);
  simulation.set_filter([&](const Address& from, const OutPacket& packet) {
    const netsum_fields fields = parse(packet);
    for (int rank = 0; rank < 4; ++rank) {
      if (from != Simulation::worker_address(0, rank) || fields.type != NETSUM_TYPE_CONTRIBUTION) continue;
      const bool has_lanes = (fields.flags & NETSUM_FLAG_EMPTY) == 0;
      (has_lanes ? full : bare)[static_cast<size_t>(rank)] += packet.size;
    }
    return true;
  });
  EXPECT_EQ(simulation.run().first_problem(), "");
  EXPECT_EQ(full[0] + full[2] + full[3], 0u);
  EXPECT_EQ(bare[1], 0u);
  EXPECT_GT(full[1], 2u * 40 * 64);
  EXPECT_GT(bare[0], 0u);
  EXPECT_EQ(bare[0] % (NETSUM_HEADER_BYTES + NETSUM_EMPTY_BYTES), 0u);
}

// What a rank without outputs receives.
TEST(NamedRuns, RanksThatNeedNoResultReceiveNoLanes) {
  Scenario scenario = quiet_scenario(4, DataType::kFloat32, 16 * 40, 2);
  for (OperationPlan& operation : scenario.jobs[0].operations) operation.receivers = 0b0010;
  Simulation simulation(scenario);
  std::vector<size_t> with_lanes(4);
  simulation.set_filter([&](const Address&, const OutPacket& packet) {
    const netsum_fields fields = parse(packet);
    for (int rank = 0; rank < 4; ++rank)
      if (packet.to == Simulation::worker_address(0, rank) && fields.type == NETSUM_TYPE_RESULT &&
          fields.format == NETSUM_FORMAT_SUM_I32 && (fields.flags & NETSUM_FLAG_EMPTY) == 0)
        ++with_lanes[static_cast<size_t>(rank)];
    return true;
  });
  EXPECT_EQ(simulation.run().first_problem(), "");
  EXPECT_EQ(with_lanes, (std::vector<size_t>{0, 2 * 40, 0, 0}));
}

// XOR shows a contribution that counts twice, or not at all.
TEST(NamedRuns, ReductionsOfWordsAreExactOnABadNetwork) {
  for (const ReduceOp op :
       {ReduceOp::kBitXor, ReduceOp::kBitOr, ReduceOp::kBitAnd, ReduceOp::kMax, ReduceOp::kMin}) {
    for (const DataType type : {DataType::kInt32, DataType::kInt64}) {
      Scenario scenario = quiet_scenario(4, type, 16 * 40 + 5, 3);
      scenario.aggregators = 2;
      set_everywhere(&scenario, [](LinkOptions* link) {
        link->loss = 0.05;
        link->duplicate = 0.1;
        link->jitter_us = 100;
      });
      for (OperationPlan& operation : scenario.jobs[0].operations) {
        operation.op = op;
        operation.content = Content::kExtremes;
      }
      EXPECT_EQ(Simulation(scenario).run().first_problem(), "") << reduce_op_name(op);
    }
  }
}

TEST(NamedRuns, ReduceAndAllReduceAreDifferentOperations) {
  Scenario scenario = quiet_scenario(2, DataType::kInt32, 64);
  OperationPlan reduce = scenario.jobs[0].operations[0];
  reduce.receivers = 1;
  Simulation simulation(scenario);
  simulation.override_plan(0, 1, 0, reduce);
  const Report report = simulation.run();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(report.jobs[0][static_cast<size_t>(rank)].operations[0].status.code(), ErrorCode::kMismatch);
  }
}

TEST(NamedRuns, TensorsShorterThanTheWindow) {
  for (size_t count = 0; count <= 70; ++count) {
    Scenario scenario = quiet_scenario(3, DataType::kFloat16, count, 3);
    scenario.seed = count;
    scenario.jobs[0].data_slots = 64;
    set_everywhere(&scenario, [](LinkOptions* link) { link->loss = 0.1; });
    EXPECT_EQ(Simulation(scenario).run().first_problem(), "") << count << " elements";
  }
}

// 100 runs each, like the model that found the predecessors' protocol wrong in most of them.
Report run_model(uint64_t seed, double loss, double late) {
  Scenario scenario = quiet_scenario(4, DataType::kFloat32, 16 * 64 * 4);
  scenario.seed = seed;
  scenario.jobs[0].data_slots = 16;
  for (LinkOptions* link : {&scenario.worker_up, &scenario.worker_down}) {
    link->loss = loss;
    link->late = late;
    link->late_us = 20 * 100;  // round trips
  }
  return Simulation(scenario).run();
}

TEST(NamedRuns, OnePercentOfThePacketsIsTwentyRoundTripsLate) {
  uint64_t late = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Report report = run_model(seed, 0, 0.01);
    ASSERT_EQ(report.first_problem(), "") << "seed " << seed;
    late += report.network.late;
  }
  EXPECT_GT(late, 100u * 10);
}

TEST(NamedRuns, OnePercentLoss) {
  uint64_t lost = 0, again = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Report report = run_model(seed, 0.01, 0);
    ASSERT_EQ(report.first_problem(), "") << "seed " << seed;
    lost += report.network.lost;
    again += report.retransmissions();
  }
  // What is lost is repaired by one contribution each, small packets by none.
  EXPECT_GT(again, lost / 2);
  EXPECT_LT(again, lost + lost / 4);
}

TEST(NamedRuns, APerMilleLoss) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    ASSERT_EQ(run_model(seed, 0.001, 0).first_problem(), "") << "seed " << seed;
  }
}

TEST(NamedRuns, TheRoundTripGrowsFarBeyondTheTimeout) {
  // HELLO measured 100 us, then every packet takes 25 ms: the timeout follows, and no payload goes twice.
  Scenario scenario = quiet_scenario(2, DataType::kFloat32, 16 * 400);
  scenario.jobs[0].data_slots = 16;
  scenario.jobs[0].operations[0].submit_at_us = {200, 200};
  Simulation simulation(scenario);
  simulation.at(150, [&] { simulation.network().set_extra_delay(12'500); });
  const Report report = simulation.run();
  EXPECT_EQ(report.first_problem(), "");
  EXPECT_EQ(report.retransmissions(), 0u);
  EXPECT_GT(report.jobs[0][0].srtt_us, 10'000u);
  // 400 chunks; while the estimate is still wrong some are asked for, several times each.
  EXPECT_LT(report.jobs[0][0].probes, 200u);
}

TEST(NamedRuns, WhileOneRankIsLateTheOthersProbeAndSendNoPayloadAgain) {
  Scenario scenario = quiet_scenario(4, DataType::kFloat32, 16 * 1000);
  scenario.jobs[0].data_slots = 64;
  scenario.jobs[0].operations[0].submit_at_us = {0, 0, 0, 3'000'000};
  const Report report = Simulation(scenario).run();
  EXPECT_EQ(report.first_problem(), "");
  EXPECT_EQ(report.retransmissions(), 0u);
  for (int rank = 0; rank < 3; ++rank) {
    const uint64_t probes = report.jobs[0][static_cast<size_t>(rank)].probes;
    EXPECT_GT(probes, 0u);
    EXPECT_LT(probes, 250u) << "up to four slots of scales wait: a few probes a second each";
  }
}

TEST(NamedRuns, ARankThatPausesInTheMiddleCostsNoPayloads) {
  // Its data slots fill up and wait, not only those of the scales.
  Scenario scenario = quiet_scenario(3, DataType::kFloat32, 16 * 2000);
  scenario.jobs[0].data_slots = 64;
  Simulation simulation(scenario);
  // Everything of rank 2 is held up for 2 s, and nothing is lost.
  simulation.at(700, [&] { simulation.network().hold(Simulation::worker_address(0, 2), 2'000'700); });
  const Report report = simulation.run();
  EXPECT_EQ(report.first_problem(), "");
  EXPECT_EQ(report.jobs[0][0].retransmissions, 0u);
  EXPECT_EQ(report.jobs[0][1].retransmissions, 0u);
  EXPECT_GT(report.ended_at_us, 2'000'000);
  EXPECT_LT(report.jobs[0][0].probes, 64u * 20);
}

TEST(NamedRuns, NanAndInfinitiesComeOutAsTheFrameworkWouldGiveThem) {
  for (const DataType type : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16}) {
    Scenario scenario = quiet_scenario(4, type, 256);
    Simulation simulation(scenario);
    // One of each in the same chunk; checker.cc knows what must come out, here we look once ourselves.
    const uint32_t inf = type == DataType::kFloat16    ? 0x7C00u
                         : type == DataType::kBFloat16 ? 0x7F80u
                                                       : 0x7F800000u;
    const uint32_t sign = type == DataType::kFloat32 ? 0x80000000u : 0x8000u;
    const uint32_t nan = inf + (type == DataType::kFloat32    ? 0x400000u
                                : type == DataType::kBFloat16 ? 0x40u
                                                              : 0x200u);
    const uint32_t minus_inf = inf | sign;
    OperationMemory& memory = simulation.memory(0, 0);
    memory.set_input(1, 3, &inf);
    memory.set_input(2, 4, &minus_inf);
    memory.set_input(0, 5, &inf);
    memory.set_input(3, 5, &minus_inf);
    memory.set_input(3, 6, &nan);
    const Report report = simulation.run();
    ASSERT_EQ(report.first_problem(), "");
    EXPECT_EQ(memory.result(0, 3), INFINITY);
    EXPECT_EQ(memory.result(1, 4), -INFINITY);
    EXPECT_TRUE(std::isnan(memory.result(2, 5)));
    EXPECT_TRUE(std::isnan(memory.result(3, 6)));
    for (const size_t i : {0u, 1u, 2u, 7u, 15u, 16u}) EXPECT_TRUE(std::isfinite(memory.result(0, i)));
  }
}

TEST(NamedRuns, SmallAndLargeMagnitudesSurvive) {
  for (const float value : {1e-30f, 1e-38f, 1e-45f, 1.6e38f, 3e38f}) {
    Scenario scenario = quiet_scenario(4, DataType::kFloat32, 256);
    Simulation simulation(scenario);
    OperationMemory& memory = simulation.memory(0, 0);
    for (int rank = 0; rank < 4; ++rank) {
      for (size_t i = 0; i < 256; ++i) memory.set_input(rank, i, &value);
    }
    EXPECT_EQ(simulation.run().first_problem(), "");
    for (const size_t i : {0u, 100u, 255u}) EXPECT_EQ(memory.result(1, i), 4 * value) << value;
  }
}

// Whatever the order in which the packets of the ranks arrive, and also over two levels: checker.cc knows the order.
void add_mixed_magnitudes(int racks, uint64_t seed, size_t count, bool of_any_size) {
  Scenario scenario = quiet_scenario(8, DataType::kFloat32, count, 3);
  scenario.seed = seed;
  scenario.racks = racks;
  scenario.jobs[0].sums_values = true;
  scenario.jobs[0].adds_floats = of_any_size;
  scenario.jobs[0].operations[1].op = ReduceOp::kAvg;
  set_everywhere(&scenario, [](LinkOptions* link) {
    link->jitter_us = 500;
    link->loss = 0.05;
  });
  Simulation simulation(scenario);
  const float values[] = {2.3f, 1e9f, 1e8f, 1e-3f, -1e8f};
  for (size_t operation = 0; operation < 3; ++operation) {
    OperationMemory& memory = simulation.memory(0, operation);
    for (int rank = 0; rank < 8; ++rank)
      for (size_t i = 0; i < count; ++i)
        memory.set_input(rank, i, &values[(i + static_cast<size_t>(rank)) % 5]);
    if (operation == 2)
      for (int rank = 0; rank < 8; ++rank)
        for (size_t i = 0; i < 2; ++i) memory.set_input(rank, i, &values[i]);
  }
  ASSERT_EQ(simulation.run().first_problem(), "") << racks << " racks, seed " << seed;
  EXPECT_NEAR(simulation.memory(0, 2).result(3, 0), 8 * 2.3, 1e-5);
}

TEST(NamedRuns, SmallTensorsOfMixedMagnitudeAreAddedInTheOrderOfTheRanks) {
  for (const int racks : {0, 2})
    for (uint64_t seed = 1; seed <= 20; ++seed) add_mixed_magnitudes(racks, seed, 5, false);
}

// Packets of many operations wait for their turn in all slots.
TEST(NamedRuns, TensorsOfAnySizeAreAddedInTheOrderOfTheRanks) {
  for (const int racks : {0, 2})
    for (uint64_t seed = 1; seed <= 5; ++seed)
      for (const size_t count : {5u, 20'000u}) add_mixed_magnitudes(racks, seed, count, true);
}

// Two ranks differ in `numerics`: both are told, at their first packet.
TEST(NamedRuns, RanksThatDoNotBothAddFloatsAreTold) {
  Scenario scenario = quiet_scenario(2, DataType::kFloat32, 20'000);
  scenario.jobs[0].sums_values = scenario.jobs[0].adds_floats = true;
  scenario.jobs[0].fixed_floats = 2;
  Simulation simulation(scenario);
  const Report report = simulation.run();
  EXPECT_TRUE(report.violations.empty());
  for (const RankReport& rank : report.jobs[0]) {
    ASSERT_TRUE(rank.operations[0].ended);
    EXPECT_EQ(rank.operations[0].status.code(), ErrorCode::kMismatch)
        << rank.operations[0].status.to_string();
    EXPECT_LT(rank.operations[0].ended_at_us, 100'000);
  }
}

// Runs one operation where element 20 of rank r is values[r], the rest is small.
template <typename T>
Report run_integers(DataType type, const std::vector<T>& values) {
  Scenario scenario = quiet_scenario(static_cast<int>(values.size()), type, 100);
  scenario.jobs[0].operations[0].timeout_us = 5'000'000;
  Simulation simulation(scenario);
  for (size_t rank = 0; rank < values.size(); ++rank) {
    simulation.memory(0, 0).set_input(static_cast<int>(rank), 20, &values[rank]);
  }
  return simulation.run();
}

void expect_overflow_everywhere(const Report& report) {
  EXPECT_TRUE(report.violations.empty());
  for (const RankReport& rank : report.jobs[0]) {
    ASSERT_TRUE(rank.operations[0].ended);
    EXPECT_EQ(rank.operations[0].status.code(), ErrorCode::kOverflow)
        << rank.operations[0].status.to_string();
  }
}

TEST(NamedRuns, AnIntegerSumThatDoesNotFitIsAnErrorOnEveryRank) {
  constexpr int32_t kMax32 = std::numeric_limits<int32_t>::max();
  constexpr int32_t kMin32 = std::numeric_limits<int32_t>::min();
  constexpr int64_t kMax64 = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMin64 = std::numeric_limits<int64_t>::min();
  expect_overflow_everywhere(run_integers<int32_t>(DataType::kInt32, {kMax32, 1, 0}));
  expect_overflow_everywhere(run_integers<int32_t>(DataType::kInt32, {kMin32, -1}));
  expect_overflow_everywhere(run_integers<int32_t>(DataType::kInt32, {kMin32, kMin32, kMin32, kMin32}));
  expect_overflow_everywhere(run_integers<int64_t>(DataType::kInt64, {kMax64, 1, 0}));
  expect_overflow_everywhere(run_integers<int64_t>(DataType::kInt64, {kMin64, -1}));
  expect_overflow_everywhere(run_integers<int64_t>(DataType::kInt64, {kMax64, kMax64, 2}));  // wraps to 0
}

TEST(NamedRuns, AnIntegerSumThatFitsIsExactThoughPartialSumsDoNot) {
  constexpr int32_t kMax32 = std::numeric_limits<int32_t>::max();
  constexpr int32_t kMin32 = std::numeric_limits<int32_t>::min();
  constexpr int64_t kMax64 = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMin64 = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(run_integers<int32_t>(DataType::kInt32, {kMax32, kMax32, kMin32, kMin32}).first_problem(), "");
  EXPECT_EQ(run_integers<int32_t>(DataType::kInt32, {kMax32, 0}).first_problem(), "");
  EXPECT_EQ(run_integers<int64_t>(DataType::kInt64, {kMax64, kMax64, kMin64, kMin64}).first_problem(), "");
  EXPECT_EQ(run_integers<int64_t>(DataType::kInt64, {kMin64, 0, 0}).first_problem(), "");
  EXPECT_EQ(run_integers<int64_t>(DataType::kInt64, {kMin64, kMax64, 1}).first_problem(), "");
}

// Sends, every 20 us, whatever `make` writes to a frame, in the name of rank 0 and of the aggregator.
template <typename Make>
Report run_attacked(Make make) {
  Scenario scenario = quiet_scenario(3, DataType::kFloat32, 16 * 300, 3);
  auto simulation = std::make_unique<Simulation>(scenario);
  auto rng = std::make_shared<Rng>(77);
  for (int64_t at_us = 1; at_us < 4'000; at_us += 20) {
    simulation->at(at_us, [&, rng, sim = simulation.get()] {
      std::vector<uint8_t> frame(NETSUM_HEADER_BYTES + 64);
      const uint32_t size = make(rng.get(), frame.data());
      sim->network().send(Simulation::worker_address(0, 0),
                          {frame.data(), size, Simulation::aggregator_address(0)});
      sim->network().send(Simulation::aggregator_address(0),
                          {frame.data(), size, Simulation::worker_address(0, 1)});
    });
  }
  return simulation->run();
}

TEST(NamedRuns, PacketsWithoutTheJobsKeyChangeNothing) {
  for (const uint8_t type : {NETSUM_TYPE_CONTRIBUTION, NETSUM_TYPE_RESULT, NETSUM_TYPE_STATUS,
                             NETSUM_TYPE_ERROR, NETSUM_TYPE_HELLO}) {
    const Report report = run_attacked([&](Rng* rng, uint8_t* frame) {
      netsum_fields fields{};
      fields.type = type;
      const bool lanes = type == NETSUM_TYPE_CONTRIBUTION || type == NETSUM_TYPE_RESULT;
      fields.format = lanes ? NETSUM_FORMAT_SUM_I32 : NETSUM_FORMAT_NONE;
      fields.epoch = 1;
      fields.slot = static_cast<uint16_t>(rng->below(12));
      fields.round = static_cast<uint32_t>(1 + rng->below(20));
      fields.chunk = static_cast<uint32_t>(rng->below(64));
      fields.payload_bytes = lanes || type == NETSUM_TYPE_HELLO ? 64 : 8;
      std::memset(frame + NETSUM_HEADER_BYTES, 0xFF, 64);
      return wire::write_header(fields, netsum_key{rng->next(), rng->next()}, frame);
    });
    EXPECT_EQ(report.first_problem(), "") << wire::type_name(type);
    EXPECT_GT(report.jobs[0][1].dropped, 100u);
  }
}

TEST(NamedRuns, PacketsOfAnotherEpochChangeNothingThoughTheKeyIsRight) {
  const Report report = run_attacked([](Rng* rng, uint8_t* frame) {
    netsum_fields fields{};
    fields.type = NETSUM_TYPE_RESULT;
    fields.format = NETSUM_FORMAT_SUM_I32;
    fields.epoch = 2;
    fields.slot = static_cast<uint16_t>(rng->below(12));
    fields.round = static_cast<uint32_t>(1 + rng->below(20));
    fields.payload_bytes = 64;
    return wire::write_header(fields, netsum_key{0x1234567890ABCDEF, 0xFEDCBA0987654321}, frame);
  });
  EXPECT_EQ(report.first_problem(), "");
  EXPECT_GT(report.jobs[0][1].dropped, 100u);
}

TEST(NamedRuns, RandomBytesChangeNothing) {
  const Report report = run_attacked([](Rng* rng, uint8_t* frame) {
    const auto size = static_cast<uint32_t>(rng->below(NETSUM_HEADER_BYTES + 64 + 1));
    for (uint32_t i = 0; i < size; ++i) frame[i] = static_cast<uint8_t>(rng->next());
    // Half of them look like ours at first sight.
    if (size > 2 && rng->chance(0.5)) {
      frame[0] = NETSUM_MAGIC;
      frame[1] = static_cast<uint8_t>(NETSUM_VERSION << 4 | rng->below(8));
    }
    return size;
  });
  EXPECT_EQ(report.first_problem(), "");
}

}  // namespace
}  // namespace netsum::emulate::named_test
