// Whole jobs whose engines have several threads.
#include <gmock/gmock.h>

#include <array>
#include <barrier>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "session/placed_job_testing.h"
#include "src/base/rng.h"

namespace netsum::engine_threads_of_job_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

struct Job {
  Place place;
  std::array<int, PlacedJob::kRanks> threads;  // by rank
};

class ThreadsOfJobTest : public ::testing::TestWithParam<Job> {};

std::string job_name(const testing::TestParamInfo<Job>& job) {
  std::string name = place_name({job.param.place, 0});
  for (const int threads : job.param.threads) name += "_" + std::to_string(threads);
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    EngineThreads, ThreadsOfJobTest,
    testing::Values(Job{Place::kShards, {2, 2, 2, 2}}, Job{Place::kShards, {1, 4, 3, 0}},
                    Job{Place::kLossyShards, {2, 1, 4, 3}}, Job{Place::kAggregator, {2, 2, 1, 2}},
                    Job{Place::kAggregators, {4, 2, 3, 1}}, Job{Place::kHierarchy, {2, 2, 2, 2}},
                    Job{Place::kOneHost, {2, 2, 2, 2}}, Job{Place::kTwoHosts, {2, 2, 1, 2}},
                    Job{Place::kFailover, {2, 1, 2, 2}}),
    job_name);

void sum_in_place(Communicator& communicator, std::vector<int32_t>* data, std::vector<Work>* works) {
  works->push_back(communicator.all_reduce(TensorView{data->data(), data->data(), data->size()},
                                           {.type = DataType::kInt32, .timeout = seconds(60)}));
}

// Many in flight, small and large, sums and byte transfers.
TEST_P(ThreadsOfJobTest, AllOperationsHaveTheirResults) {
  PlacedJob job(GetParam().place);
  job.edit([&](CommunicatorOptions& options) {
    options.engine_threads = GetParam().threads[static_cast<size_t>(options.rank)];
  });
  job.run([&](Communicator& communicator) {
    Rng rng(7);  // the same on all ranks
    const int rank = communicator.rank(), world = communicator.world_size();
    for (int round = 0; round < 6; ++round) {
      std::vector<std::vector<int32_t>> sums(12);
      std::vector<std::vector<uint8_t>> moved(4);
      std::vector<Work> works;
      for (size_t i = 0; i < sums.size(); ++i) {
        const size_t count = rng.below(4) == 0 ? 1 + rng.below(200'000) : rng.below(2'000);
        sums[i].assign(count, static_cast<int32_t>(i) + rank);
        sum_in_place(communicator, &sums[i], &works);
        if (i % 3 != 0) continue;
        const int root = static_cast<int>(rng.below(static_cast<uint64_t>(world)));
        auto& bytes = moved[i / 3];
        bytes.assign(1 + rng.below(50'000), static_cast<uint8_t>(rank == root ? 40 + i : 1));
        const BufferView view{bytes.data(), bytes.data(), bytes.size()};
        works.push_back(communicator.broadcast(std::span(&view, 1), root, {.timeout = seconds(60)}));
      }
      for (const Work& work : works) {
        const Status status = work.wait();
        ASSERT_TRUE(status.ok()) << status.to_string();
      }
      for (size_t i = 0; i < sums.size(); ++i) {
        const int32_t expected = world * static_cast<int32_t>(i) + world * (world - 1) / 2;
        for (const int32_t one : sums[i]) ASSERT_EQ(one, expected) << "sum " << i;
      }
      for (size_t i = 0; i < moved.size(); ++i)
        for (const uint8_t one : moved[i]) ASSERT_EQ(one, 40 + 3 * i) << "broadcast " << i;
      ASSERT_TRUE(communicator.barrier(seconds(60)).ok());
    }
    const CommunicatorStats stats = communicator.stats();
    EXPECT_EQ(stats.operations, stats.operations_submitted);
    uint64_t ended = 0;
    for (const auto& bucket : stats.completed.buckets) ended += bucket.count;
    if (GetParam().place != Place::kFailover) {
      EXPECT_GE(ended, stats.operations) << "each is counted once";
    }
    for (const auto& stripe : stats.stripes) EXPECT_GT(stripe.bytes_received, 0u) << stripe.address;
  });
}

TEST(EngineThreadsOfJob, DescribeSaysHowManyAndWhyNotMore) {
  PlacedJob job(Place::kAggregator);  // two stripes
  job.edit([](CommunicatorOptions& options) { options.engine_threads = options.rank + 1; });
  job.run([](Communicator& communicator) {
    const std::string text = communicator.describe();
    if (communicator.rank() == 0) {
      EXPECT_THAT(text, Not(HasSubstr("engine thread")));
    } else if (communicator.rank() == 1) {
      EXPECT_THAT(text, HasSubstr("; 2 engine threads"));
    } else {
      EXPECT_THAT(text, HasSubstr("2 engine threads, WARNING: " + std::to_string(communicator.rank() + 1) +
                                  " were asked for, and 2 stripes can be divided"));
    }
  });
}

TEST(EngineThreadsOfJob, OutOfRangeIsRefused) {
  for (const int bad : {-1, 65, 1'000'000}) {
    CommunicatorOptions options;
    options.aggregators = {"127.0.0.1:1"};
    options.engine_threads = bad;
    const Status status = Communicator::connect(options).status();
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("engine_threads is " + std::to_string(bad)));
  }
}

// With and without threads the bits are the same: chunks and their order do not depend on them.
TEST(EngineThreadsOfJob, TheBitsAreThoseOfOneThread) {
  std::array<std::vector<float>, 2> results;
  for (const int threads : {1, 2}) {
    PlacedJob job(Place::kAggregators);
    job.edit([&](CommunicatorOptions& options) { options.engine_threads = threads; });
    job.run([&](Communicator& communicator) {
      Rng rng(static_cast<uint64_t>(communicator.rank()) + 1);
      std::vector<float> data(100'000);
      for (float& one : data) one = static_cast<float>(rng.unit() - 0.5);
      for (int step = 0; step < 3; ++step) {
        const Status status =
            communicator
                .all_reduce(TensorView{data.data(), data.data(), data.size()}, {.timeout = seconds(60)})
                .wait();
        ASSERT_TRUE(status.ok()) << status.to_string();
      }
      if (communicator.rank() == 0) results[static_cast<size_t>(threads - 1)] = data;
    });
  }
  ASSERT_EQ(results[0].size(), results[1].size());
  ASSERT_FALSE(results[0].empty());
  EXPECT_EQ(std::memcmp(results[0].data(), results[1].data(), results[0].size() * sizeof(float)), 0);
}

// Ranks correct the weights of a plan: at one core of a rank the answer arrives, and all need it.
TEST(EngineThreadsOfJob, AllThreadsTakePartInCorrections) {
  CommunicatorOptions options;
  options.job = "corrected";
  options.root = "127.0.0.1:0";
  options.shared_memory = false;
  options.timeout = options.connect_timeout = options.liveness_timeout = seconds(60);
  // Rates far from what loopback is: the correction may have something to do.
  run_ranks(
      4, options,
      [](int, std::unique_ptr<Communicator>& communicator) {
        // The ranks ask each other after every 2 048 chunks.
        for (int step = 0; step < 20; ++step) sum_and_check(*communicator, 400'000);
        const CommunicatorStats stats = communicator->stats();
        double all = 0;
        for (const auto& stripe : stats.stripes) all += stripe.share;
        EXPECT_NEAR(all, 1, 1e-9) << "all stripes have their share of one and the same map";
        const Status last = communicator->barrier(seconds(60));
        ASSERT_TRUE(last.ok()) << last.to_string();
      },
      [](CommunicatorOptions& one) {
        one.link_rate_bps = one.rank == 0 ? 1e9 : 20e9;
        one.engine_threads = 1 + one.rank % 3;
      });
}

TEST(EngineThreadsOfJob, FailoverLosesNothing) {
  PlacedJob job(Place::kFailover);
  job.edit([](CommunicatorOptions& options) { options.engine_threads = 2; });
  std::barrier together(PlacedJob::kRanks);
  job.run([&](Communicator& communicator) {
    for (int step = 0; step < 30; ++step) {
      if (step == 10) together.arrive_and_wait();
      if (step == 10 && communicator.rank() == 0) job.end_aggregator();
      sum_and_check(communicator, step % 2 == 0 ? 50'000 : 100);
    }
    EXPECT_EQ(communicator.stats().failovers, 1u);
    together.arrive_and_wait();
  });
}

TEST(EngineThreadsOfJob, SurvivorsRegroup) {
  CommunicatorOptions options;
  options.job = "regroup";
  options.root = "127.0.0.1:0";
  options.shared_memory = false;
  options.engine_threads = 2;
  options.timeout = options.connect_timeout = seconds(60);
  std::barrier summed(3), ended(3), again(2);
  run_ranks(3, options, [&](int rank, std::unique_ptr<Communicator>& communicator) {
    sum_and_check(*communicator, 50'000);
    summed.arrive_and_wait();
    if (rank == 1) communicator->abort("dies");
    EXPECT_FALSE(communicator->barrier(seconds(60)).ok());
    ended.arrive_and_wait();
    if (rank == 1) return;
    const auto regrouped = communicator->regroup({.gather = milliseconds(300)});
    ASSERT_TRUE(regrouped.ok()) << regrouped.status().to_string();
    EXPECT_EQ(regrouped->world_size, 2);
    sum_and_check(*communicator, 50'000);
    again.arrive_and_wait();
  });
}

}  // namespace
}  // namespace netsum::engine_threads_of_job_test
