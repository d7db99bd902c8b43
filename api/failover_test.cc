// An aggregator is lost in the middle: the ranks do not notice, and the bits are those of an undisturbed run.
#include <gmock/gmock.h>

#include <atomic>
#include <barrier>
#include <cstring>

#include "session/job_testing.h"
#include "src/base/rng.h"

namespace netsum::failover_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr int kRanks = 3;
constexpr int kSteps = 60;

CommunicatorOptions options_for(const std::string& aggregator, std::vector<std::string> fallbacks) {
  CommunicatorOptions options;
  options.job = "failover";
  options.token = "secret";
  options.aggregators = {aggregator};
  options.on_failure = FailurePolicy::kFailover;
  if (!fallbacks.empty() && fallbacks.back() == "hosts") options.root = "127.0.0.1:0";
  options.fallback_aggregators = std::move(fallbacks);
  return options;
}

// Sums what depends on the sums before: one wrong or repeated bit would be in all that follow.
std::vector<float> train(int rank, Communicator& communicator,
                         const std::function<void(int step)>& before_step) {
  Rng rng(static_cast<uint64_t>(rank) + 1);
  std::vector<float> weights(40'000, 0.0f), gradients(weights.size());
  for (int step = 0; step < kSteps; ++step) {
    before_step(step);
    for (size_t i = 0; i < weights.size(); ++i)
      gradients[i] = static_cast<float>(rng.unit() - 0.5) + 0.25f * weights[i];
    // Several in flight, of different sizes, in place.
    const size_t cuts[] = {0, 10, 700, 20'000, weights.size()};
    std::vector<Work> works;
    for (size_t part = 0; part + 1 < std::size(cuts); ++part) {
      float* begin = gradients.data() + cuts[part];
      works.push_back(communicator.all_reduce(TensorView{begin, begin, cuts[part + 1] - cuts[part]}, {}));
    }
    for (const Work& work : works) {
      const Status status = work.wait();
      EXPECT_TRUE(status.ok()) << "rank " << rank << ", step " << step << ": " << status.to_string();
      if (!status.ok()) return {};
    }
    for (size_t i = 0; i < weights.size(); ++i) weights[i] -= 0.1f * gradients[i];
  }
  return weights;
}

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

const std::vector<float>& undisturbed() {
  static const std::vector<float> weights = [] {
    const auto aggregator = start_aggregator_at("127.0.0.1:0");
    CommunicatorOptions options = options_for(aggregator->control_address(), {});
    options.on_failure = FailurePolicy::kFail;
    options.shared_memory = false;
    std::vector<float> result;
    run_ranks(kRanks, options, [&](int rank, std::unique_ptr<Communicator>& communicator) {
      auto mine = train(rank, *communicator, [](int) {});
      if (rank == 0) result = std::move(mine);
    });
    return result;
  }();
  return weights;
}

// Trains; `disturb` is called by rank 1 before some step, while the others are somewhere near it.
void expect_failover(const CommunicatorOptions& options, const std::function<void(int step)>& disturb,
                     uint64_t failovers) {
  std::vector<std::vector<float>> weights(kRanks);
  run_ranks(kRanks, options, [&](int rank, std::unique_ptr<Communicator>& communicator) {
    weights[static_cast<size_t>(rank)] = train(rank, *communicator, [&](int step) {
      if (rank == 1) disturb(step);
    });
    EXPECT_EQ(communicator->stats().failovers, failovers) << communicator->describe();
  });
  for (const auto& mine : weights) expect_same_bits(mine, undisturbed());
}

TEST(FailoverTest, ToTheSameAggregatorRestarted) {
  auto aggregator = start_aggregator_at("127.0.0.1:0");
  const std::string address = aggregator->control_address();
  expect_failover(
      options_for(address, {}),
      [&](int step) {
        if (step != 20) return;
        aggregator.reset();
        aggregator = start_aggregator_at(address);
      },
      1);
}

TEST(FailoverTest, ToAnotherAggregatorAndFromThatToTheHosts) {
  auto first = start_aggregator_at("127.0.0.1:0"), second = start_aggregator_at("127.0.0.1:0");
  expect_failover(
      options_for(first->control_address(), {second->control_address(), "hosts"}),
      [&](int step) {
        if (step == 15) first.reset();
        if (step == 40) second.reset();
      },
      2);
}

TEST(FailoverTest, WhenTheAggregatorIsLostWhileNothingIsInFlight) {
  auto aggregator = start_aggregator_at("127.0.0.1:0");
  std::barrier quiet(kRanks);
  const CommunicatorOptions options = options_for(aggregator->control_address(), {"hosts"});
  run_ranks(kRanks, options, [&](int rank, std::unique_ptr<Communicator>& communicator) {
    ASSERT_TRUE(communicator->barrier(seconds(20)).ok());
    quiet.arrive_and_wait();
    if (rank == 0) aggregator.reset();
    quiet.arrive_and_wait();
    EXPECT_TRUE(communicator->barrier(seconds(20)).ok());
    EXPECT_THAT(communicator->describe(), HasSubstr("embedded shards"));
    EXPECT_TRUE(communicator->status().ok());
    quiet.arrive_and_wait();
  });
}

TEST(FailoverTest, ManySmallOperationsOverSeveralStripes) {
  auto first = start_aggregator_at("127.0.0.1:0"), second = start_aggregator_at("127.0.0.1:0");
  CommunicatorOptions options = options_for(first->control_address(), {"hosts"});
  options.aggregators.push_back(second->control_address());
  run_ranks(kRanks, options, [&](int rank, std::unique_ptr<Communicator>& communicator) {
    for (int round = 0; round < 30; ++round) {
      if (rank == 2 && round == 10) second.reset();
      std::vector<int32_t> values(50, rank + round);
      std::vector<Work> works;
      AllReduceOptions how;
      how.type = DataType::kInt32;
      for (int32_t& value : values)
        works.push_back(communicator->all_reduce(TensorView{&value, &value, 1}, how));
      for (const Work& work : works) {
        const Status status = work.wait();
        ASSERT_TRUE(status.ok()) << "rank " << rank << ", round " << round << ": " << status.to_string();
      }
      for (const int32_t value : values) ASSERT_EQ(value, 3 * round + 3);
    }
    EXPECT_EQ(communicator->stats().failovers, 1u);
  });
}

TEST(FailoverTest, ALostRankIsStillAnErrorAndTheOthersCanRegroup) {
  auto aggregator = start_aggregator_at("127.0.0.1:0");
  const CommunicatorOptions options = options_for(aggregator->control_address(), {"hosts"});
  std::barrier begun(kRanks), ended(kRanks), regrouped_all(kRanks - 1);
  run_ranks(kRanks, options, [&](int rank, std::unique_ptr<Communicator>& communicator) {
    if (rank == 2) {
      begun.arrive_and_wait();
      communicator.reset();
      ended.arrive_and_wait();
      return;
    }
    // Rank 0 is further than rank 1 when they regroup.
    float values[2] = {1.0f, 1.0f};
    std::vector<Work> works;
    for (float& value : std::span(values, rank == 0 ? 2 : 1))
      works.push_back(communicator->all_reduce(TensorView{&value, &value, 1}, {}));
    begun.arrive_and_wait();
    const Status status = works[0].wait();
    EXPECT_EQ(status.code(), ErrorCode::kPeerLost) << status.to_string();
    EXPECT_EQ(status.rank(), 2);
    ended.arrive_and_wait();
    const auto regrouped = communicator->regroup({.gather = milliseconds(300)});
    ASSERT_TRUE(regrouped.ok()) << regrouped.status().to_string();
    EXPECT_EQ(regrouped->world_size, 2);
    EXPECT_TRUE(communicator->barrier(seconds(20)).ok());
    // The new group fails over as the old one would have; it counts its operations from its own beginning.
    regrouped_all.arrive_and_wait();
    if (rank == 0) aggregator.reset();
    EXPECT_TRUE(communicator->barrier(seconds(60)).ok());
    EXPECT_EQ(communicator->stats().failovers, 1u);
  });
}

TEST(FailoverTest, GivesUpInTimeAndSaysWhy) {
  auto aggregator = start_aggregator_at("127.0.0.1:0");
  CommunicatorOptions options = options_for(aggregator->control_address(), {});
  options.failover_timeout = milliseconds(1500);
  std::barrier connected(kRanks);
  run_ranks(kRanks, options, [&](int rank, std::unique_ptr<Communicator>& communicator) {
    connected.arrive_and_wait();
    if (rank == 0) aggregator.reset();
    connected.arrive_and_wait();
    std::vector<float> data(100'000, 1.0f);
    const Status status =
        communicator->all_reduce(TensorView{data.data(), data.data(), data.size()}, {}).wait();
    EXPECT_EQ(status.code(), ErrorCode::kAggregatorLost) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("no other aggregator was found"));
    EXPECT_EQ(communicator->status().code(), ErrorCode::kAggregatorLost);
  });
}

TEST(FailoverTest, AnAggregatorWithOtherPacketsIsRefused) {
  auto first = start_aggregator_at("127.0.0.1:0", 9000);
  const auto second = start_aggregator_at("[::1]:0", 9000);
  CommunicatorOptions options = options_for(first->control_address(), {second->control_address()});
  options.mtu = 1500;
  options.failover_timeout = milliseconds(1500);
  std::barrier connected(2);
  run_ranks(2, options, [&](int rank, std::unique_ptr<Communicator>& communicator) {
    connected.arrive_and_wait();
    if (rank == 0) first.reset();
    connected.arrive_and_wait();
    const Status status = communicator->barrier(seconds(20));
    EXPECT_EQ(status.code(), ErrorCode::kAggregatorLost) << status.to_string();
    EXPECT_FALSE(communicator->status().ok());
  });
}

TEST(FailoverTest, BadOptionsAreRefusedWithTheirName) {
  CommunicatorOptions options = options_for("127.0.0.1:1", {"hosts"});
  options.root.clear();
  EXPECT_THAT(Communicator::connect(options).status().message(), HasSubstr("root"));
  options = options_for("127.0.0.1:1", {});
  options.aggregators.clear();
  EXPECT_THAT(Communicator::connect(options).status().message(), HasSubstr("aggregators"));
  options = options_for("127.0.0.1:1", {});
  options.liveness_timeout = milliseconds(3);
  EXPECT_THAT(Communicator::connect(options).status().message(), HasSubstr("liveness_timeout"));
}

}  // namespace
}  // namespace netsum::failover_test
