// Jobs below hierarchies of aggregators, whose chunks are divided by a plan, over loopback sockets.
#include <gmock/gmock.h>

#include <barrier>

#include "session/job_testing.h"
#include "wire/mtu.h"

namespace netsum::hierarchy_shares_test {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr double kMbit = 1e6;
constexpr int kRanks = 4;
constexpr size_t kPayload = wire::payload_for_mtu(1500, 4);

struct Rates {
  double link_mbit = 0;
  bool in_switch = false;
};

std::unique_ptr<Aggregator> start(const Rates& rates, const Aggregator* parent = nullptr,
                                  const std::string& listen = "127.0.0.1:0") {
  AggregatorOptions options;
  options.listen = listen;
  options.link_rate_bps = rates.link_mbit * kMbit;
  options.in_switch = rates.in_switch;
  if (parent != nullptr) options.parent = parent->control_address();
  auto aggregator = Aggregator::start(options);
  EXPECT_TRUE(aggregator.ok()) << aggregator.status().to_string();
  return std::move(aggregator).value();
}

// One aggregator above two, each of which serves half of the ranks.
struct Hierarchy {
  explicit Hierarchy(const Rates& racks, bool in_switch = true)
      : top(start({10'000, in_switch})), left(start(racks, top.get())), right(start(racks, top.get())) {}

  std::string of(int rank) const { return (rank < kRanks / 2 ? left : right)->control_address(); }

  std::unique_ptr<Aggregator> top, left, right;
};

uint64_t counter(const Aggregator& aggregator, const std::string& name) {
  for (const AggregatorCounter& one : aggregator.status().counters) {
    if (one.name == name) return one.value;
  }
  ADD_FAILURE() << "no counter " << name;
  return 0;
}

CommunicatorOptions common() {
  CommunicatorOptions options;
  options.job = "hierarchy_shares";
  options.link_rate_bps = 100 * kMbit;
  options.shared_memory = false;
  return options;
}

TEST(HierarchySharesTest, HierarchiesSumByTheRatesOfTheirAggregators) {
  // Their links carry each share three times: for two ranks, and for the aggregator above.
  const Hierarchy slow({30}, false), fast({90}, false);
  std::barrier together(kRanks);
  run_ranks(
      kRanks, common(),
      [&](int rank, auto& communicator) {
        constexpr size_t kChunks = 2001;
        const CommunicatorStats before = communicator->stats();
        sum_and_check(*communicator, kChunks * kPayload / sizeof(int32_t));
        const CommunicatorStats after = communicator->stats();
        ASSERT_THAT(after.stripes, SizeIs(2));
        EXPECT_EQ(after.stripes[0].share, 0.25);
        EXPECT_EQ(after.stripes[1].share, 0.75);
        for (const size_t stripe : {0, 1}) {
          const auto packets =
              static_cast<double>(after.stripes[stripe].bytes_sent - before.stripes[stripe].bytes_sent) /
              (NETSUM_HEADER_BYTES + kPayload + wire::overhead_bytes(4));
          EXPECT_GT(packets, after.stripes[stripe].share * kChunks - 1.01);
        }
        EXPECT_THAT(
            communicator->describe(),
            AllOf(HasSubstr("by 2 aggregators"), Not(HasSubstr("embedded shard")),
                  HasSubstr("planned shares: aggregator " + slow.top->control_address() +
                            " (and 2 below it) 25 %"),
                  HasSubstr("WARNING: a ring would be faster, unless links between switches limit it")));
        together.arrive_and_wait();
        if (rank == 0) {
          for (const Aggregator* one : {slow.top.get(), slow.left.get(), slow.right.get()})
            EXPECT_THAT(one->status().jobs.at(0).plan, HasSubstr("planned shares"));
        }
        together.arrive_and_wait();
      },
      [&](CommunicatorOptions& options) {
        options.aggregators = {slow.of(options.rank), fast.of(options.rank)};
      });
  // Each chunk crosses the links between the levels once for each rack.
  for (const Hierarchy* one : {&slow, &fast})
    EXPECT_EQ(counter(*one->top, "contributions"), 2 * counter(*one->top, "rounds_completed"));
  EXPECT_GT(counter(*fast.top, "rounds_completed"), 2 * counter(*slow.top, "rounds_completed"));
}

TEST(HierarchySharesTest, SwitchesSumByTheRatesOfTheirUplinks) {
  const Hierarchy slow({20, true}), fast({80, true});
  run_ranks(
      kRanks, common(),
      [&](int, auto& communicator) {
        sum_and_check(*communicator, 100'000);
        ASSERT_THAT(communicator->stats().stripes, SizeIs(2));
        EXPECT_EQ(communicator->stats().stripes[0].share, 0.2);
        EXPECT_THAT(communicator->describe(), AllOf(HasSubstr("planned shares"), Not(HasSubstr("WARNING"))));
      },
      [&](CommunicatorOptions& options) {
        options.aggregators = {slow.of(options.rank), fast.of(options.rank)};
      });
}

TEST(HierarchySharesTest, OffIsEqualShares) {
  const Hierarchy slow({100}), fast({300});
  CommunicatorOptions options = common();
  options.shares = Shares::kOff;
  run_ranks(
      kRanks, options,
      [&](int, auto& communicator) {
        sum_and_check(*communicator, 100'000);
        ASSERT_THAT(communicator->stats().stripes, SizeIs(2));
        EXPECT_EQ(communicator->stats().stripes[0].share, 0.5);
        EXPECT_THAT(communicator->describe(), HasSubstr("equal shares"));
      },
      [&](CommunicatorOptions& one) {
        one.aggregators = {slow.of(one.rank), fast.of(one.rank)};
      });
}

TEST(HierarchySharesTest, FromAHierarchyToTheHostsThePlanIsMadeAnew) {
  Hierarchy slow({25, true}), fast({75, true});
  CommunicatorOptions options = common();
  options.on_failure = FailurePolicy::kFailover;
  options.root = "127.0.0.1:0";
  options.fallback_aggregators = {"hosts"};
  std::barrier together(kRanks);
  run_ranks(
      kRanks, options,
      [&](int rank, auto& communicator) {
        for (int step = 0; step < 20; ++step) {
          if (step == 10) {
            const auto stripes = communicator->stats().stripes;
            ASSERT_THAT(stripes, SizeIs(2));
            EXPECT_EQ(stripes[0].share, 0.25);
            together.arrive_and_wait();
          }
          if (step == 10 && rank == 0) {
            fast.right.reset();
            slow.top.reset();
          }
          sum_and_check(*communicator, 50'000);
        }
        EXPECT_GE(communicator->stats().failovers, 1u);
        EXPECT_THAT(communicator->describe(),
                    AllOf(HasSubstr("by 4 embedded shards"), HasSubstr("planned shares")));
        together.arrive_and_wait();
      },
      [&](CommunicatorOptions& one) {
        one.aggregators = {slow.of(one.rank), fast.of(one.rank)};
      });
}

// A hierarchy that has lost an aggregator is left out; when the other one has lost one too, the first has been repaired.
TEST(HierarchySharesTest, ALostHierarchyIsLeftOutUntilItsAggregatorHasRestarted) {
  Hierarchy first({25, true}), second({75, true});
  CommunicatorOptions options = common();
  options.on_failure = FailurePolicy::kFailover;
  options.timeout = options.failover_timeout = seconds(60);
  std::barrier together(kRanks);
  run_ranks(
      kRanks, options,
      [&](int rank, auto& communicator) {
        const auto stripes = [&] { return communicator->stats().stripes.size(); };
        const auto sum_while = [&](const std::function<void()>& happens, uint64_t failovers) {
          together.arrive_and_wait();
          std::vector<Work> works;
          std::vector<std::vector<int32_t>> data(5, std::vector<int32_t>(60'000, rank + 1));
          for (auto& one : data)
            works.push_back(communicator->all_reduce(TensorView{one.data(), one.data(), one.size()},
                                                     {.type = DataType::kInt32}));
          if (rank == 0) happens();
          for (const Work& work : works) ASSERT_TRUE(work.wait().ok()) << work.wait().to_string();
          for (const auto& one : data) EXPECT_THAT(one, Each(10));
          // They may have been finished before the loss; these cannot.
          together.arrive_and_wait();
          sum_and_check(*communicator, 100);
          EXPECT_GE(communicator->stats().failovers, failovers);
          together.arrive_and_wait();
        };
        EXPECT_EQ(stripes(), 2u);
        const std::string address = second.right->control_address();
        sum_while([&] { second.right.reset(); }, 1);
        EXPECT_EQ(stripes(), 1u) << communicator->describe();
        sum_while(
            [&] {
              second.right = start({75, true}, second.top.get(), address);
              first.top.reset();
            },
            2);
        EXPECT_EQ(stripes(), 1u) << communicator->describe();
        EXPECT_THAT(communicator->describe(), HasSubstr("user-space below user-space"));
      },
      [&](CommunicatorOptions& one) {
        one.aggregators = {first.of(one.rank), second.of(one.rank)};
      });
}

TEST(HierarchySharesTest, AHierarchyOfEachHalfOfTheRanksIsRefused) {
  const Hierarchy all({100}), left({100}), right({100});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      CommunicatorOptions options = common();
      options.rank = rank;
      options.world_size = kRanks;
      options.connect_timeout = seconds(20);
      options.aggregators = {all.of(rank), (rank < kRanks / 2 ? left : right).of(rank)};
      const Status status = Communicator::connect(options).status();
      EXPECT_THAT(status.message(),
                  AllOf(HasSubstr("rank 2"), HasSubstr("names other aggregators than rank 0"),
                        HasSubstr("with the same parents")));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace netsum::hierarchy_shares_test
