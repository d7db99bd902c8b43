// Two jobs that share the link of an aggregator, each of which uses it for 40 % of its period: alone, together, and in turns. What
// ranks compute between sums varies.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "emulate/simulation.h"
#include "src/base/rng.h"
#include "src/base/soak.h"
#include "src/bursts/bursts.h"
#include "tests/sim/known_sum.h"

namespace netsum::emulate::turns_test {
namespace {

constexpr int kRanks = 2;       // of a job
constexpr double kLink = 12.5;  // bytes per us: 100 Mbit/s
constexpr size_t kElements = (1 << 20) / sizeof(int32_t);
constexpr uint32_t kPayload = 1440;
constexpr double kBusy = 0.4;

struct Training {
  int jobs = 2;
  bool turns = false;
  int aggregators = 1;     // stripes
  double varies = 0.1;     // a step, by so much of its length at most
  double second = 1;       // the second job computes for so much longer
  double first = 1;        // the first job's sums are so large, in parts of the others'
  int64_t scatter_us = 0;  // a rank computes for up to so much longer
  double loss = 0;
  uint64_t seed = 1;
  uint32_t queue_bytes = 40'000;
  int steps = soak() ? 200 : 40;
};

constexpr size_t kFirst = 2;  // steps that do not count: jobs may wait for their phase

// How long the links need for a sum, and what a job computes beside it.
double sum_us(int aggregators) {
  return kRanks * kElements * sizeof(int32_t) / aggregators / kLink * (kPayload + NETSUM_HEADER_BYTES) /
         kPayload;
}

// A rank: it computes and sums, in turns.
class Trainer final : public Program {
 public:
  struct Job {
    Simulation* simulation = nullptr;
    const Training* training = nullptr;
    size_t number = 0;
    std::vector<int64_t> ended_us;  // by step, of the last rank
    bool wrong = false;
  };

  Trainer(Job* job, int rank)
      : job_(job),
        rank_(rank),
        elements_(static_cast<size_t>(static_cast<double>(kElements) *
                                      (job->number == 0 ? job->training->first : 1))),
        sum_(elements_, rank),
        rng_(2 * job->training->seed + job->number),
        own_rng_(100 * job->training->seed + 10 * job->number + static_cast<uint64_t>(rank)) {}

  std::optional<OperationSpec> next() override {
    if (running_ || done() || job_->simulation->now_us() < ready_us_) return std::nullopt;
    running_ = true;
    ++begun_;
    return sum_.spec(elements_);
  }
  void ended(uint64_t number, const Status& status) override {
    running_ = false;
    job_->wrong |= !status.ok() || !sum_.is_right(kRanks);
    const int64_t now_us = job_->simulation->now_us();
    job_->ended_us[number] = std::max(job_->ended_us[number], now_us);
    const Training& training = *job_->training;
    const double step_us = sum_us(training.aggregators) / kBusy;
    double compute_us = step_us - sum_us(training.aggregators) * static_cast<double>(elements_) /
                                      static_cast<double>(kElements);
    compute_us += step_us * training.varies * (static_cast<double>(rng_.below(2001)) / 1000 - 1);
    if (job_->number == 1) compute_us *= training.second;
    compute_us += static_cast<double>(own_rng_.below(static_cast<uint64_t>(training.scatter_us) + 1));
    ready_us_ = now_us + static_cast<int64_t>(compute_us);
    job_->simulation->at(ready_us_, [job = job_, rank = rank_] { job->simulation->wake(job->number, rank); });
  }
  bool done() const override { return begun_ == job_->ended_us.size() && !running_; }

 private:
  Job* const job_;
  const int rank_;
  const size_t elements_;
  KnownSum sum_;
  size_t begun_ = 0;
  bool running_ = false;
  int64_t ready_us_ = 0;
  Rng rng_, own_rng_;
};

// What comes to an aggregator's link behind the links of the ranks, whose queues have room for all of it.
class Arrivals {
 public:
  void add(int64_t now_us, const Address& from, size_t bytes) {
    double& free_us = free_us_[from.to_string()];
    free_us = std::max(free_us, static_cast<double>(now_us)) + static_cast<double>(bytes) / kLink;
    log_.push_back({static_cast<int64_t>(free_us * 1e3), bytes});
  }
  // What a link of the ranks' rate must queue.
  double backlog() {
    std::sort(log_.begin(), log_.end(), [](const auto& a, const auto& b) { return a.at_ns < b.at_ns; });
    return bursts::backlog(log_, static_cast<uint64_t>(kLink * 1e6));
  }

 private:
  std::map<std::string, double> free_us_;  // when a rank's link is free again
  std::vector<bursts::Arrival> log_;
};

// By job, the mean length of the steps. `arrivals`: those at the aggregator while steps count.
std::vector<double> run(const Training& training, Arrivals* arrivals = nullptr) {
  Scenario scenario = quiet_scenario(kRanks, DataType::kInt32, 1, 0);
  scenario.seed = training.seed;
  scenario.payload_bytes = kPayload;
  scenario.aggregators = training.aggregators;
  scenario.jobs[0].data_slots = 128;
  scenario.jobs[0].scale_slots = 16;
  scenario.jobs.resize(static_cast<size_t>(training.jobs), scenario.jobs[0]);
  for (size_t j = 0; j < scenario.jobs.size(); ++j) {
    JobPlan& plan = scenario.jobs[j];
    plan.job = static_cast<uint16_t>(j);
    plan.key.k0 += j;
    if (!training.turns) continue;
    plan.phase_period_us = static_cast<int64_t>(sum_us(training.aggregators) / kBusy);
    plan.phase_offset_us = static_cast<int64_t>(j) * plan.phase_period_us / training.jobs;
  }
  for (LinkOptions* link :
       {&scenario.worker_up, &scenario.worker_down, &scenario.aggregator_up, &scenario.aggregator_down}) {
    *link = {.delay_us = 10, .jitter_us = 5, .loss = training.loss, .bytes_per_us = kLink};
    link->queue_bytes = training.queue_bytes;
  }
  Simulation simulation(scenario);
  std::vector<Trainer::Job> jobs(scenario.jobs.size());
  std::vector<std::unique_ptr<Trainer>> trainers;
  for (size_t j = 0; j < jobs.size(); ++j) {
    jobs[j] = {.simulation = &simulation, .training = &training, .number = j};
    jobs[j].ended_us.resize(static_cast<size_t>(training.steps));
    for (int rank = 0; rank < kRanks; ++rank) {
      trainers.push_back(std::make_unique<Trainer>(&jobs[j], rank));
      simulation.set_program(j, rank, trainers.back().get());
    }
  }
  simulation.set_filter([&](const Address& from, const OutPacket& packet) {
    const bool counts =
        std::all_of(jobs.begin(), jobs.end(), [](const auto& job) { return job.ended_us[kFirst] > 0; });
    if (arrivals && counts && packet.to == Simulation::aggregator_address(0))
      arrivals->add(simulation.now_us(), from, packet.size);
    return true;
  });
  EXPECT_EQ(simulation.run().first_problem(), "");
  std::vector<double> means;
  for (const Trainer::Job& job : jobs) {
    EXPECT_FALSE(job.wrong);
    means.push_back(static_cast<double>(job.ended_us.back() - job.ended_us[kFirst]) /
                    static_cast<double>(job.ended_us.size() - 1 - kFirst));
  }
  return means;
}

// By how much the steps are longer than those of a job that is alone, in the mean of all jobs.
double longer(const Training& training) {
  Training alone = training;
  alone.jobs = 1;
  alone.turns = false;
  const std::vector<double> times = run(training);
  return std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size()) / run(alone)[0];
}

uint64_t seeds() {
  return soak() ? 4 : 1;
}

TEST(Turns, EachJobRunsAsIfAlone) {
  double together = 0;
  for (uint64_t seed = 1; seed <= seeds(); ++seed) {
    together += longer({.seed = seed}) / static_cast<double>(seeds());
    EXPECT_LT(longer({.turns = true, .seed = seed}), 1.03) << seed;
  }
  EXPECT_GT(together, 1.06);
}

TEST(Turns, WithSeveralStripesLossAndRanksThatAreLate) {
  for (uint64_t seed = 1; seed <= (soak() ? 4 : 0); ++seed) {
    EXPECT_LT(longer({.turns = true, .aggregators = 2, .seed = seed}), 1.03) << seed;
    EXPECT_LT(longer({.turns = true, .scatter_us = 20'000, .seed = seed}), 1.03) << seed;
    EXPECT_LT(longer({.turns = true, .loss = 0.001, .seed = seed}), 1.05) << seed;
  }
}

TEST(Turns, BringTheBacklogOfTwoJobsToThatOfOne) {
  // A queue with room for the windows of all.
  Training training{.varies = 0, .queue_bytes = 2'000'000, .steps = 12};
  Arrivals alone, together, in_turns;
  training.jobs = 1;
  run(training, &alone);
  training.jobs = 2;
  run(training, &together);
  training.turns = true;
  run(training, &in_turns);
  EXPECT_GT(together.backlog(), 1.5 * alone.backlog());
  EXPECT_LT(in_turns.backlog(), 1.05 * alone.backlog());
}

// Nobody can keep them apart.
TEST(Turns, OfJobsWithUnequalPeriodsAndOfThree) {
  for (uint64_t seed = 1; seed <= (soak() ? 4 : 0); ++seed) {
    EXPECT_LT(longer({.turns = true, .second = 1.4, .seed = seed}),
              1.02 * longer({.second = 1.4, .seed = seed}))
        << seed;
    EXPECT_LT(longer({.jobs = 3, .turns = true, .seed = seed}), 1.02 * longer({.jobs = 3, .seed = seed}))
        << seed;
  }
}

// Five jobs ask for nearly twice what the link has. The one that works most per time of communication waits for no more than the
// one that sends.
TEST(Turns, TheMoreIntenseJobComesFirst) {
  for (uint64_t seed = 1; seed <= seeds(); ++seed) {
    Training training{.jobs = 5, .turns = true, .first = 0.2, .seed = seed};
    const std::vector<double> times = run(training);
    training.jobs = 1;
    training.turns = false;
    const double alone = run(training)[0];
    EXPECT_LT(times[0], 1.4 * alone) << seed;
    EXPECT_GT(times[1], 1.6 * alone) << seed;
  }
}

}  // namespace
}  // namespace netsum::emulate::turns_test
