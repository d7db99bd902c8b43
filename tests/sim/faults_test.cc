// Which link is at fault: what an aggregator counts of its members in simulated runs, and what LinkWatch makes of it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "emulate/simulation.h"
#include "src/base/rng.h"
#include "src/base/soak.h"
#include "src/faults/link_watch.h"

namespace netsum::emulate {
namespace {

constexpr int kRanks = 8;
// 16 MiB at 1 KiB of float32 in a packet. What the packets contain does not matter, so they are short.
constexpr size_t kChunks = 16'384;

struct Loss {
  int rank = 0;
  bool up = true;
  double loss = 0;        // of the packets between this rank and the aggregator, in this direction
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

// Looks at the job every so many packets, and returns what is named in the end.
std::vector<faults::Fault> named_in(const Scenario& scenario, const Loss& loss, uint64_t seed) {
  constexpr uint64_t kPacketsPerLook = 20'000;
  Simulation simulation(scenario);
  Rng rng(seed);
  faults::LinkWatch watch;
  uint64_t packets = 0;
  const JobPlan& job = scenario.jobs[0];
  simulation.set_filter([&](const Address& from, const OutPacket& packet) {
    if (++packets % kPacketsPerLook == 0) watch.observe(simulation.aggregator(0).members(job.job, job.epoch));
    const Address one = Simulation::worker_address(job.job, loss.rank);
    const bool bad = loss.up ? from == one : packet.to == one;
    return !rng.chance(bad ? loss.loss : loss.everywhere);
  });
  const Report report = simulation.run();
  EXPECT_EQ(report.first_problem(), "") << "replay: NETSUM_SIM_SEED=" << seed;
  EXPECT_GT(packets, 2 * kPacketsPerLook);
  return watch.faults();
}

uint64_t first_seed() {
  const char* given = std::getenv("NETSUM_SIM_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 41;
}

int named_of(int seeds, double loss, size_t chunks) {
  int right = 0;
  for (uint64_t seed = first_seed(); seed < first_seed() + static_cast<uint64_t>(seeds); ++seed) {
    const Loss at{.rank = static_cast<int>(seed % kRanks), .up = seed / kRanks % 2 == 0, .loss = loss};
    const std::vector<faults::Fault> found = named_in(job_of(chunks, 1), at, seed);
    right += found.size() == 1 && found[0].member == static_cast<size_t>(at.rank) &&
                     found[0].kind == (at.up ? faults::Kind::kLossUp : faults::Kind::kLossDown)
                 ? 1
                 : 0;
  }
  return right;
}

// docs/operations.md has these figures.
TEST(Faults, ALossyLinkIsNamedWithinAnOperation) {
  const int seeds = soak() ? 100 : 4;
  EXPECT_GE(named_of(seeds, 0.005, kChunks), seeds * 99 / 100) << "replay: NETSUM_SIM_SEED=" << first_seed();
  if (!soak()) return;
  EXPECT_GE(named_of(seeds, 0.001, 10 * kChunks), seeds * 99 / 100)
      << "replay: NETSUM_SIM_SEED=" << first_seed();
}

// With a straggler, another rank in each operation.
TEST(Faults, LossesEverywhereAndStragglersNameNoLink) {
  const int operations = soak() ? 1000 : 8;
  for (const double loss : {0.0, 0.01}) {
    Scenario scenario = job_of(soak() ? kChunks / 4 : kChunks / 8, operations);
    for (int i = 0; i < operations; ++i) {
      for (int rank = 0; rank < kRanks; ++rank)
        scenario.jobs[0].operations[static_cast<size_t>(i)].submit_at_us[static_cast<size_t>(rank)] =
            int64_t{i} * 100'000 + (rank == i % kRanks ? 50'000 : 0);
    }
    EXPECT_TRUE(named_in(scenario, {.loss = loss, .everywhere = loss}, first_seed()).empty())
        << loss << "; replay: NETSUM_SIM_SEED=" << first_seed();
  }
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
}  // namespace netsum::emulate
