// Thousands of random runs. NETSUM_SIM_RUNS sets how many, NETSUM_SIM_SEED the first seed (and with --seed=S
// just that one is run, with NETSUM_SIM_TRACE=1 printing its packets).
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "emulate/simulation.h"

namespace netsum::emulate {
namespace {

uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

uint64_t only_seed = 0;
bool has_only_seed = false;

uint64_t running_seed = 0;

// An assertion of the engine ends the process: say which run it was.
void on_abort(int) {
  std::fprintf(stderr, "rerun: sim_test --seed=%llu\n", static_cast<unsigned long long>(running_seed));
}

Report run(uint64_t seed) {
  running_seed = seed;
  Simulation simulation(random_scenario(seed));
  if (std::getenv("NETSUM_SIM_TRACE") != nullptr) simulation.trace_packets();
  return simulation.run();
}

std::string rerun_line(uint64_t seed) {
  return "rerun: sim_test --seed=" + std::to_string(seed) + " (" + describe(random_scenario(seed)) + ")";
}

TEST(RandomRuns, EverySumIsRightAndEveryOperationEnds) {
  const uint64_t first = has_only_seed ? only_seed : number_from("NETSUM_SIM_SEED", 1);
  const uint64_t runs = has_only_seed ? 1 : number_from("NETSUM_SIM_RUNS", NETSUM_SIM_DEFAULT_RUNS);
  std::printf("seeds %llu to %llu\n", static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(first + runs - 1));
  NetworkCounters sum;
  for (uint64_t seed = first; seed < first + runs; ++seed) {
    const Report report = run(seed);
    ASSERT_EQ(report.first_problem(), "") << rerun_line(seed) << "\n" << seed - first + 1 << " runs done";
    sum.sent += report.network.sent;
    sum.lost += report.network.lost;
    sum.late += report.network.late;
    sum.damaged += report.network.damaged;
    sum.duplicated += report.network.duplicated;
    sum.tail_dropped += report.network.tail_dropped;
  }
  std::printf(
      "packets: %llu sent, %llu lost, %llu late, %llu damaged, %llu duplicated, %llu dropped by queues\n",
      static_cast<unsigned long long>(sum.sent), static_cast<unsigned long long>(sum.lost),
      static_cast<unsigned long long>(sum.late), static_cast<unsigned long long>(sum.damaged),
      static_cast<unsigned long long>(sum.duplicated), static_cast<unsigned long long>(sum.tail_dropped));
}

TEST(RandomRuns, WhoeverDiesTheOthersEndInTimeAndNothingIsWrong) {
  const uint64_t first = has_only_seed ? only_seed : number_from("NETSUM_SIM_SEED", 1);
  const uint64_t runs = has_only_seed ? 1 : number_from("NETSUM_SIM_RUNS", NETSUM_SIM_DEFAULT_RUNS) / 10;
  uint64_t failed = 0;
  for (uint64_t seed = first; seed < first + runs; ++seed) {
    running_seed = seed;
    Scenario scenario = random_scenario(seed);
    for (JobPlan& job : scenario.jobs) {
      for (OperationPlan& operation : job.operations) operation.timeout_us = 2'000'000;
    }
    Rng rng(seed);
    Simulation simulation(scenario);
    const auto at_us = static_cast<int64_t>(rng.below(1ull << (6 + rng.below(14))));
    if (rng.chance(0.6)) {
      const size_t job = rng.below(scenario.jobs.size());
      simulation.stop_worker(
          job, static_cast<int>(rng.below(static_cast<uint64_t>(scenario.jobs[job].ranks))), at_us);
    } else {
      simulation.stop_aggregator(static_cast<int>(rng.below(static_cast<uint64_t>(scenario.aggregators))),
                                 at_us);
    }
    const Report report = simulation.run();
    ASSERT_EQ(report.violations.empty() ? "" : report.violations.front(), "") << rerun_line(seed);
    if (!report.all_ok()) ++failed;
  }
  // Some machines die after their work is done.
  EXPECT_TRUE(runs < 50 || failed > runs / 4) << failed;
}

TEST(RandomRuns, ASeedReplaysToTheLastBit) {
  const uint64_t first = has_only_seed ? only_seed : number_from("NETSUM_SIM_SEED", 1);
  for (uint64_t seed = first; seed < first + 20; ++seed) {
    const Report once = run(seed);
    const Report again = run(seed);
    EXPECT_EQ(once.trace_hash, again.trace_hash) << rerun_line(seed);
    EXPECT_GT(once.network.delivered, 0u);
    EXPECT_NE(once.trace_hash, run(seed + 1000).trace_hash);
  }
}

}  // namespace

void install_abort_handler() {
  std::signal(SIGABRT, on_abort);
}

void take_arguments(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("--seed=", 0) != 0) continue;
    only_seed = std::strtoull(argument.c_str() + 7, nullptr, 10);
    has_only_seed = true;
  }
}

}  // namespace netsum::emulate

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  netsum::emulate::take_arguments(argc, argv);
  netsum::emulate::install_abort_handler();
  return RUN_ALL_TESTS();
}
