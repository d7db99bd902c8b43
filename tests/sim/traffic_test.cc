// How much a run sends and how long it takes, in virtual time: exact, so it can be asserted.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "emulate/simulation.h"
#include "src/base/soak.h"
#include "src/bursts/bursts.h"
#include "wire/codec.h"
#include "wire/mtu.h"

namespace netsum::emulate::traffic_test {
namespace {

constexpr int64_t kRoundTripUs = 100;  // of quiet_scenario()

TEST(Traffic, QueuedOperationsPipeline) {
  constexpr int kOperations = 200;
  Scenario scenario = quiet_scenario(4, DataType::kFloat32, 16, kOperations);
  scenario.jobs[0].scale_slots = 4;
  scenario.jobs[0].data_slots = 256;
  const int64_t four = Simulation(scenario).run().ended_at_us;
  // One after the other would take two round trips each (scales, data).
  EXPECT_LT(four, kOperations * kRoundTripUs * 6 / 10);
  scenario.jobs[0].scale_slots = 32;
  const Report report = Simulation(scenario).run();
  EXPECT_EQ(report.first_problem(), "");
  EXPECT_LT(report.ended_at_us, kOperations * kRoundTripUs / 10);
}

// What rank 0 sends, with all headers.
std::vector<bursts::Arrival> sent_by_rank_0(const Scenario& scenario) {
  Simulation simulation(scenario);
  std::vector<bursts::Arrival> log;
  simulation.set_filter([&](const Address& from, const OutPacket& packet) {
    if (from == Simulation::worker_address(0, 0))
      log.push_back(
          {simulation.now_us() * 1000, packet.size + static_cast<uint64_t>(wire::overhead_bytes(4))});
    return true;
  });
  EXPECT_EQ(simulation.run().first_problem(), "");
  return log;
}

TEST(Traffic, PacedRanksObeyTheEnvelopeAndUseTheirRate) {
  Scenario scenario = quiet_scenario(4, DataType::kFloat32, 16 * 2000);
  scenario.jobs[0].data_slots = 256;
  for (const uint64_t rate : {500'000u, 2'000'000u, 20'000'000u}) {  // bytes per second
    const uint64_t burst =
        kPaceBurst * static_cast<uint64_t>(NETSUM_HEADER_BYTES + 64 + wire::overhead_bytes(6));
    scenario.jobs[0].pace_bytes_per_s = 0;
    EXPECT_GT(bursts::backlog(sent_by_rank_0(scenario), rate), static_cast<double>(burst)) << "not paced";
    scenario.jobs[0].pace_bytes_per_s = rate;
    const std::vector<bursts::Arrival> log = sent_by_rank_0(scenario);
    // B(rate) is the maximum over tau of E(tau) - rate tau.
    EXPECT_LE(bursts::backlog(log, rate), static_cast<double>(burst)) << rate;
    EXPECT_GT(*bursts::mean_rate(log, bursts::span_ns(log)), 0.9 * static_cast<double>(rate));
  }
}

// The results that rank 0 gets from a switch, in steps of four buckets that begin every `period_us`, over links of 100 Mbit/s.
std::vector<bursts::Arrival> results_of_steps(int steps, int64_t period_us) {
  constexpr int kBuckets = 4;
  Scenario scenario = quiet_scenario(2, DataType::kFloat32, 12'800, steps * kBuckets);
  scenario.payload_bytes = 1440;
  scenario.jobs[0].data_slots = 256;
  scenario.worker_up.bytes_per_us = scenario.worker_down.bytes_per_us = 12.5;
  scenario.worker_up.queue_bytes = scenario.worker_down.queue_bytes = 1'000'000;
  for (int i = 0; i < steps * kBuckets; ++i)
    scenario.jobs[0].operations[static_cast<size_t>(i)].submit_at_us.assign(2, i / kBuckets * period_us);
  Simulation simulation(scenario);
  std::vector<bursts::Arrival> log;
  simulation.set_filter([&](const Address& from, const OutPacket& packet) {
    if (from == Simulation::aggregator_address(0) && packet.to == Simulation::worker_address(0, 0))
      log.push_back({simulation.now_us() * 1000, packet.size});
    return true;
  });
  EXPECT_EQ(simulation.run().first_problem(), "");
  return log;
}

TEST(Traffic, PeakToMeanOfStepsFollowsTheFormulaOfBursts) {
  // Bursts of b bytes at rate R every T: T R / b up to tau = b / R, then T / tau.
  constexpr int kSteps = 40;
  constexpr double kRate = 0.0125;  // bytes per ns
  constexpr int64_t kFiveMs = 5'000'000;
  for (const int64_t period_us : {40'000, 1'200'000}) {
    const std::vector<bursts::Arrival> log = results_of_steps(kSteps, period_us);
    const double burst = static_cast<double>(bursts::total_bytes(log)) / kSteps;
    const auto period_ns = static_cast<double>(period_us) * 1e3;
    // The mean of whole periods, and windows of at least 20 packets, as the formula's bursts have none.
    const double mean = burst / period_ns * 1e9;
    for (const int64_t tau : bursts::geometric_grid(20 * 1472 * 80, period_us * 1000)) {
      const double formula = period_ns / std::max(static_cast<double>(tau), burst / kRate);
      EXPECT_NEAR(bursts::peak_to_mean(bursts::envelope(log, tau), tau, mean) / formula, 1, 0.05)
          << tau << " ns";
    }
    EXPECT_NEAR(*bursts::mean_rate(log, bursts::span_ns(log)) / mean, 1, 0.05);
    // Above 60 only where the period is longer than 60 times 5 ms and than 60 bursts.
    EXPECT_EQ(*bursts::peak_to_mean(log, kFiveMs) > 60, period_us == 1'200'000) << period_us;
  }
}

// Operations that begin every 10 ms, some earlier and some later.
Scenario periodic(int64_t phase_us) {
  constexpr int kOperations = 20;
  Scenario scenario = quiet_scenario(2, DataType::kFloat32, 16 * 200, kOperations);
  scenario.shards = 1;  // an aggregator gives turns instead
  scenario.jobs[0].phase_period_us = 10'000;
  scenario.jobs[0].phase_offset_us = phase_us;
  for (int i = 0; i < kOperations; ++i) {
    OperationPlan& operation = scenario.jobs[0].operations[static_cast<size_t>(i)];
    operation.submit_at_us = {10'000 * i + 700 * (i % 3), 10'000 * i + 500 * (i % 2)};
  }
  return scenario;
}

TEST(Traffic, StepsWaitForTheirPhase) {
  for (const int64_t phase_us : {3'000, 5'000, 1'002'500}) {
    const Scenario scenario = periodic(phase_us);
    Simulation simulation(scenario);
    const auto ranks = static_cast<size_t>(scenario.jobs[0].ranks);
    std::vector<int64_t> last_us(ranks, -10'000);
    std::vector<int> begun(ranks);
    simulation.set_filter([&](const Address& from, const OutPacket& packet) {
      netsum_fields fields{};
      EXPECT_EQ(netsum_parse(packet.data, packet.size, &fields), NETSUM_DROP_NONE);
      if (fields.type != NETSUM_TYPE_CONTRIBUTION) return true;
      for (size_t rank = 0; rank < ranks; ++rank) {
        if (from != Simulation::worker_address(0, static_cast<int>(rank))) continue;
        if (simulation.now_us() - last_us[rank] > 1'000) {  // the first one of an operation
          EXPECT_EQ((simulation.now_us() - phase_us % 10'000) % 10'000, 0) << "rank " << rank;
          ++begun[rank];
        }
        last_us[rank] = simulation.now_us();
      }
      return true;
    });
    const Report report = simulation.run();
    EXPECT_EQ(report.first_problem(), "");
    EXPECT_EQ(begun, std::vector<int>(ranks, static_cast<int>(scenario.jobs[0].operations.size())));
  }
}

TEST(Traffic, AnOperationWhoseDeadlineIsBeforeThePhaseStartsAtOnce) {
  Scenario scenario = periodic(9'000);
  scenario.jobs[0].ending = Ending::kSuccess;
  for (OperationPlan& operation : scenario.jobs[0].operations) operation.timeout_us = 5'000;
  const Report report = Simulation(scenario).run();
  EXPECT_EQ(report.first_problem(), "");
}

TEST(Traffic, AStreamHasNoPauseBetweenScaleGroups) {
  // 32 chunks per group, 8 groups, a window of 8: 32 round trips of data, plus HELLO and the first scales.
  Scenario scenario = quiet_scenario(3, DataType::kFloat32, 16 * 32 * 8);
  const Report report = Simulation(scenario).run();
  EXPECT_EQ(report.first_problem(), "");
  EXPECT_LE(report.ended_at_us, (32 + 2 + 1) * kRoundTripUs);
}

TEST(Traffic, ScalesCostOneSmallPacketPerGroup) {
  constexpr size_t kChunks = 1000;
  Scenario scenario = quiet_scenario(2, DataType::kFloat32, 16 * kChunks);
  Simulation simulation(scenario);
  uint64_t scales = 0, data = 0;
  simulation.set_filter([&](const Address& from, const OutPacket& packet) {
    netsum_fields fields{};
    EXPECT_EQ(netsum_parse(packet.data, packet.size, &fields), NETSUM_DROP_NONE);
    if (from == Simulation::worker_address(0, 0) && fields.type == NETSUM_TYPE_CONTRIBUTION) {
      ++(fields.format == NETSUM_FORMAT_MAX_U8 ? scales : data);
    }
    return true;
  });
  EXPECT_EQ(simulation.run().first_problem(), "");
  EXPECT_EQ(data, kChunks);
  EXPECT_EQ(scales, (kChunks + 31) / 32);  // payload 64: scales of 32 chunks in a packet
}

TEST(Traffic, NoDataIsSentForChunksThatAreZeroOnAllRanks) {
  constexpr size_t kChunks = 100;
  for (const DataType type : {DataType::kFloat32, DataType::kInt64}) {
    Scenario scenario = quiet_scenario(2, type, 64 / size_of(type) * kChunks, 3);
    scenario.aggregators = 2;
    scenario.jobs[0].operations[1].content = Content::kZeros;
    Simulation simulation(scenario);
    uint64_t data = 0;
    simulation.set_filter([&](const Address& from, const OutPacket& packet) {
      netsum_fields fields{};
      EXPECT_EQ(netsum_parse(packet.data, packet.size, &fields), NETSUM_DROP_NONE);
      data += from == Simulation::worker_address(0, 0) && fields.type == NETSUM_TYPE_CONTRIBUTION &&
              fields.format != NETSUM_FORMAT_MAX_U8;
      return true;
    });
    EXPECT_EQ(simulation.run().first_problem(), "");
    EXPECT_EQ(data, 2 * kChunks) << "of the first and the last operation";
  }
}

// UDP payload bytes that rank 0 sends and receives for 16 MiB of float32.
std::pair<uint64_t, uint64_t> bytes_of_16_mib(int lane_bits) {
  constexpr size_t kCount = size_t{4} << 20;
  Scenario scenario = quiet_scenario(2, DataType::kFloat32, kCount);
  scenario.payload_bytes = 1440;
  scenario.jobs[0].data_slots = 256;
  scenario.jobs[0].lane_bits = lane_bits;
  Simulation simulation(scenario);
  const Address rank = Simulation::worker_address(0, 0);
  uint64_t sent = 0, received = 0;
  simulation.set_filter([&](const Address& from, const OutPacket& packet) {
    if (from == rank) sent += packet.size;
    if (packet.to == rank) received += packet.size;
    return true;
  });
  EXPECT_EQ(simulation.run().first_problem(), "");
  return {sent, received};
}

TEST(Traffic, EightBitLanesTakeAQuarterOfTheBytesOfFloat32) {
  const auto [sent32, received32] = bytes_of_16_mib(32);
  const auto [sent8, received8] = bytes_of_16_mib(8);
  EXPECT_GT(static_cast<double>(sent32), 3.9 * static_cast<double>(sent8));
  EXPECT_GT(static_cast<double>(received32), 3.9 * static_cast<double>(received8));
  // One byte for each element, 32 of header for each 1440, and as many packets of scales as 720 chunks need.
  constexpr uint64_t kElements = uint64_t{4} << 20, kChunks = (kElements + 1439) / 1440;
  constexpr uint64_t kScales = 2 * kChunks + ((kChunks + 719) / 720) * 32;
  constexpr uint64_t kHello = 2 * (1440 + 32);
  EXPECT_LE(sent8, kElements + 7 + kChunks * 32 + kScales + 8 * ((kChunks + 719) / 720) + kHello);
}

TEST(Traffic, WithoutLossEveryPayloadIsSentOnceAndNothingIsAsked) {
  Scenario scenario = quiet_scenario(8, DataType::kFloat32, 16 * 500);
  scenario.aggregators = 2;
  const Report report = Simulation(scenario).run();
  EXPECT_EQ(report.first_problem(), "");
  for (const RankReport& rank : report.jobs[0]) {
    EXPECT_EQ(rank.retransmissions, 0u);
    EXPECT_EQ(rank.probes, 0u);
    EXPECT_EQ(rank.packets_sent, 2u + 500u + 2 * 8u);  // HELLO, data, scales of 250 chunks on each stripe
  }
}

TEST(Traffic, RetransmissionsAreAboutAsManyAsLosses) {
  for (const double loss : {0.001, 0.01, 0.05}) {
    Scenario scenario = quiet_scenario(4, DataType::kFloat32, 16 * 20'000);
    scenario.jobs[0].data_slots = 256;
    scenario.worker_up.loss = loss;  // contributions, probes and HELLOs; results all arrive
    const Report report = Simulation(scenario).run();
    EXPECT_EQ(report.first_problem(), "");
    EXPECT_LE(report.retransmissions(), report.network.lost) << loss;
    EXPECT_GE(report.retransmissions() * 2, report.network.lost) << loss;
  }
}

TEST(Traffic, TheWindowFitsANarrowQueue) {
  // 10 bytes/us with room for 20 packets, in front of an aggregator that grants 256 slots to each of 2 ranks.
  Scenario scenario = quiet_scenario(2, DataType::kFloat32, 360 * 4000);
  scenario.payload_bytes = 1440;
  scenario.jobs[0].data_slots = 256;
  scenario.worker_up.bytes_per_us = 10;
  scenario.worker_up.queue_bytes = 20 * 1472;
  const Report report = Simulation(scenario).run();
  EXPECT_EQ(report.first_problem(), "");
  EXPECT_GT(report.network.tail_dropped, 0u);
  for (const RankReport& rank : report.jobs[0]) EXPECT_LT(rank.window_packets, 64u);
  // The window probes for room by a packet per round trip, and settles where that many are lost: a window of
  // 20 loses a tenth, and more while steps that wait for a repair do not count.
  EXPECT_LT(report.retransmissions(), 2u * 4000 / 7);
  const double least_us = 4000 * 1472 / 10.0;
  EXPECT_LT(static_cast<double>(report.ended_at_us), least_us / 0.8) << "goodput below 80 % of the link";
}

TEST(Traffic, LossOnEveryLinkCostsLittleGoodput) {
  // 8 ranks behind links of 100 Mbit/s and a base round trip of half a millisecond to two: a step needs 16
  // packets, so with 1 % of loss every seventh step loses something.
  for (const int64_t delay_us : soak() ? std::vector<int64_t>{100, 400} : std::vector<int64_t>{400}) {
    const auto time_us = [&](double loss) {
      Scenario scenario = quiet_scenario(8, DataType::kFloat32, 360 * 4000);
      scenario.payload_bytes = 1440;
      scenario.jobs[0].data_slots = 256;
      for (LinkOptions* link : {&scenario.worker_up, &scenario.worker_down}) {
        *link = {.delay_us = delay_us, .jitter_us = delay_us / 4, .loss = loss, .bytes_per_us = 12.5};
        link->queue_bytes = 1'000'000;
      }
      const Report report = Simulation(scenario).run();
      EXPECT_EQ(report.first_problem(), "");
      return static_cast<double>(report.ended_at_us);
    };
    const double without = time_us(0);
    EXPECT_GT(without / time_us(0.001), 0.95) << delay_us;
    EXPECT_GT(without / time_us(0.01), 0.93) << delay_us;
    EXPECT_GT(without / time_us(0.05), 0.65) << delay_us;
  }
}

TEST(Traffic, IncastAtTheAggregatorIsSurvived) {
  // 8 ranks send at 10 bytes/us each into a down-link of 10 bytes/us with room for 64 packets.
  Scenario scenario = quiet_scenario(8, DataType::kFloat32, 360 * 500);
  scenario.payload_bytes = 1440;
  scenario.jobs[0].data_slots = 256;
  scenario.worker_up.bytes_per_us = 10;
  scenario.worker_up.queue_bytes = 1 << 20;
  scenario.aggregator_down.bytes_per_us = 10;
  scenario.aggregator_down.queue_bytes = 64 * 1472;
  const Report report = Simulation(scenario).run();
  EXPECT_EQ(report.first_problem(), "");
  EXPECT_GT(report.network.tail_dropped, 0u);
  const double least_us = 8 * 500 * 1472 / 10.0;
  EXPECT_LT(static_cast<double>(report.ended_at_us), least_us / 0.6);
}

TEST(Traffic, StripesAdvanceTogether) {
  // No result of the first stripe arrives for a while; the second one must not run ahead meanwhile.
  constexpr size_t kChunks = 2000;
  Scenario scenario = quiet_scenario(2, DataType::kFloat32, 16 * kChunks);
  scenario.aggregators = 2;
  Simulation simulation(scenario);
  uint32_t furthest = 0;
  simulation.set_filter([&](const Address& from, const OutPacket& packet) {
    netsum_fields fields{};
    EXPECT_EQ(netsum_parse(packet.data, packet.size, &fields), NETSUM_DROP_NONE);
    if (simulation.now_us() > 50'000 || fields.format == NETSUM_FORMAT_MAX_U8) return true;
    if (fields.type == NETSUM_TYPE_CONTRIBUTION) furthest = std::max(furthest, fields.chunk);
    return from != Simulation::aggregator_address(0) || fields.type != NETSUM_TYPE_RESULT;
  });
  EXPECT_EQ(simulation.run().first_problem(), "");
  const uint32_t slots = 2 * scenario.jobs[0].data_slots;
  EXPECT_GE(furthest, slots / 2) << "nothing was sent";
  EXPECT_LT(furthest, 2 * slots);
}

TEST(Traffic, PlannedSharesTakeTheTimeOfThePlan) {
  // 8 ranks, which embed shards, and some spare hosts, all with links of 100 Mbit/s.
  constexpr int kRanks = 8;
  constexpr size_t kBytes = 4 << 20;
  constexpr int64_t kLaterUs = 5'000;  // each rank begins later than the one before
  for (const int spares : soak() ? std::vector{0, 1, 4} : std::vector{4}) {
    Scenario scenario = quiet_scenario(kRanks, DataType::kFloat32, kBytes / sizeof(float));
    scenario.payload_bytes = 1440;
    scenario.jobs[0].data_slots = 256;
    scenario.jobs[0].scale_slots = 32;
    scenario.aggregators = spares + kRanks;
    scenario.shards = kRanks;
    // All links are equally loaded: N c = 1 + (N - 2) g, and k c + N g = 1 (docs/placement.md).
    const double c = 2.0 * (kRanks - 1) / (kRanks * kRanks + spares * (kRanks - 2));
    const double g = (1 - spares * c) / kRanks;
    for (int i = 0; i < scenario.aggregators; ++i)
      scenario.stripe_weights.push_back(static_cast<uint32_t>((i < spares ? c : g) * 1e6));
    for (LinkOptions* link :
         {&scenario.worker_up, &scenario.worker_down, &scenario.aggregator_up, &scenario.aggregator_down}) {
      *link = {.delay_us = 10, .jitter_us = 5, .bytes_per_us = 12.5};
      link->queue_bytes = 1'000'000;
    }
    std::vector<int64_t>& submit_at_us = scenario.jobs[0].operations[0].submit_at_us;
    for (size_t rank = 0; rank < kRanks; ++rank) submit_at_us[rank] = static_cast<int64_t>(rank) * kLaterUs;
    const Report report = Simulation(scenario).run();
    EXPECT_EQ(report.first_problem(), "");
    EXPECT_EQ(report.network.tail_dropped, 0u);
    const double least_us = (1 + (kRanks - 2) * g) * kBytes / 1440 * (1440 + NETSUM_HEADER_BYTES) / 12.5;
    const auto took_us = static_cast<double>(report.ended_at_us - (kRanks - 1) * kLaterUs);
    EXPECT_LT(took_us, least_us * 1.06) << spares << " spare hosts: the plan says " << least_us << " us";
  }
}

// 4 ranks, which embed shards, and a spare host, planned for links of 100 Mbit/s. The spare host's has `spare_rate`.
Scenario planned_for_equal_links(double spare_rate, int operations) {
  constexpr int kRanks = 4;
  Scenario scenario = quiet_scenario(kRanks, DataType::kFloat32, (512 << 10) / sizeof(float), operations);
  scenario.payload_bytes = 1440;
  scenario.jobs[0].data_slots = 256;
  scenario.jobs[0].scale_slots = 32;
  scenario.aggregators = 1 + kRanks;
  scenario.shards = kRanks;
  scenario.stripe_weights = {2, 1, 1, 1, 1};  // docs/placement.md
  scenario.balance_period = 128;
  for (LinkOptions* link :
       {&scenario.worker_up, &scenario.worker_down, &scenario.aggregator_up, &scenario.aggregator_down}) {
    *link = {.delay_us = 10, .jitter_us = 5, .bytes_per_us = 12.5};
    link->queue_bytes = 1'000'000;
  }
  FaultEvent slow;
  slow.kind = FaultEvent::Kind::kSlowLink;
  slow.rank = kNoRank;
  slow.duration_us = 3'600'000'000;
  slow.bytes_per_us = 12.5 * spare_rate;
  scenario.events.push_back(slow);
  return scenario;
}

TEST(Traffic, WrongSharesAreCorrected) {
  constexpr int kOperations = 60, kAtEachEnd = 6;
  const Scenario scenario = planned_for_equal_links(0.4, kOperations);
  Simulation simulation(scenario);
  const Report report = simulation.run();
  EXPECT_EQ(report.first_problem(), "");
  const auto& operations = report.jobs[0][0].operations;
  const auto ended_us = [&](int i) { return operations[static_cast<size_t>(i)].ended_at_us; };
  const auto first_us = static_cast<double>(ended_us(kAtEachEnd));
  const auto last_us =
      static_cast<double>(ended_us(kOperations - 1) - ended_us(kOperations - 1 - kAtEachEnd));
  EXPECT_LT(last_us, 0.7 * first_us);
  const WorkerCore& one = simulation.worker(0, 0);
  EXPECT_GE(one.share_changes().get(), 2u);
  EXPECT_LT(one.stripe(0).counters().share.get(), kWholeShare * 23 / 100);
  for (int rank = 1; rank < scenario.jobs[0].ranks; ++rank) {
    for (size_t stripe = 0; stripe < one.stripe_count(); ++stripe)
      EXPECT_EQ(simulation.worker(0, rank).stripe(stripe).counters().share.get(),
                one.stripe(stripe).counters().share.get());
  }
}

TEST(Traffic, RightSharesStayGood) {
  // The spare host with a short queue, and as the others: there, all shares stay.
  for (const bool short_queue : {true, false}) {
    Scenario scenario = planned_for_equal_links(1, 25);
    if (!short_queue) scenario.events.clear();
    Simulation simulation(scenario);
    const Report corrected = simulation.run();
    EXPECT_EQ(corrected.first_problem(), "");
    EXPECT_TRUE(short_queue || simulation.worker(0, 0).share_changes().get() == 0);
    scenario.balance_period = 0;
    const Report planned = Simulation(scenario).run();
    EXPECT_LT(static_cast<double>(corrected.ended_at_us), 1.05 * static_cast<double>(planned.ended_at_us));
  }
}

}  // namespace
}  // namespace netsum::emulate::traffic_test
