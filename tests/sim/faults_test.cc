// Which link is at fault: what an aggregator counts of its members in simulated runs, and what LinkWatch makes of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "emulate/simulation.h"
#include "src/base/rng.h"
#include "src/base/soak.h"
#include "src/faults/link_watch.h"

namespace netsum::emulate::faults_test {
namespace {

constexpr int kRanks = 8;
// 16 MiB at 1 KiB of float32 in a packet. What the packets contain does not matter, so they are short.
constexpr size_t kChunks = 16'384;

// One direction of a link.
struct Loss {
  Address from{}, to{};  // invalid: none is bad
  double loss = 0;
  double everywhere = 0;  // of all others
};

Scenario job_of(size_t chunks, int operations) {
  Scenario scenario = quiet_scenario(kRanks, DataType::kFloat32, 16 * chunks, operations);
  scenario.jobs[0].data_slots = 256;
  scenario.jobs[0].scale_slots = 16;
  for (LinkOptions* link :
       {&scenario.worker_up, &scenario.worker_down, &scenario.aggregator_up, &scenario.aggregator_down})
    link->jitter_us = 3;
  return scenario;
}

// Looks at all aggregators every so many packets, and returns what is named, by aggregator: in the end or, if nothing but names is
// of interest, when something is.
std::map<int, std::vector<faults::Fault>> named_at(const Scenario& scenario, const Loss& loss, uint64_t seed,
                                                   bool first_name = false) {
  constexpr uint64_t kPacketsPerLook = 20'000;
  Simulation simulation(scenario);
  Rng rng(seed);
  std::vector<faults::LinkWatch> watches(static_cast<size_t>(scenario.aggregator_count()));
  std::map<int, std::vector<faults::Fault>> named;
  uint64_t packets = 0;
  const JobPlan& job = scenario.jobs[0];
  const auto look = [&] {
    named.clear();
    for (int i = 0; i < scenario.aggregator_count(); ++i) {
      faults::LinkWatch& watch = watches[static_cast<size_t>(i)];
      watch.observe(simulation.aggregator(i).members(job.job, job.epoch));
      if (std::vector<faults::Fault> found = watch.faults(); !found.empty()) named[i] = std::move(found);
    }
  };
  simulation.set_filter([&](const Address& from, const OutPacket& packet) {
    if (++packets % kPacketsPerLook == 0) {
      look();
      if (first_name && !named.empty()) simulation.stop();
    }
    const bool bad = from == loss.from && packet.to == loss.to;
    return !rng.chance(bad ? loss.loss : loss.everywhere);
  });
  const Report report = simulation.run();
  EXPECT_TRUE(report.violations.empty() && (first_name || report.first_problem().empty()))
      << "replay: NETSUM_SIM_SEED=" << seed;
  EXPECT_GE(packets, kPacketsPerLook);
  return named;
}

std::vector<faults::Fault> named_in(const Scenario& scenario, const Loss& loss, uint64_t seed) {
  return named_at(scenario, loss, seed)[0];
}

uint64_t first_seed() {
  const char* given = std::getenv("NETSUM_SIM_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 41;
}

// A link between a rank and the aggregator or, in racks, also between the aggregator of a rack and the parent (number 0): which
// aggregator counts it, and as which member.
struct Edge {
  int aggregator = 0;
  size_t member = 0;
  Address ends[2];  // the aggregator's last
};

std::vector<Edge> edges_of(const Scenario& scenario) {
  std::vector<Edge> edges;
  const JobPlan& job = scenario.jobs[0];
  const int racks = scenario.racks;
  const auto add = [&](int aggregator, const Address& from) {
    size_t member = 0;
    for (const Edge& edge : edges) member += edge.aggregator == aggregator ? 1 : 0;
    edges.push_back({aggregator, member, {from, Simulation::aggregator_address(aggregator)}});
  };
  for (int rank = 0; rank < job.ranks; ++rank)
    add(racks == 0 ? 0 : 1 + scenario.rack_of(job, rank), Simulation::worker_address(job.job, rank));
  for (int rack = 0; rack < racks; ++rack) add(0, Simulation::aggregator_address(1 + rack));
  return edges;
}

// Of so many seeds, each with another link and direction: that it is named, and nothing else.
int named_of(int seeds, double loss, size_t chunks, int racks = 0) {
  Scenario scenario = job_of(chunks, 1);
  scenario.racks = racks;
  const std::vector<Edge> edges = edges_of(scenario);
  int right = 0;
  for (uint64_t seed = first_seed(); seed < first_seed() + static_cast<uint64_t>(seeds); ++seed) {
    const Edge& edge = edges[seed % edges.size()];
    const bool up = seed / edges.size() % 2 == 0;
    const Loss at{.from = edge.ends[up ? 0 : 1], .to = edge.ends[up ? 1 : 0], .loss = loss};
    const auto named = named_at(scenario, at, seed, /*first_name=*/true);
    const bool found =
        named.size() == 1 && named.begin()->first == edge.aggregator && named.begin()->second.size() == 1 &&
        named.begin()->second[0].member == edge.member &&
        named.begin()->second[0].kind == (up ? faults::Kind::kLossUp : faults::Kind::kLossDown);
    right += found ? 1 : 0;
    if (found) continue;
    std::cout << "seed " << seed << ": member " << edge.member << " of aggregator " << edge.aggregator
              << (up ? ", up" : ", down") << "; named:";
    for (const auto& [aggregator, faults] : named) {
      for (const faults::Fault& fault : faults)
        std::cout << " member " << fault.member << " of " << aggregator << ", kind "
                  << static_cast<int>(fault.kind) << ", " << fault.value << " others " << fault.others << ";";
    }
    std::cout << "\n";
  }
  std::cout << "named: " << right << " of " << seeds << " with a loss of " << loss << " in "
            << (racks == 0 ? 1 : racks) << " racks\n";
  return right;
}

// docs/operations.md has these figures.
TEST(Faults, ALossyLinkIsNamedWithinAnOperation) {
  const int seeds = soak() ? 100 : 3;
  for (const int racks : {0, 2})
    EXPECT_GE(named_of(seeds, 0.005, kChunks, racks), seeds * 99 / 100)
        << "replay: NETSUM_SIM_SEED=" << first_seed();
}

TEST(Faults, ALinkThatLosesLittleIsNamedWithinTenOperations) {
  const int seeds = soak() ? 100 : 1;
  for (const int racks : {0, 2})
    EXPECT_GE(named_of(seeds, 0.001, 10 * kChunks, racks), seeds * 99 / 100)
        << "replay: NETSUM_SIM_SEED=" << first_seed();
}

// With a straggler: another rank in each operation.
void expect_no_name(double loss, bool straggler) {
  const int operations = soak() ? 1000 : 8;
  constexpr int kAtOnce = 50;  // whose data is in memory
  for (int begun = 0; begun < operations; begun += kAtOnce) {
    const uint64_t seed = first_seed() + static_cast<uint64_t>(begun);
    Scenario scenario = job_of(soak() ? kChunks / 4 : kChunks / 8, std::min(kAtOnce, operations));
    for (int i = 0; straggler && i < std::ssize(scenario.jobs[0].operations); ++i) {
      for (int rank = 0; rank < kRanks; ++rank)
        scenario.jobs[0].operations[static_cast<size_t>(i)].submit_at_us[static_cast<size_t>(rank)] =
            int64_t{i} * 100'000 + (rank == i % kRanks ? 50'000 : 0);
    }
    EXPECT_TRUE(named_at(scenario, {.loss = loss, .everywhere = loss}, seed, /*first_name=*/true).empty())
        << "replay: NETSUM_SIM_SEED=" << seed;
  }
  std::cout << operations << " operations, loss of " << loss << (straggler ? ", with a straggler\n" : "\n");
}

TEST(Faults, LossesEverywhereAndStragglersNameNoLink) {
  for (const double loss : {0.0, 0.01}) expect_no_name(loss, /*straggler=*/true);
}

TEST(Faults, EqualRanksNameNoLink) {
  for (const double loss : {0.0, 0.01}) expect_no_name(loss, /*straggler=*/false);
}

TEST(Faults, ASlowLinkIsNamedAndAHostThatPausesIsNot) {
  Scenario scenario = job_of(kChunks / 2, 2);
  for (LinkOptions* link : {&scenario.worker_up, &scenario.worker_down}) {
    link->bytes_per_us = 12.5;
    link->queue_bytes = 1'000'000;
  }
  FaultEvent pause;
  pause.kind = FaultEvent::Kind::kPause;
  pause.rank = 2;
  pause.at_event = 5000;
  pause.duration_us = 40'000;
  scenario.events = {pause};
  EXPECT_TRUE(named_in(scenario, {}, first_seed()).empty());
  FaultEvent slow;
  slow.kind = FaultEvent::Kind::kSlowLink;
  slow.rank = 5;
  slow.duration_us = 3'600'000'000;
  slow.bytes_per_us = 6.25;
  scenario.events.push_back(slow);
  const std::vector<faults::Fault> found = named_in(scenario, {}, first_seed());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].member, 5u);
  EXPECT_EQ(found[0].kind, faults::Kind::kSlow);
}

}  // namespace
}  // namespace netsum::emulate::faults_test
