// Aggregators that feed a parent, over loopback sockets: ranks are threads of this process. With real links
// and in both dataplanes: tests/cli/hierarchy_test.py.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "netsum/aggregator.h"
#include "netsum/communicator.h"

namespace netsum::hierarchy_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::unique_ptr<Aggregator> start(const std::string& parent = "", int cores = 1,
                                  const std::string& token = "", const std::string& parent_token = "") {
  AggregatorOptions options;
  options.listen = "127.0.0.1:0";
  options.cores = cores;
  options.in_switch = true;  // sums all
  options.parent = parent;
  options.token = token;
  options.parent_token = parent_token;
  auto aggregator = Aggregator::start(options);
  EXPECT_TRUE(aggregator.ok()) << aggregator.status().to_string();
  return std::move(aggregator).value();
}

uint64_t counter(const Aggregator& aggregator, const std::string& name) {
  for (const AggregatorCounter& one : aggregator.status().counters) {
    if (one.name == name) return one.value;
  }
  ADD_FAILURE() << "no counter " << name;
  return 0;
}

CommunicatorOptions options_of(int rank, int world_size, const std::string& aggregator) {
  CommunicatorOptions options;
  options.rank = rank;
  options.world_size = world_size;
  options.job = "hierarchy_test";
  options.shared_memory = false;  // all ranks are on this host
  options.aggregators = {aggregator};
  options.connect_timeout = seconds(30);
  options.timeout = seconds(30);
  options.liveness_timeout = seconds(30);  // 96 ranks on a busy machine may be silent for seconds
  return options;
}

// Rank r joins at aggregators[r].
void run(const std::vector<std::string>& aggregators, const std::function<void(int, Communicator&)>& body,
         bool shared_memory = false) {
  std::vector<std::thread> threads;
  const int world_size = static_cast<int>(aggregators.size());
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      CommunicatorOptions options = options_of(rank, world_size, aggregators[static_cast<size_t>(rank)]);
      options.shared_memory = shared_memory;
      auto communicator = Communicator::connect(options);
      ASSERT_TRUE(communicator.ok()) << "rank " << rank << ": " << communicator.status().to_string();
      body(rank, *communicator.value());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void expect_sums(int rank, int world_size, Communicator& communicator, size_t count) {
  std::vector<float> data(count);
  for (size_t i = 0; i < count; ++i) data[i] = static_cast<float>((rank + 1) * static_cast<int>(i % 97));
  const Status status = communicator.all_reduce(TensorView{data.data(), data.data(), count}, {}).wait();
  ASSERT_TRUE(status.ok()) << status.to_string();
  const int factor = world_size * (world_size + 1) / 2;
  for (size_t i = 0; i < count; ++i) {
    ASSERT_FLOAT_EQ(data[i], static_cast<float>(factor * static_cast<int>(i % 97))) << i;
  }
}

TEST(HierarchyTest, TwoRacksSendOneContributionPerChunkEach) {
  const auto spine = start();
  const auto left = start(spine->control_address()), right = start(spine->control_address());
  const std::string l = left->control_address(), r = right->control_address();
  run({l, l, r, r, r}, [](int rank, Communicator& communicator) {
    for (const size_t count : {1u, 100'000u, 300'001u}) expect_sums(rank, 5, communicator, count);
    EXPECT_NE(communicator.describe().find("user-space below user-space"), std::string::npos);
  });
  for (const auto* rack : {left.get(), right.get()}) {
    EXPECT_EQ(counter(*rack, "rounds_completed"), counter(*spine, "rounds_completed"));
  }
  EXPECT_EQ(counter(*spine, "contributions"), 2 * counter(*spine, "rounds_completed"));
  EXPECT_EQ(counter(*left, "contributions"), 2 * counter(*spine, "rounds_completed"));
  EXPECT_EQ(counter(*right, "contributions"), 3 * counter(*spine, "rounds_completed"));
  EXPECT_TRUE(left->drain(seconds(10)));
  EXPECT_TRUE(spine->drain(seconds(10)));
}

TEST(HierarchyTest, RanksAndRacksSideBySideSeveralCoresThreeLevels) {
  const auto core = start("", 3);
  const auto spine = start(core->control_address(), 2);
  const auto rack = start(spine->control_address(), 2);
  // Ranks 0 and 3 at the top, rank 1 in the middle, ranks 2 and 4 at the bottom.
  run({core->control_address(), spine->control_address(), rack->control_address(), core->control_address(),
       rack->control_address()},
      [](int rank, Communicator& communicator) {
        expect_sums(rank, 5, communicator, 200'000);
        EXPECT_EQ(communicator.stats().stripes.size(), 2u);
      });
  EXPECT_EQ(counter(*core, "contributions"), 3 * counter(*core, "rounds_completed"));
}

// More ranks than an aggregator takes.
TEST(HierarchyTest, NinetySixRanksInThreeRacks) {
  constexpr int kRacks = 3, kRanks = 96;
  const auto spine = start();
  std::vector<std::unique_ptr<Aggregator>> racks;
  for (int rack = 0; rack < kRacks; ++rack) racks.push_back(start(spine->control_address()));
  std::vector<std::string> aggregators;
  for (int rank = 0; rank < kRanks; ++rank)
    aggregators.push_back(racks[static_cast<size_t>(rank % kRacks)]->control_address());
  for (const bool shared_memory : {false, true}) {  // all 96 are on this host
    run(
        aggregators,
        [&](int rank, Communicator& communicator) {
          expect_sums(rank, kRanks, communicator, 1000);
          std::vector<float> data = {NAN, 1.0f, std::numeric_limits<float>::infinity(),
                                     rank == 95 ? 96.0f : 0.0f};
          const Status status =
              communicator.all_reduce(TensorView{data.data(), data.data(), data.size()}, {}).wait();
          ASSERT_TRUE(status.ok()) << status.to_string();
          EXPECT_TRUE(std::isnan(data[0]));
          EXPECT_EQ(data[1], 96.0f);
          EXPECT_EQ(data[2], std::numeric_limits<float>::infinity());
          EXPECT_EQ(data[3], 96.0f);
        },
        shared_memory);
  }
}

TEST(HierarchyTest, JobsFollowEachOther) {
  const auto spine = start();
  const auto left = start(spine->control_address()), right = start(spine->control_address());
  for (int round = 0; round < 5; ++round) {
    run({left->control_address(), right->control_address()},
        [](int rank, Communicator& communicator) { expect_sums(rank, 2, communicator, 10'000); });
  }
  EXPECT_TRUE(left->drain(seconds(10)));
  EXPECT_TRUE(left->status().jobs.empty());
}

TEST(HierarchyTest, AMismatchBetweenRacksIsToldToAll) {
  const auto spine = start();
  const auto left = start(spine->control_address()), right = start(spine->control_address());
  run({left->control_address(), left->control_address(), right->control_address()},
      [](int rank, Communicator& communicator) {
        std::vector<float> data(rank == 2 ? 1000 : 2000);
        const Status status =
            communicator.all_reduce(TensorView{data.data(), data.data(), data.size()}, {}).wait();
        EXPECT_EQ(status.code(), ErrorCode::kMismatch) << status.to_string();
      });
}

TEST(HierarchyTest, ATimeoutNamesTheRanksOfTheOtherRacks) {
  const auto spine = start();
  const auto left = start(spine->control_address()), right = start(spine->control_address());
  run({left->control_address(), left->control_address(), right->control_address()},
      [](int rank, Communicator& communicator) {
        if (rank == 2) {
          // Takes no part; hears of the others' timeout.
          const auto deadline = std::chrono::steady_clock::now() + seconds(20);
          while (communicator.status().ok() && std::chrono::steady_clock::now() < deadline) {
            std::this_thread::sleep_for(milliseconds(5));
          }
          EXPECT_EQ(communicator.status().code(), ErrorCode::kTimeout) << communicator.status().to_string();
          return;
        }
        std::vector<float> data(5000);
        AllReduceOptions options;
        options.timeout = milliseconds(rank == 0 ? 1500 : 15'000);
        const Status status =
            communicator.all_reduce(TensorView{data.data(), data.data(), data.size()}, options).wait();
        EXPECT_EQ(status.code(), ErrorCode::kTimeout) << status.to_string();
        EXPECT_NE(status.message().find("waiting for one or more of rank 2, below other aggregators"),
                  std::string::npos)
            << status.message();
      });
}

TEST(HierarchyTest, TheEndOfAnAggregatorIsToldInEveryRack) {
  for (const std::string victim : {"spine", "rack"}) {
    auto spine = start();
    auto left = start(spine->control_address()), right = start(spine->control_address());
    std::vector<std::thread> threads;
    std::atomic<int> connected{0};
    for (int rank = 0; rank < 3; ++rank) {
      const std::string address = rank < 2 ? left->control_address() : right->control_address();
      threads.emplace_back([&, rank, address] {
        auto communicator = Communicator::connect(options_of(rank, 3, address));
        ++connected;
        ASSERT_TRUE(communicator.ok()) << communicator.status().to_string();
        const auto deadline = std::chrono::steady_clock::now() + seconds(20);
        while (communicator.value()->status().ok() && std::chrono::steady_clock::now() < deadline) {
          std::this_thread::sleep_for(milliseconds(5));
        }
        EXPECT_EQ(communicator.value()->status().code(), ErrorCode::kAggregatorLost)
            << victim << ", rank " << rank << ": " << communicator.value()->status().to_string();
      });
    }
    while (connected < 3) std::this_thread::sleep_for(milliseconds(5));
    (victim == "spine" ? spine : right).reset();
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(HierarchyTest, AParentThatDoesNotAnswerIsNamed) {
  const auto lonely = start("127.0.0.1:1");
  CommunicatorOptions options = options_of(0, 2, lonely->control_address());
  options.connect_timeout = milliseconds(2000);
  const auto communicator = Communicator::connect(options);
  ASSERT_FALSE(communicator.ok());
  EXPECT_NE(communicator.status().message().find("127.0.0.1:1"), std::string::npos)
      << communicator.status().to_string();
}

// A rack offers its parent only what it has reserved, so that two jobs that join at once both fit.
TEST(HierarchyTest, JobsThatJoinAtTheSameTimeShareARacksSlots) {
  const auto spine = start();
  AggregatorOptions small;
  small.listen = "127.0.0.1:0";
  small.parent = spine->control_address();
  small.slots_per_core = 512;  // for one job of 256 and 16 for scales, and half of another
  auto rack = Aggregator::start(small);
  ASSERT_TRUE(rack.ok()) << rack.status().to_string();
  std::atomic<int> joined = 0;
  std::vector<std::thread> threads;
  for (const char* job : {"one", "two"}) {
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, job, rank] {
        CommunicatorOptions options = options_of(rank, 2, (*rack)->control_address());
        options.job = job;
        // Both first ranks are there before either job is complete.
        while (rank == 1 && joined < 2) {
          joined = static_cast<int>((*rack)->status().jobs.size());
          std::this_thread::sleep_for(milliseconds(5));
        }
        auto communicator = Communicator::connect(options);
        ASSERT_TRUE(communicator.ok()) << job << ": " << communicator.status().to_string();
        expect_sums(rank, 2, **communicator, 10'000);
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE((*rack)->drain(seconds(10)));
  EXPECT_EQ((*rack)->status().slots_free, 512u);
}

// A rack with room for one job, taken by the job "first".
class FullRackTest : public ::testing::Test {
 protected:
  void SetUp() override {
    spine_ = start();
    AggregatorOptions small;
    small.listen = "127.0.0.1:0";
    small.parent = spine_->control_address();
    small.slots_per_core = 288;
    auto rack = Aggregator::start(small);
    ASSERT_TRUE(rack.ok()) << rack.status().to_string();
    rack_ = std::move(rack).value();
    auto first = connect("first", 0, 1);
    ASSERT_TRUE(first.ok()) << first.status().to_string();
    first_ = std::move(first).value();
  }
  Result<std::unique_ptr<Communicator>> connect(const std::string& job, int rank, int world_size,
                                                WhenFull when_full = WhenFull::kWait,
                                                milliseconds patience = seconds(60)) const {
    CommunicatorOptions options = options_of(rank, world_size, rack_->control_address());
    options.job = job;
    options.when_full = when_full;
    options.connect_timeout = patience;
    return Communicator::connect(options);
  }
  using Connected = std::future<Result<std::unique_ptr<Communicator>>>;
  Connected connect_later(const std::string& job, int rank, int world_size,
                          milliseconds patience = seconds(60)) const {
    return std::async(std::launch::async,
                      [=, this] { return connect(job, rank, world_size, WhenFull::kWait, patience); });
  }
  bool is_queued(const std::string& name, size_t ranks) const {
    for (const auto deadline = std::chrono::steady_clock::now() + seconds(60);
         std::chrono::steady_clock::now() < deadline; std::this_thread::sleep_for(milliseconds(5))) {
      for (const AggregatorJobStatus& job : rack_->status().jobs)
        if (job.name == name && job.state == "queued" && job.joined.size() == ranks) return true;
    }
    return false;
  }

  std::unique_ptr<Aggregator> spine_, rack_;
  std::unique_ptr<Communicator> first_;
};

TEST_F(FullRackTest, JobsThatMayWaitAreLetInInTheOrderInWhichTheyCame) {
  // The ranks of the second and of the third job come in turn.
  Connected second[2], third[2];
  for (int rank = 0; rank < 2; ++rank) {
    second[rank] = connect_later("second", rank, 2);
    ASSERT_TRUE(is_queued("second", static_cast<size_t>(rank) + 1));
    third[rank] = connect_later("third", rank, 2);
    ASSERT_TRUE(is_queued("third", static_cast<size_t>(rank) + 1));
  }
  EXPECT_EQ(connect("fourth", 0, 1, WhenFull::kFail).status().code(), ErrorCode::kResourceExhausted);
  expect_sums(0, 1, *first_, 10'000);
  first_.reset();
  for (Connected* job : {second, third}) {
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([rank, result = job[rank].get()]() mutable {
        ASSERT_TRUE(result.ok()) << result.status().to_string();
        expect_sums(rank, 2, **result, 10'000);
      });
      // The third has no room as long as ranks of the second are there.
      if (job == second) {
        EXPECT_TRUE(is_queued("third", 2));
      }
    }
    for (std::thread& rank : ranks) rank.join();
  }
  EXPECT_TRUE(rack_->drain(seconds(60)));
  EXPECT_EQ(rack_->status().slots_free, 288u);
}

TEST_F(FullRackTest, AWaitEndsByItsDeadline) {
  const auto status = connect("late", 0, 1, WhenFull::kWait, seconds(5)).status();
  EXPECT_EQ(status.code(), ErrorCode::kResourceExhausted) << status.to_string();
  EXPECT_NE(status.message().find("job 'late' has waited"), std::string::npos) << status.to_string();
  expect_sums(0, 1, *first_, 10'000);
}

TEST_F(FullRackTest, AWaitEndsWhenTheRackIsDrained) {
  auto waiting = connect_later("second", 0, 1);
  ASSERT_TRUE(is_queued("second", 1));
  auto drained = std::async(std::launch::async, [&] { return rack_->drain(seconds(60)); });
  const Status status = waiting.get().status();
  EXPECT_EQ(status.code(), ErrorCode::kUnreachable) << status.to_string();
  EXPECT_NE(status.message().find("shutting down"), std::string::npos) << status.to_string();
  first_.reset();
  EXPECT_TRUE(drained.get());
}

TEST_F(FullRackTest, AWaitEndsWhenTheRackStops) {
  auto waiting = connect_later("second", 0, 1);
  ASSERT_TRUE(is_queued("second", 1));
  rack_.reset();
  EXPECT_FALSE(waiting.get().ok());
}

// The first in the queue gives up; the rack forgets it, and serves the one behind it.
TEST_F(FullRackTest, WhoGivesUpIsNotWaitedFor) {
  auto impatient = connect_later("impatient", 0, 2, seconds(2));
  ASSERT_TRUE(is_queued("impatient", 1));
  auto patient = connect_later("patient", 0, 1);
  ASSERT_TRUE(is_queued("patient", 1));
  EXPECT_FALSE(impatient.get().ok());
  first_.reset();
  auto connected = patient.get();
  ASSERT_TRUE(connected.ok()) << connected.status().to_string();
  expect_sums(0, 1, **connected, 10'000);
}

TEST(HierarchyTest, ParentsAskForTheirToken) {
  const auto spine = start("", 1, "spine's");
  const auto wrong = start(spine->control_address(), 1, "rack's", "guess");
  CommunicatorOptions options = options_of(0, 1, wrong->control_address());
  options.aggregator_token = "rack's";
  auto communicator = Communicator::connect(options);
  ASSERT_FALSE(communicator.ok());
  EXPECT_EQ(communicator.status().code(), ErrorCode::kPermissionDenied);
  EXPECT_NE(communicator.status().message().find("the parent of this one, says"), std::string::npos);

  const auto right = start(spine->control_address(), 1, "rack's", "spine's");
  options.aggregators = {right->control_address()};
  communicator = Communicator::connect(options);
  EXPECT_TRUE(communicator.ok()) << communicator.status().to_string();
  options.aggregator_token = "guess";
  EXPECT_EQ(Communicator::connect(options).status().code(), ErrorCode::kPermissionDenied);
}

TEST(HierarchyTest, RacksWithDifferentNumbersOfCoresAreRefused) {
  const auto spine = start("", 2);
  const auto one = start(spine->control_address(), 1), two = start(spine->control_address(), 2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto communicator =
          Communicator::connect(options_of(rank, 2, (rank == 0 ? one : two)->control_address()));
      EXPECT_EQ(communicator.status().code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(communicator.status().message().find("same --cores"), std::string::npos)
          << communicator.status().to_string();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace netsum::hierarchy_test
