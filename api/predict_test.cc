// Predicted scales from connect() to the sums: on all data paths, with the same bits as without, and with ranks that differ.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

#include "session/job_testing.h"
#include "src/base/rng.h"

namespace netsum::predict_test {
namespace {

using ::testing::HasSubstr;

constexpr size_t kCount = 20'000;
constexpr int kIterations = 14;

CommunicatorOptions options_for(const std::string& aggregator) {
  CommunicatorOptions options;
  options.job = "predicted";
  options.shared_memory = false;
  options.numerics = Numerics::kFixed;  // floats have no scales
  if (aggregator.empty()) {
    options.root = "127.0.0.1:0";
  } else {
    options.aggregators = {aggregator};
  }
  return options;
}

struct Outcome {
  std::vector<float> results;  // of all iterations
  CommunicatorStats stats;
};

// Gradients whose magnitudes stay, except in one iteration and, in another, for one NaN.
std::vector<Outcome> train(const CommunicatorOptions& options, int ranks,
                           const std::function<void(CommunicatorOptions&)>& edit = nullptr) {
  std::vector<Outcome> outcomes(static_cast<size_t>(ranks));
  run_ranks(
      ranks, options,
      [&](int rank, std::unique_ptr<Communicator>& communicator) {
        Outcome& mine = outcomes[static_cast<size_t>(rank)];
        std::vector<float> data(kCount);
        for (int iteration = 0; iteration < kIterations; ++iteration) {
          Rng rng(static_cast<uint64_t>(rank));
          for (float& value : data)
            value = static_cast<float>(rng.unit() - 0.5) * (iteration == 7 ? 300.0f : 1.0f);
          if (iteration == 12 && rank == 0) data[100] = NAN;
          const Status status =
              communicator->all_reduce(TensorView{data.data(), data.data(), kCount}, {}).wait();
          ASSERT_TRUE(status.ok()) << status.to_string();
          mine.results.insert(mine.results.end(), data.begin(), data.end());
        }
        mine.stats = communicator->stats();
      },
      edit);
  return outcomes;
}

// All ranks have the same bits, with predictions and without.
void expect_same_bits(CommunicatorOptions options, int ranks,
                      const std::function<void(CommunicatorOptions&)>& edit = nullptr) {
  const std::vector<Outcome> with = train(options, ranks, edit);
  options.predict_scales = false;
  const std::vector<Outcome> without = train(options, ranks, edit);
  for (size_t rank = 0; rank < with.size(); ++rank) {
    ASSERT_EQ(with[rank].results.size(), kIterations * kCount);
    EXPECT_EQ(std::memcmp(with[rank].results.data(), without[0].results.data(), kIterations * kCount * 4), 0)
        << rank;
    EXPECT_GT(with[rank].stats.scales_predicted, 0u);
    EXPECT_GT(with[rank].stats.scales_mispredicted, 0u);
    EXPECT_GT(with[rank].stats.scales_predicted, with[rank].stats.scales_mispredicted);
    EXPECT_EQ(without[rank].stats.scales_predicted, 0u);
  }
}

TEST(PredictedScales, AtAnAggregator) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  expect_same_bits(options_for(aggregator->control_address()), 3);
}

TEST(PredictedScales, ByEmbeddedShards) {
  expect_same_bits(options_for(""), 3);
}

TEST(PredictedScales, InAHierarchy) {
  const auto spine = start_aggregator_at("127.0.0.1:0");
  std::vector<std::unique_ptr<Aggregator>> racks;
  for (int i = 0; i < 2; ++i) {
    AggregatorOptions options;
    options.listen = "127.0.0.1:0";
    options.parent = spine->control_address();
    auto rack = Aggregator::start(options);
    ASSERT_TRUE(rack.ok()) << rack.status().to_string();
    racks.push_back(std::move(rack).value());
  }
  expect_same_bits(options_for(racks[0]->control_address()), 4, [&](CommunicatorOptions& mine) {
    mine.aggregators = {racks[static_cast<size_t>(mine.rank / 2)]->control_address()};
  });
}

TEST(PredictedScales, BetweenHostsOfSeveralRanks) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  CommunicatorOptions options = options_for(aggregator->control_address());
  options.shared_memory = true;
  const std::vector<Outcome> with =
      train(options, 4, [](CommunicatorOptions& mine) { mine.host = std::to_string(mine.rank / 2); });
  options.predict_scales = false;
  const std::vector<Outcome> without =
      train(options, 4, [](CommunicatorOptions& mine) { mine.host = std::to_string(mine.rank / 2); });
  uint64_t predicted = 0;
  for (const Outcome& rank : with) {
    EXPECT_EQ(std::memcmp(rank.results.data(), without[0].results.data(), kIterations * kCount * 4), 0);
    predicted += rank.stats.scales_predicted;
  }
  EXPECT_GT(predicted, 0u);
}

TEST(PredictedScales, WithPacketLossAndSeveralThreads) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  CommunicatorOptions options = options_for(aggregator->control_address());
  options.inject.loss = 0.02;
  options.engine_threads = 2;
  expect_same_bits(options, 3);
}

// Its memory is that of the session: at another aggregator, it begins anew, on all ranks alike.
TEST(PredictedScales, AfterAFailover) {
  auto first = start_aggregator_at("127.0.0.1:0");
  const auto second = start_aggregator_at("127.0.0.1:0");
  CommunicatorOptions options = options_for(first->control_address());
  options.on_failure = FailurePolicy::kFailover;
  options.fallback_aggregators = {second->control_address()};
  std::mutex mutex;
  run_ranks(3, options, [&](int rank, std::unique_ptr<Communicator>& communicator) {
    std::vector<float> data(kCount);
    for (int iteration = 0; iteration < 16; ++iteration) {
      if (iteration == 8) {
        const std::lock_guard lock(mutex);
        first.reset();
      }
      for (size_t i = 0; i < kCount; ++i) data[i] = static_cast<float>(rank + static_cast<int>(i % 100));
      const Status status = communicator->all_reduce(TensorView{data.data(), data.data(), kCount}, {}).wait();
      ASSERT_TRUE(status.ok()) << status.to_string();
      for (size_t i = 0; i < kCount; ++i)
        ASSERT_EQ(data[i], static_cast<float>(3 + 3 * static_cast<int>(i % 100)));
    }
    EXPECT_EQ(communicator->stats().failovers, 1u);
    EXPECT_GT(communicator->stats().scales_predicted, 0u) << "in the second session";
    EXPECT_EQ(communicator->stats().scales_mispredicted, 0u);
  });
}

TEST(PredictedScales, NotWithVerifiedSums) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  CommunicatorOptions options = options_for(aggregator->control_address());
  options.verify = Verify::kBoth;
  for (const Outcome& rank : train(options, 2)) EXPECT_EQ(rank.stats.scales_predicted, 0u);
}

TEST(PredictedScales, RanksThatDifferInItAreTold) {
  auto aggregator = start_aggregator_at("127.0.0.1:0");
  const std::string address = aggregator->control_address();
  std::vector<Status> ends(2);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      CommunicatorOptions options = options_for(address);
      options.rank = static_cast<int>(rank);
      options.world_size = 2;
      options.predict_scales = rank == 0;
      ends[rank] = Communicator::connect(options).status();
      // The other one need not wait for longer.
      if (ends[rank].code() == ErrorCode::kInvalidArgument) aggregator.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  const size_t refused = ends[0].code() == ErrorCode::kInvalidArgument ? 0 : 1;
  EXPECT_EQ(ends[refused].code(), ErrorCode::kInvalidArgument) << ends[refused].to_string();
  EXPECT_THAT(ends[refused].message(), HasSubstr("was created with predict_scales "));
  EXPECT_FALSE(ends[1 - refused].ok());
}

}  // namespace
}  // namespace netsum::predict_test
