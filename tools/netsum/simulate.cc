// netsum simulate: random runs of the production cores over a virtual network.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "emulate/campaign.h"
#include "src/base/thread.h"
#include "tools/netsum/exit_codes.h"
#include "tools/netsum/flags.h"
#include "tools/netsum/subcommand.h"

namespace netsum::tool {
namespace {

using emulate::Report;
using emulate::ScenarioLimits;
using emulate::Tally;

// What an assertion of the engine, which ends the process, happened in.
thread_local uint64_t running_seed = 0;
ScenarioLimits running_limits;

void on_abort(int) {
  std::fprintf(stderr, "an assertion failed; replay: netsum simulate %s --trace\n",
               flags_of(running_seed, running_limits).c_str());
}

struct Failure {
  uint64_t seed = 0;
  std::string what;
};

class SimulateCommand : public Subcommand {
 public:
  explicit SimulateCommand(CLI::App& root) {
    app_ = root.add_subcommand(
        "simulate", "Run workers and aggregators over a virtual network with faults, and check the results");
    app_->add_option("--seed", seed_, "Seed of the first run; each further run uses the next one")
        ->capture_default_str();
    app_->add_option("--runs", runs_, "Number of runs")
        ->capture_default_str()
        ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 40));
    app_->add_option("--jobs", jobs_, "Threads; 0: one per CPU")
        ->capture_default_str()
        ->check(CLI::Range(0, 1024));
    app_->add_option("--faults", faults_,
                     "all, none, or a list of " + emulate::fault_names(emulate::kAllFaults))
        ->capture_default_str();
    app_->add_flag("--lying", limits_.lying,
                   "Only runs in which all jobs verify their sums, and aggregators lie");
    app_->add_flag("--trace", trace_, "Print a trace of every packet to standard error (one run only)");
    app_->add_flag("--json", json_, "Print the counts that concern lies as JSON, in the last line but one");
    app_->add_flag("--twice", twice_, "Run every seed twice and compare the packets");
    const std::pair<const char*, int*> numbers[] = {{"jobs", &limits_.jobs},
                                                    {"ranks", &limits_.ranks},
                                                    {"aggregators", &limits_.aggregators},
                                                    {"operations", &limits_.operations},
                                                    {"events", &limits_.events},
                                                    {"elements", &limits_.elements}};
    for (const auto& [name, number] : numbers) {
      app_->add_option(std::string("--max-") + name, *number, "Maximum number in the scenario")
          ->group("To replay a failure")
          ->check(CLI::Range(name[0] == 'o' || name[0] == 'e' ? 0 : 1, 1'000'000'000));
    }
    app_->footer(
        "Examples:\n  netsum simulate --runs 20000\n  netsum simulate --seed 1234 --trace\n"
        "  netsum simulate --runs 1000000 --faults loss,late,partition\n"
        "  netsum simulate --runs 1000000 --lying\n\n"
        "Exit status: 0 nothing wrong; 1 a run was wrong, and the last line replays it; 2 bad flags.");
  }

  bool chosen() const override { return app_->parsed(); }

  int run() override {
    const Result<emulate::Faults> faults = emulate::parse_faults(faults_);
    if (!faults.ok()) throw UsageError("--faults: " + faults.status().message());
    limits_.faults = *faults;
    if (trace_ && runs_ != 1) throw UsageError("--trace is for one run: leave --runs out");
    if (seed_ + (runs_ - 1) < seed_) throw UsageError("--seed and --runs together pass 2^64");
    running_limits = limits_;
    std::signal(SIGABRT, on_abort);
    if (trace_) return trace();
    return campaign();
  }

 private:
  int trace() {
    running_seed = seed_;
    std::fprintf(stderr, "%s\n", describe(random_scenario(seed_, limits_)).c_str());
    const Report report = trace_seed(seed_, limits_);
    Tally tally;
    tally.add(report);
    std::printf("%strace hash  %016llx\n", describe(tally).c_str(),
                static_cast<unsigned long long>(report.trace_hash));
    for (const std::string& violation : report.violations) std::printf("WRONG: %s\n", violation.c_str());
    return report.violations.empty() ? kExitOk : kExitWrong;
  }

  int campaign() {
    unsigned threads = jobs_ > 0 ? static_cast<unsigned>(jobs_) : std::thread::hardware_concurrency();
    threads = static_cast<unsigned>(std::min<uint64_t>(std::max(threads, 1u), runs_));
    std::printf("seeds %llu to %llu, faults: %s, %u thread(s)\n", static_cast<unsigned long long>(seed_),
                static_cast<unsigned long long>(seed_ + (runs_ - 1)),
                emulate::fault_names(limits_.faults).c_str(), threads);
    const auto started = std::chrono::steady_clock::now();
    std::vector<std::thread> pool;
    // This thread, and as many others as are wanted and can be had.
    while (pool.size() + 1 < threads) {
      std::thread another;
      if (!start_thread(
               "to simulate", [this] { work(); }, &another)
               .ok())
        break;
      pool.push_back(std::move(another));
    }
    work();
    for (std::thread& thread : pool) thread.join();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
    std::printf("%llu runs in %.1f s\n%s", static_cast<unsigned long long>(tally_.runs), took.count(),
                describe(tally_).c_str());
    std::printf("traces      hash %016llx\n", static_cast<unsigned long long>(tally_.trace_hash));
    if (json_) std::printf("%s\n", to_json(tally_).c_str());
    if (!failure_) {
      std::printf("nothing wrong\n");
      return kExitOk;
    }
    report_failure();
    return kExitWrong;
  }

  // One thread's share: a piece of seeds after the other, until all are done or one has failed.
  void work() {
    constexpr uint64_t kPiece = 100;
    for (;;) {
      const uint64_t begin = next_.fetch_add(kPiece);
      if (begin >= runs_ || stop_) return;
      Tally tally;
      for (uint64_t i = begin; i < std::min(begin + kPiece, runs_) && !stop_; ++i) {
        running_seed = seed_ + i;
        const Report report = run_seed(seed_ + i, limits_, twice_);
        tally.add(report);
        if (report.violations.empty()) continue;
        const std::lock_guard lock(mutex_);
        if (!failure_ || seed_ + i < failure_->seed) failure_ = {seed_ + i, report.violations.front()};
        stop_ = true;
      }
      const std::lock_guard lock(mutex_);
      tally_.add(tally);
      print_progress();
    }
  }

  void print_progress() {
    const uint64_t tenth = tally_.runs * 10 / runs_;
    if (tenth == printed_tenth_ || tenth == 10) return;
    printed_tenth_ = tenth;
    std::printf("%llu runs done, nothing wrong\n", static_cast<unsigned long long>(tally_.runs));
    std::fflush(stdout);
  }

  void report_failure() {
    std::printf("WRONG, with seed %llu after %llu runs: %s\n",
                static_cast<unsigned long long>(failure_->seed), static_cast<unsigned long long>(tally_.runs),
                failure_->what.c_str());
    std::fflush(stdout);
    running_seed = failure_->seed;
    const ScenarioLimits small = shrink(failure_->seed, limits_);
    running_limits = small;
    const Report report = run_seed(failure_->seed, small);
    // A repetition that differs is no property of a scenario, so that it cannot be made smaller.
    const bool smaller = !report.violations.empty();
    std::printf("made small: %s\n%s\nreplay: netsum simulate %s --trace\n",
                smaller ? report.violations.front().c_str() : "not possible",
                describe(random_scenario(failure_->seed, smaller ? small : limits_)).c_str(),
                flags_of(failure_->seed, smaller ? small : limits_).c_str());
  }

  CLI::App* app_;
  uint64_t seed_ = 1;
  uint64_t runs_ = 1;
  int jobs_ = 0;
  std::string faults_ = "all";
  bool trace_ = false;
  bool twice_ = false;
  bool json_ = false;
  ScenarioLimits limits_;

  std::atomic<uint64_t> next_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  Tally tally_;
  std::optional<Failure> failure_;
  uint64_t printed_tenth_ = 0;
};

}  // namespace

std::unique_ptr<Subcommand> make_simulate_command(CLI::App& root) {
  return std::make_unique<SimulateCommand>(root);
}

}  // namespace netsum::tool
