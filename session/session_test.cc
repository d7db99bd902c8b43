// Operations with other roles than that of an all-reduce, and what a session passes on of an operation.
#include "session/session.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "session/job_testing.h"
#include "session/session_factory.h"
#include "src/base/quiet.h"

namespace netsum::session_test {
namespace {

constexpr std::chrono::seconds kPatience{60};  // only a hang makes it this long
constexpr int kRanks = 3, kRoot = 1;
constexpr size_t kCount = 5'000;

CommunicatorOptions options_for(int rank, const Aggregator& aggregator, bool shared_memory) {
  CommunicatorOptions options;
  options.rank = rank;
  options.world_size = kRanks;
  options.job = "roles";
  options.aggregators = {aggregator.control_address()};
  options.shared_memory = shared_memory;
  options.liveness_timeout = kPatience;  // a busy machine is no loss
  return options;
}

// A reduce to kRoot, in which rank 2 contributes nothing: the root alone gets the sum of ranks 0 and 1.
OperationSpec reduce_spec(int rank, const std::vector<float>& input, std::vector<float>* output) {
  OperationSpec spec;
  spec.role = {.collective = Collective::kReduce,
               .parameter = kRoot,
               .contributors = rank != 2 ? Ranks::every() : Ranks::none(),
               .receivers = Ranks::one(kRoot),
               .rank = rank,
               .chunk_map = nullptr};
  spec.tensors = {{spec.role.contributes(0) ? input.data() : nullptr,
                   spec.role.receives(0) ? output->data() : nullptr, input.size()}};
  return spec;
}

class SessionTest : public ::testing::TestWithParam<bool> {};

TEST_P(SessionTest, ReducesToOneRank) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  ASSERT_NE(aggregator, nullptr);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      SessionFactory factory(options_for(rank, *aggregator, GetParam()));
      ASSERT_TRUE(factory.prepare().ok());
      auto session = factory.connect({});
      ASSERT_TRUE(session.ok()) << session.status().to_string();
      const std::vector<float> input(kCount, static_cast<float>(rank + 1));
      std::vector<float> output(kCount, -1.0f);
      const Status status = session.value()->submit(reduce_spec(rank, input, &output), kPatience).wait();
      EXPECT_TRUE(status.ok()) << status.to_string();
      EXPECT_EQ(output, std::vector<float>(kCount, rank == kRoot ? 3.0f : -1.0f)) << "rank " << rank;
      EXPECT_TRUE(session.value()->sum_one(kPatience).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(SessionTest, RanksThatReduceToDifferentRanksMismatch) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  ASSERT_NE(aggregator, nullptr);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      SessionFactory factory(options_for(rank, *aggregator, GetParam()));
      ASSERT_TRUE(factory.prepare().ok());
      auto session = factory.connect({});
      ASSERT_TRUE(session.ok()) << session.status().to_string();
      const std::vector<float> input(kCount, 1.0f);
      std::vector<float> output(kCount);
      OperationSpec spec = reduce_spec(rank, input, &output);
      if (rank == 0) spec.role.parameter = 0;
      EXPECT_EQ(session.value()->submit(std::move(spec), kPatience).wait().code(), ErrorCode::kMismatch);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(Paths, SessionTest, ::testing::Values(false, true),
                         [](const auto& path) { return path.param ? "SharedMemory" : "Network"; });

// A rank that cannot take part in a move to embedded shards tells the others to try again elsewhere. That is no loss of
// rank 0, where the ranks meet: rank 1 must not take it for one.
TEST(MovingSessionTest, ARankThatCannotMoveIsNoLossOfTheControlService) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  ASSERT_NE(aggregator, nullptr);
  std::string root;
  const auto moving_options = [&](int rank) {
    CommunicatorOptions options = options_for(rank, *aggregator, false);
    options.on_failure = FailurePolicy::kFailover;
    options.fallback_aggregators = {std::string(kHosts)};
    options.root = rank == 0 ? "127.0.0.1:0" : root;
    if (rank == 0) options.on_root_bound = [&](const std::string& address) { root = address; };
    return options;
  };
  std::vector<std::unique_ptr<SessionFactory>> factories;
  const auto on_all_ranks = [&](const auto& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) threads.emplace_back([&body, rank] { body(rank); });
    for (std::thread& thread : threads) thread.join();
  };
  for (int rank = 0; rank < kRanks; ++rank) {
    factories.push_back(std::make_unique<SessionFactory>(moving_options(rank)));
    ASSERT_TRUE(factories.back()->prepare().ok());
  }
  on_all_ranks([&](int rank) { EXPECT_TRUE(factories[rank]->connect({}).ok()); });

  Status ended[kRanks];
  on_all_ranks([&](int rank) {
    const auto now = std::chrono::steady_clock::now();
    // Rank 2 joins with the others, but has no time left for its data path.
    const auto data_path = rank == 2 ? std::chrono::milliseconds(-1) : kPatience;
    const auto session = factories[rank]->move({{}, 0, now + kPatience, now + data_path, {}});
    ended[rank] = session.ok() ? Status() : session.status();
  });
  EXPECT_FALSE(ended[2].ok());
  for (const Status& status : {ended[0], ended[1]}) {
    EXPECT_EQ(status.code(), ErrorCode::kAggregatorLost) << status.to_string();
    EXPECT_EQ(status.rank(), 2) << status.to_string();
  }
}

// An aggregator that only some ranks can reach: all meet at the first one, and all give up together. Those that could go on would
// otherwise wait for the others, and from then on be at another place than they.
TEST(MovingSessionTest, APlaceThatOneRankCannotReachIsGivenUpByAll) {
  const auto first = start_aggregator_at("127.0.0.1:0"), second = start_aggregator_at("127.0.0.1:0");
  ASSERT_TRUE(first != nullptr && second != nullptr);
  const std::vector<std::string> both = {first->control_address(), second->control_address()};
  const std::string gone = start_aggregator_at("127.0.0.1:0")->control_address();
  Status ended[kRanks];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      CommunicatorOptions options = options_for(rank, *first, false);
      options.aggregators = both;
      options.on_failure = FailurePolicy::kFailover;
      SessionFactory factory(options);
      ASSERT_TRUE(factory.prepare().ok());
      ASSERT_TRUE(factory.connect({}).ok());
      const auto now = std::chrono::steady_clock::now();
      const auto session = factory.move(
          {{both[0], rank == 1 ? gone : both[1]}, 0, now + kPatience / 10, now + kPatience / 5, {}});
      ended[rank] = session.ok() ? Status() : session.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : ended) {
    EXPECT_EQ(status.code(), ErrorCode::kAggregatorLost) << status.to_string();
    EXPECT_NE(status.message().find(gone), std::string::npos) << status.to_string();
  }
}

TEST(ShardLinger, LastsLongerWhereTheRanksMeet) {
  for (const bool meet_here : {false, true}) {
    CommunicatorOptions options;
    options.root = meet_here ? "127.0.0.1:0" : "127.0.0.1:1";
    const auto shard = Shard::start(options, meet_here);
    ASSERT_TRUE(shard.ok()) << shard.status().to_string();
    int steps = 0;
    const auto count = [&](std::chrono::milliseconds) { return ++steps < 0; };
    shard.value()->linger(count, Clock::now() + kPatience);
    EXPECT_EQ(steps * kQuietStep, meet_here ? kQuietOfAll : kQuiet);
  }
}

}  // namespace
}  // namespace netsum::session_test
