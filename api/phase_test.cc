// Jobs whose steps wait for their phase (CommunicatorOptions::phase_period), through the public API.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "session/placed_job_testing.h"

namespace netsum::phase_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kPeriod(200);
constexpr milliseconds kOffset(70);

// Since the first phase of all.
microseconds since_phases() {
  const auto now = std::chrono::system_clock::now().time_since_epoch() - kOffset;
  return std::chrono::duration_cast<microseconds>(now);
}

class PhaseTest : public ::testing::TestWithParam<Place> {};
INSTANTIATE_TEST_SUITE_P(Places, PhaseTest,
                         testing::Values(Place::kShards, Place::kAggregators, Place::kTwoHosts,
                                         Place::kFailover),
                         place_name);

TEST_P(PhaseTest, AStepThatIsEarlyWaitsForItsPhase) {
  PlacedJob job(GetParam());
  job.edit([](CommunicatorOptions& options) {
    options.phase_period = kPeriod;
    options.phase_offset = kOffset;
    options.engine_threads = 1 + options.rank % 2;
  });
  std::atomic<int> early{0};
  job.run([&](Communicator& communicator) {
    for (int step = 0; step < 5; ++step) {
      std::this_thread::sleep_for(kPeriod * 3 / 5 + milliseconds(communicator.rank()));
      const microseconds before = since_phases();
      sum_and_check(communicator, 20'000);
      sum_and_check(communicator, 10);
      // On a busy machine, a step may be late. Where aggregators give turns, only the first one waits for its phase.
      const microseconds phase = before % kPeriod;
      const bool waits =
          GetParam() == Place::kShards ? phase > kPeriod * 11 / 20 && phase < kPeriod * 19 / 20 : step == 0;
      if (!waits) continue;
      ++early;
      EXPECT_GT(since_phases() / kPeriod, before / kPeriod) << "step " << step;
    }
  });
  EXPECT_GT(early, 0);
}

TEST_P(PhaseTest, ADeadlineComesBeforeAPhase) {
  PlacedJob job(GetParam());
  // It was just now.
  constexpr seconds kLong(60);
  const microseconds offset = (since_phases() + kOffset - seconds(1)) % microseconds(kLong);
  job.edit([&](CommunicatorOptions& options) {
    options.phase_period = kLong;
    options.phase_offset = offset;
  });
  job.run([](Communicator& communicator) {
    std::vector<float> data(1000, 1);
    const Status status =
        communicator.all_reduce(TensorView{data.data(), data.data(), data.size()}, {.timeout = seconds(30)})
            .wait();
    EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(data[999], static_cast<float>(PlacedJob::kRanks));
  });
}

TEST(Phase, JobsAtAnAggregatorAskForTheirTurn) {
  constexpr int kJobs = 2, kSteps = 6;
  constexpr milliseconds kShort(40);
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  std::vector<std::thread> jobs;
  for (int job = 0; job < kJobs; ++job) {
    jobs.emplace_back([&, job] {
      CommunicatorOptions options;
      options.job = "job" + std::to_string(job);
      options.aggregators = {aggregator->control_address()};
      options.timeout = options.connect_timeout = seconds(60);
      options.shares = Shares::kOff;
      options.shared_memory = false;
      options.phase_period = kShort;
      run_ranks(2, options, [&](int, std::unique_ptr<Communicator>& communicator) {
        for (int step = 0; step < kSteps; ++step) {
          std::this_thread::sleep_for(kShort * 3 / 4);
          sum_and_check(*communicator, 100'000);
        }
      });
    });
  }
  for (std::thread& thread : jobs) thread.join();
  uint64_t hellos = 0;
  for (const AggregatorCounter& counter : aggregator->status().counters)
    if (counter.name == "hellos") hellos = counter.value;
  EXPECT_GE(hellos, static_cast<uint64_t>(kJobs * 2 * kSteps));
}

TEST(Phase, RanksThatDifferAreRefusedByName) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  std::vector<Status> ends(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      CommunicatorOptions options;
      options.rank = rank;
      options.world_size = 2;
      options.job = "differ";
      options.aggregators = {aggregator->control_address()};
      options.connect_timeout = seconds(5);
      options.phase_period = kPeriod;
      options.phase_offset = rank * kOffset;
      ends[static_cast<size_t>(rank)] = Communicator::connect(options).status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(ends[0].message() + ends[1].message(), testing::HasSubstr("phase_offset (us)"));
}

TEST(Phase, WrongValues) {
  CommunicatorOptions options;
  options.world_size = 1;
  options.aggregators = {"127.0.0.1:1"};
  const auto connect = [&](microseconds period, microseconds offset) {
    options.phase_period = period;
    options.phase_offset = offset;
    return Communicator::connect(options).status().message();
  };
  for (const auto& [period, offset] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 5}, {999, 0}, {60'000'001, 0}, {-5000, 0}, {5000, 5000}, {5000, -1}}) {
    EXPECT_THAT(connect(microseconds(period), microseconds(offset)),
                testing::HasSubstr("must be a period from 1ms to 60s"))
        << period << " " << offset;
  }
}

}  // namespace
}  // namespace netsum::phase_test
