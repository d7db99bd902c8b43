// Thousands of random runs with all kinds of trouble. `netsum simulate` does the same with flags, on all
// CPUs, and makes a failing run small; NETSUM_SIM_RUNS and NETSUM_SIM_SEED set how many runs and the first
// seed here.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "emulate/campaign.h"
#include "src/base/soak.h"

namespace netsum::emulate::random_runs_test {
namespace {

uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

const uint64_t first_seed = number_from("NETSUM_SIM_SEED", 1);
const uint64_t runs = number_from("NETSUM_SIM_RUNS", soak() ? 100'000 : NETSUM_SIM_DEFAULT_RUNS);
uint64_t running_seed = 0;

// An assertion of the engine ends the process: say which run it was.
void on_abort(int) {
  std::fprintf(stderr, "rerun: netsum simulate %s\n", flags_of(running_seed, {}).c_str());
}

class RandomRuns : public testing::Test {
 protected:
  void SetUp() override { std::signal(SIGABRT, on_abort); }
  void TearDown() override { std::signal(SIGABRT, SIG_DFL); }
};

std::string rerun_line(uint64_t seed, const ScenarioLimits& limits) {
  return "rerun: netsum simulate " + flags_of(seed, limits) + " (" + describe(random_scenario(seed, limits)) +
         ")";
}

TEST_F(RandomRuns, NothingIsWrongLostMixedOrHung) {
  std::printf("seeds %llu to %llu\n", static_cast<unsigned long long>(first_seed),
              static_cast<unsigned long long>(first_seed + runs - 1));
  Tally tally;
  for (uint64_t seed = first_seed; seed < first_seed + runs; ++seed) {
    running_seed = seed;
    const Report report = run_seed(seed, {}, /*twice=*/seed % 50 == 0);
    ASSERT_TRUE(report.violations.empty()) << report.violations.front() << "\n"
                                           << rerun_line(seed, {}) << "\n"
                                           << seed - first_seed + 1 << " runs done";
    tally.add(report);
  }
  std::printf("%s", describe(tally).c_str());
  if (runs < 1000) return;
  // The runs met with everything that they are there for.
  EXPECT_GT(tally.network.cut_off, runs / 10);
  EXPECT_GT(tally.network.tail_dropped, 0u);
  for (const uint64_t count :
       {tally.events.partitions, tally.events.slow_links, tally.events.pauses, tally.events.worker_crashes,
        tally.events.aggregator_crashes, tally.events.aggregator_restarts, tally.events.jobs_on_used_hosts,
        tally.events.switches, tally.failed[ErrorCode::kTimeout], tally.failed[ErrorCode::kPeerLost],
        tally.failed[ErrorCode::kAggregatorLost], tally.failed[ErrorCode::kWrongSum], tally.lies_injected(),
        tally.lies.wrong_refused, tally.lies.false_scales, tally.scales_predicted - tally.scales_mispredicted,
        tally.scales_mispredicted}) {
    EXPECT_GT(count, runs / 100);
  }
}

// Without crashes and deadlines there is no excuse: every operation of every rank succeeds.
TEST_F(RandomRuns, EverySumIsRightUnlessSomebodyIsGone) {
  ScenarioLimits limits;
  limits.faults = kAllFaults & ~kCrash & ~kDeadline & ~kLies;
  for (uint64_t seed = first_seed; seed < first_seed + runs / 20; ++seed) {
    running_seed = seed;
    ASSERT_EQ(run_seed(seed, limits).first_problem(), "") << rerun_line(seed, limits);
  }
}

TEST_F(RandomRuns, ASeedReplaysToTheLastBit) {
  uint64_t delivered =
      0;  // in all of them: in a single one all ranks may be gone before they have sent anything
  for (uint64_t seed = first_seed; seed < first_seed + 20; ++seed) {
    const Report once = run_seed(seed, {});
    const Report again = run_seed(seed, {});
    EXPECT_EQ(once.trace_hash, again.trace_hash) << rerun_line(seed, {});
    EXPECT_NE(once.trace_hash, run_seed(seed + 1000, {}).trace_hash);
    delivered += once.network.delivered;
  }
  EXPECT_GT(delivered, 0u);
}

}  // namespace
}  // namespace netsum::emulate::random_runs_test
