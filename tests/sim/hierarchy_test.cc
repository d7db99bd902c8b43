// Aggregators that feed others: what is lost between the levels is found by the members' probes.
#include <gtest/gtest.h>

#include <cmath>

#include "emulate/simulation.h"
#include "wire/codec.h"

namespace netsum::emulate::hierarchy_test {
namespace {

constexpr int kRacks = 2;

Scenario racks_scenario(int ranks, size_t count) {
  Scenario scenario = quiet_scenario(ranks, DataType::kFloat32, count);
  scenario.racks = kRacks;
  return scenario;
}

bool between_levels(const Address& from, const OutPacket& packet) {
  const Address spine = Simulation::aggregator_address(0);
  for (int rack = 1; rack <= kRacks; ++rack) {
    const Address address = Simulation::aggregator_address(rack);
    if ((from == address && packet.to == spine) || (from == spine && packet.to == address)) return true;
  }
  return false;
}

int type_of(const OutPacket& packet) {
  netsum_fields fields{};
  EXPECT_EQ(netsum_parse(packet.data, packet.size, &fields), NETSUM_DROP_NONE);
  return fields.type;
}

TEST(Hierarchy, OnePacketPerRackAndChunkEachWay) {
  Simulation simulation(racks_scenario(6, 16 * 40));
  int up = 0, down = 0, others = 0;
  simulation.set_filter([&](const Address& from, const OutPacket& packet) {
    if (!between_levels(from, packet)) return true;
    const int type = type_of(packet);
    up += type == NETSUM_TYPE_CONTRIBUTION;
    down += type == NETSUM_TYPE_RESULT;
    others += type == NETSUM_TYPE_PROBE || type == NETSUM_TYPE_STATUS;
    return true;
  });
  const Report report = simulation.run();
  ASSERT_EQ(report.first_problem(), "");
  const int chunks = 40, groups = 2;  // of 32 chunks
  EXPECT_EQ(up, kRacks * (chunks + groups));
  EXPECT_EQ(down, kRacks * (chunks + groups));
  EXPECT_EQ(others, 0);
}

// Two jobs and two stripes, of which the second job has ranks in the first rack only. Packets that an aggregator sends to anybody but its
// own members, or its parent, are found.
TEST(Hierarchy, MisdirectedPacketsAreFound) {
  Scenario scenario = racks_scenario(4, 16 * 40);
  scenario.aggregators = 2;
  scenario.jobs.push_back(quiet_scenario(1, DataType::kFloat32, 16 * 40).jobs[0]);
  scenario.jobs[1].job = static_cast<uint16_t>(scenario.jobs[0].job + 1);
  const uint16_t first = scenario.jobs[0].job, second = scenario.jobs[1].job;
  const auto at = [](int rack, int stripe) {
    return Simulation::aggregator_address(2 * (1 + rack) + stripe);
  };
  struct Way {
    Address from, to, instead;
    uint16_t job;
  };
  const Way ways[] = {
      {at(0, 0), at(-1, 0), at(-1, 1), first},                             // another stripe's parent
      {at(0, 0), at(-1, 0), at(1, 0), first},                              // a neighbour
      {at(-1, 0), at(0, 0), at(0, 1), first},                              // another stripe's rack
      {at(-1, 0), at(0, 0), at(1, 0), second},                             // a rack without members
      {at(-1, 0), at(0, 0), Simulation::worker_address(first, 0), first},  // below the rack
      {at(1, 1), Simulation::worker_address(first, 3), Simulation::worker_address(first, 0), first},
      {at(0, 1), Simulation::worker_address(second, 0), Simulation::worker_address(first, 0), second},
  };
  ASSERT_EQ(Simulation(scenario).run().first_problem(), "");
  for (const Way& way : ways) {
    Simulation simulation(scenario);
    int misdirected = 0;
    simulation.set_addressee([&](const Address& from, const OutPacket& packet) {
      netsum_fields fields{};
      const bool is_it = from == way.from && packet.to == way.to && misdirected == 0 &&
                         netsum_parse(packet.data, packet.size, &fields) == NETSUM_DROP_NONE &&
                         fields.job == way.job;
      misdirected += is_it;
      return is_it ? way.instead : packet.to;
    });
    const Report report = simulation.run();
    EXPECT_EQ(misdirected, 1) << way.from.to_string() << " to " << way.to.to_string();
    EXPECT_NE(report.first_problem().find("which is no member"), std::string::npos)
        << way.from.to_string() << " to " << way.instead.to_string() << ": " << report.first_problem();
  }
}

// Each stripe of a rack belongs to the parent's of the same number; a stripe without weight gets no chunks.
TEST(Hierarchy, StripesWithUnequalWeights) {
  constexpr int kChunks = 200;
  Scenario scenario = racks_scenario(6, 16 * kChunks);
  scenario.aggregators = 3;
  scenario.stripe_weights = {1, 3, 0};
  for (const double loss : {0.0, 0.02}) {
    scenario.worker_up.loss = scenario.worker_down.loss = loss;
    scenario.aggregator_up.loss = scenario.aggregator_down.loss = loss;
    Simulation simulation(scenario);
    std::vector<int> up(3);
    simulation.set_filter([&](const Address& from, const OutPacket& packet) {
      for (int stripe = 0; stripe < 3; ++stripe) {
        const bool to_top = packet.to == Simulation::aggregator_address(stripe);
        if (!to_top || type_of(packet) != NETSUM_TYPE_CONTRIBUTION) continue;
        for (int rack = 1; rack <= kRacks; ++rack)
          up[static_cast<size_t>(stripe)] += from == Simulation::aggregator_address(3 * rack + stripe);
      }
      return true;
    });
    const Report report = simulation.run();
    ASSERT_EQ(report.first_problem(), "") << "loss " << loss;
    EXPECT_EQ(up[2], 0);
    if (loss > 0) continue;
    EXPECT_EQ(up[0], kRacks * (50 + 2)) << "a scale packet for each 32 chunks";
    EXPECT_EQ(up[1], kRacks * (150 + 5));
  }
}

// As many ranks as a job can have, on a path that loses packets: the largest numbers of one sign, which would
// fill the lanes first, and NaN and infinities of all.
TEST(Hierarchy, JobsOfMoreRanksThanAnAggregatorTakes) {
  for (const int ranks : {65, 256, 512}) {
    for (const Content content : {Content::kExtremes, Content::kSpecial}) {
      Scenario scenario = quiet_scenario(ranks, DataType::kFloat32, 20);
      scenario.racks = (ranks + 63) / 64;
      scenario.worker_up.loss = scenario.worker_down.loss = 0.002;
      scenario.jobs[0].operations[0].content = content;
      Simulation simulation(scenario);
      const Report report = simulation.run();
      ASSERT_EQ(report.first_problem(), "") << ranks << " ranks";
    }
  }
}

TEST(Hierarchy, AllRanksHoldTheLargestNumberOrNaN) {
  for (const int ranks : {256, 512}) {
    Scenario scenario = racks_scenario(ranks, 4);
    scenario.racks = ranks / 64;
    scenario.jobs[0].operations[0].op = ReduceOp::kAvg;
    const float values[] = {0x1.FFFFFEp0f, -0x1.FFFFFEp0f, 1.0f, NAN};
    for (const bool special : {false, true}) {
      Simulation run(scenario);
      OperationMemory& memory = run.memory(0, 0);
      for (int rank = 0; rank < ranks; ++rank)
        for (size_t i = 0; i < 4; ++i) memory.set_input(rank, i, &values[i == 3 && !special ? 2 : i]);
      const Report report = run.run();
      ASSERT_EQ(report.first_problem(), "") << ranks << " ranks";
      EXPECT_NEAR(memory.result(0, 0), 2.0, 1e-6);
      EXPECT_EQ(memory.result(0, 2), 1.0);
      EXPECT_EQ(std::isnan(memory.result(0, 3)), special);
    }
  }
}

TEST(Hierarchy, TheLossOfAnyPacketBetweenTheLevelsIsRepaired) {
  int packets = 1;
  for (int lost = 0; lost < packets; ++lost) {
    Simulation simulation(racks_scenario(4, 16 * 6));
    int seen = 0;
    simulation.set_filter([&](const Address& from, const OutPacket& packet) {
      return !between_levels(from, packet) || seen++ != lost;
    });
    const Report report = simulation.run();
    ASSERT_EQ(report.first_problem(), "") << "packet " << lost;
    if (lost == 0) packets = seen;
  }
  EXPECT_GT(packets, 2 * kRacks * 7);
}

// The answer to a probe, and the answer to the contribution that it asked for, are lost as well.
TEST(Hierarchy, LossesInARowAreRepaired) {
  for (const int type :
       {NETSUM_TYPE_CONTRIBUTION, NETSUM_TYPE_RESULT, NETSUM_TYPE_PROBE, NETSUM_TYPE_STATUS}) {
    Simulation simulation(racks_scenario(4, 16 * 6));
    int contributions = 0, lost = 0;
    simulation.set_filter([&](const Address& from, const OutPacket& packet) {
      if (!between_levels(from, packet)) return true;
      if (type_of(packet) == NETSUM_TYPE_CONTRIBUTION && contributions++ == 3) return false;  // starts it all
      if (contributions <= 3 || type_of(packet) != type) return true;
      return ++lost > 3;
    });
    const Report report = simulation.run();
    ASSERT_EQ(report.first_problem(), "") << "type " << type;
    EXPECT_GE(lost, 3) << "type " << type;
  }
}

TEST(Hierarchy, AStragglerInAnotherRackCostsNoPayloads) {
  Scenario scenario = racks_scenario(4, 16 * 20);
  scenario.jobs[0].operations[0].submit_at_us = {0, 0, 0, 400'000};
  Simulation simulation(scenario);
  const Report report = simulation.run();
  ASSERT_EQ(report.first_problem(), "");
  EXPECT_EQ(report.retransmissions(), 0u);
  EXPECT_GT(report.jobs[0][0].probes, 0u);
}

}  // namespace
}  // namespace netsum::emulate::hierarchy_test
