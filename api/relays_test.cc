// Ranks that sum along trees of aggregators inside them, over loopback sockets.
#include <gmock/gmock.h>

#include <unistd.h>

#include <atomic>
#include <barrier>
#include <cstdio>
#include <fstream>

#include "session/job_testing.h"

namespace netsum::relays_test {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kRanks = 4;

class RelaysTest : public ::testing::Test {
 protected:
  RelaysTest() {
    // Free when asked for. Every test has its own.
    for (std::string& one : address_) one = start_aggregator_at("127.0.0.1:0")->control_address();
  }
  ~RelaysTest() override {
    for (const std::string& file : files_) std::remove(file.c_str());
  }

  std::string write(const std::string& text) {
    files_.push_back(::testing::TempDir() + "relays_test." + std::to_string(getpid()) + "." +
                     std::to_string(files_.size()));
    std::ofstream(files_.back()) << text;
    return "plan:" + files_.back();
  }
  // Two trees: at the top of one is rank 0, and rank 2 below it; at the top of the other is rank 3.
  std::string two_trees(const std::string& rate = "30000000") {
    return write("network test.yaml\njob relays\nranks 4\ntree " + rate + "\nsum " + address_[0] +
                 " rank 0\nsum " + address_[1] + " rank 2 below " + address_[0] + "\njoin " + address_[0] +
                 " 0 1\njoin " + address_[1] + " 2 3\ntree 10000000\nsum " + address_[2] + " rank 3\njoin " +
                 address_[2] + " 0 1 2 3\n");
  }
  static CommunicatorOptions options(const std::string& plan) {
    CommunicatorOptions options;
    options.job = "relays of a test";
    options.shared_memory = false;
    options.aggregators = {plan};
    options.connect_timeout = seconds(30);
    return options;
  }

  std::string address_[4];
  std::vector<std::string> files_;
};

TEST_F(RelaysTest, RanksSumAlongTreesThroughThem) {
  const std::string plan = two_trees();
  for (const bool has_token : {false, true}) {
    CommunicatorOptions common = options(plan);
    if (has_token) common.aggregator_token = "secret";
    run_ranks(kRanks, common, [&](int rank, auto& communicator) {
      for (const size_t count : {1u, 100'000u}) sum_and_check(*communicator, count);
      const auto stripes = communicator->stats().stripes;
      ASSERT_EQ(stripes.size(), 2u);
      EXPECT_EQ(stripes[0].share, 0.75);
      EXPECT_THAT(communicator->describe(),
                  HasSubstr(rank == 2 || rank == 3 ? "user-space below user-space" : "user-space"));
      // One leaves early: the others may still need results of the aggregators inside it.
      if (rank == 0) communicator.reset();
    });
  }
}

TEST_F(RelaysTest, SumsAreVerifiedThroughRanks) {
  CommunicatorOptions common = options(two_trees());
  common.verify = Verify::kBoth;
  run_ranks(kRanks, common, [](int, auto& communicator) {
    sum_and_check(*communicator, 50'000);
    EXPECT_GT(communicator->stats().sums_verified, 0u);
  });
}

// An aggregator outside the ranks is lost: its tree is left out.
TEST_F(RelaysTest, TheLossOfATreeIsTransparent) {
  AggregatorOptions outside;
  outside.listen = address_[3];
  outside.parent = address_[0];
  auto spare = Aggregator::start(outside);
  ASSERT_TRUE(spare.ok()) << spare.status().to_string();
  const std::string plan =
      write("network test.yaml\nranks 4\ntree 20000000\nsum " + address_[0] + " rank 0\nsum " + address_[3] +
            " below " + address_[0] + "\njoin " + address_[0] + " 0 1\njoin " + address_[3] +
            " 2 3\ntree 20000000\nsum " + address_[1] + " rank 1\njoin " + address_[1] + " 0 1 2 3\n");
  CommunicatorOptions common = options(plan);
  common.on_failure = FailurePolicy::kFailover;
  common.timeout = common.failover_timeout = seconds(60);
  std::barrier together(kRanks);
  run_ranks(kRanks, common, [&](int rank, auto& communicator) {
    sum_and_check(*communicator, 50'000);
    EXPECT_EQ(communicator->stats().stripes.size(), 2u);
    together.arrive_and_wait();
    if (rank == 0) spare->reset();
    for (int step = 0; step < 5; ++step) sum_and_check(*communicator, 50'000);
    together.arrive_and_wait();
    sum_and_check(*communicator, 50'000);
    EXPECT_GE(communicator->stats().failovers, 1u);
    EXPECT_EQ(communicator->stats().stripes.size(), 1u) << "no shards beside trees";
    EXPECT_THAT(communicator->describe(), HasSubstr("by 1 aggregator (" + address_[1]));
    together.arrive_and_wait();
  });
}

TEST_F(RelaysTest, RanksWithAnotherPlanAreRefusedByItsName) {
  const std::string plan = two_trees(), older = two_trees("31000000");
  std::vector<std::thread> threads;
  std::atomic<int> named = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      CommunicatorOptions mine = options(rank % 2 == 1 ? older : plan);
      mine.rank = rank;
      mine.world_size = kRanks;
      mine.connect_timeout = seconds(3);
      const Status status = Communicator::connect(mine).status();
      EXPECT_FALSE(status.ok());
      if (status.message().find("runs the plan test.yaml ") != std::string::npos &&
          status.message().find("and the plan here is test.yaml ") != std::string::npos)
        ++named;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(named, 1);
}

TEST_F(RelaysTest, PlansThatDoNotFitAreRefusedBeforeAnythingStarts) {
  const auto why = [&](const CommunicatorOptions& common, int world_size = kRanks) {
    CommunicatorOptions mine = common;
    mine.world_size = world_size;
    return Communicator::connect(mine).status().message();
  };
  const std::string plan = two_trees();
  EXPECT_THAT(why(options(plan), 3), HasSubstr("is for 4 ranks, and job 'relays of a test' has 3"));
  CommunicatorOptions other = options(plan);
  other.job = "training";
  EXPECT_THAT(why(other), HasSubstr("is for job 'relays', and this one is 'training'"));
  other = options(plan);
  other.aggregators.push_back("127.0.0.1:1");
  EXPECT_THAT(why(other), HasSubstr("name no other beside it"));
  other = options(plan);
  other.packet_io = PacketIoKind::kAfXdp;
  EXPECT_THAT(why(other), HasSubstr("packet_io"));
  EXPECT_THAT(why(options("plan:/nowhere")), HasSubstr("'/nowhere' cannot be read"));
  EXPECT_THAT(why(options(write("network a\nranks 4\ntrees 1\n"))), HasSubstr(":3: 'trees' is unknown"));
  const auto taken = start_aggregator_at(address_[0]);
  EXPECT_THAT(why(options(plan)), AllOf(HasSubstr("inside rank 0"), HasSubstr(address_[0])));
}

}  // namespace
}  // namespace netsum::relays_test
