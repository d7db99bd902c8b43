// Jobs whose chunks are divided by a plan: aggregators and embedded shards sum together.
#include <gmock/gmock.h>

#include <barrier>
#include <cmath>
#include <numeric>

#include "session/job_testing.h"
#include "wire/mtu.h"

namespace netsum::shares_test {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr double kMbit = 1e6;
constexpr int kRanks = 4;
constexpr size_t kPayload = wire::payload_for_mtu(1500, 4);
constexpr double kPacket = NETSUM_HEADER_BYTES + kPayload + wire::overhead_bytes(4);

std::unique_ptr<Aggregator> start_aggregator(double mbit, bool in_switch = false) {
  AggregatorOptions options;
  options.listen = "127.0.0.1:0";
  options.link_rate_bps = mbit * kMbit;
  options.in_switch = in_switch;
  auto aggregator = Aggregator::start(options);
  EXPECT_TRUE(aggregator.ok()) << aggregator.status().to_string();
  return std::move(aggregator).value();
}

CommunicatorOptions options_at(std::initializer_list<const Aggregator*> aggregators) {
  CommunicatorOptions options;
  options.job = "shares";
  for (const Aggregator* aggregator : aggregators)
    options.aggregators.push_back(aggregator->control_address());
  options.link_rate_bps = 100 * kMbit;
  options.shared_memory = false;
  return options;
}

TEST(SharesTest, AggregatorsAndShardsSumOneJobByTheirWeights) {
  const auto slow = start_aggregator(25), fast = start_aggregator(100);
  std::barrier summed(kRanks);
  run_ranks(kRanks, options_at({slow.get(), fast.get()}), [&](int rank, auto& communicator) {
    // Chunks of whole packets; not a multiple of any period.
    constexpr size_t kChunks = 3001;
    const CommunicatorStats before = communicator->stats();
    sum_and_check(*communicator, kChunks * kPayload / sizeof(int32_t));
    summed.arrive_and_wait();
    const CommunicatorStats after = communicator->stats();
    ASSERT_THAT(after.stripes, SizeIs(2 + kRanks));
    EXPECT_NEAR(after.stripes[1].share / after.stripes[0].share, 4, 0.5) << "as their links";
    double all = 0;
    for (size_t i = 0; i < after.stripes.size(); ++i) {
      const auto& stripe = after.stripes[i];
      all += stripe.share;
      EXPECT_EQ(stripe.local, i == 2 + static_cast<size_t>(rank));
      // To one chunk, the scale packets, which together are smaller than one of data, and what was sent again.
      const auto packets = static_cast<double>(stripe.bytes_sent - before.stripes[i].bytes_sent) / kPacket;
      const auto again = static_cast<double>(after.retransmissions + after.probes);
      EXPECT_GT(packets, stripe.share * kChunks - 1.01) << i;
      EXPECT_LT(packets, stripe.share * kChunks + 2.01 + again) << i;
    }
    EXPECT_NEAR(all, 1, 1e-9);
    EXPECT_THAT(
        communicator->describe(),
        AllOf(HasSubstr("by 2 aggregators"), HasSubstr("4 embedded shards"), HasSubstr("planned shares"),
              HasSubstr("times as fast as a ring"), HasSubstr("bottleneck")));
  });
  ASSERT_THAT(slow->status().jobs, SizeIs(0));
}

TEST(SharesTest, TheFirstAggregatorShowsThePlan) {
  const auto first = start_aggregator(0), second = start_aggregator(0);
  std::barrier connected(kRanks);
  run_ranks(kRanks, options_at({first.get(), second.get()}), [&](int rank, auto&) {
    connected.arrive_and_wait();
    if (rank == 0) {
      EXPECT_THAT(first->status().jobs.at(0).plan,
                  AllOf(HasSubstr("planned shares"), HasSubstr(second->control_address()),
                        HasSubstr("2 links are taken as 100 Mbit/s")));
      EXPECT_EQ(second->status().jobs.at(0).plan, "");
    }
    connected.arrive_and_wait();
  });
}

TEST(SharesTest, InASwitchTheAggregatorSumsAll) {
  const auto tor = start_aggregator(0, true);
  run_ranks(kRanks, options_at({tor.get()}), [&](int, auto& communicator) {
    sum_and_check(*communicator, 100'000);
    EXPECT_THAT(communicator->stats().stripes, SizeIs(1));
    EXPECT_EQ(communicator->stats().shard_bytes_received, 0u);
    EXPECT_THAT(communicator->describe(), Not(HasSubstr("shard")));
  });
}

TEST(SharesTest, WhatIsTooSlowToHelpIsNotOpened) {
  const auto usable = start_aggregator(100), useless = start_aggregator(0.01);
  run_ranks(kRanks, options_at({usable.get(), useless.get()}), [&](int, auto& communicator) {
    sum_and_check(*communicator, 100'000);
    ASSERT_THAT(communicator->stats().stripes, SizeIs(1 + kRanks));
    for (const auto& stripe : communicator->stats().stripes) EXPECT_GT(stripe.share, 0);
    EXPECT_THAT(communicator->describe(), HasSubstr(useless->control_address() + " 0 %"));
  });
  for (const AggregatorCounter& counter : useless->status().counters) {
    if (counter.name == "packets_received") {
      EXPECT_EQ(counter.value, 0u);
    }
  }
}

TEST(SharesTest, UnequalRanksWithoutAggregatorSumInProportion) {
  CommunicatorOptions options = options_at({});
  options.root = "127.0.0.1:0";
  run_ranks(
      kRanks, options,
      [&](int, auto& communicator) {
        sum_and_check(*communicator, 100'000);
        const auto stripes = communicator->stats().stripes;
        ASSERT_THAT(stripes, SizeIs(kRanks));
        EXPECT_LT(stripes[0].share, stripes[3].share);
        EXPECT_THAT(communicator->describe(),
                    AllOf(HasSubstr("4 embedded shards"), HasSubstr("planned shares")));
      },
      [](CommunicatorOptions& one) { one.link_rate_bps = (one.rank < 2 ? 60 : 100) * kMbit; });
}

TEST(SharesTest, RanksOfOneHostAndOtherHosts) {
  const auto spare = start_aggregator(100);
  CommunicatorOptions options = options_at({spare.get()});
  options.shared_memory = true;
  run_ranks(
      kRanks, options,
      [&](int, auto& communicator) {
        sum_and_check(*communicator, 100'000);
        EXPECT_THAT(communicator->describe(),
                    AllOf(HasSubstr("shared memory"), HasSubstr("2 embedded shards")));
      },
      [](CommunicatorOptions& one) { one.host = one.rank < 2 ? "low" : "high"; });
}

TEST(SharesTest, SharesArePlannedByDefault) {
  EXPECT_EQ(CommunicatorOptions().shares, Shares::kAuto);
}

TEST(SharesTest, OffIsEqualSharesAndWarns) {
  const auto first = start_aggregator(100), second = start_aggregator(400);
  CommunicatorOptions options = options_at({first.get(), second.get()});
  options.shares = Shares::kOff;
  run_ranks(kRanks, options, [&](int, auto& communicator) {
    sum_and_check(*communicator, 100'000);
    ASSERT_THAT(communicator->stats().stripes, SizeIs(2));
    EXPECT_EQ(communicator->stats().stripes[0].share, 0.5);
    EXPECT_THAT(communicator->describe(), HasSubstr("a ring would be faster"));
  });
}

TEST(SharesTest, ThePlanMovesWithTheJob) {
  auto lost = start_aggregator(100);
  const auto next = start_aggregator(100);
  CommunicatorOptions options = options_at({lost.get()});
  options.on_failure = FailurePolicy::kFailover;
  options.fallback_aggregators = {next->control_address()};
  std::barrier together(kRanks);
  run_ranks(kRanks, options, [&](int rank, auto& communicator) {
    for (int step = 0; step < 40; ++step) {
      if (step == 10) together.arrive_and_wait();
      if (step == 10 && rank == 0) lost.reset();
      sum_and_check(*communicator, 50'000);
    }
    EXPECT_EQ(communicator->stats().failovers, 1u);
    EXPECT_THAT(communicator->describe(),
                AllOf(HasSubstr("planned shares"), HasSubstr(next->control_address())));
    EXPECT_THAT(communicator->stats().stripes, SizeIs(1 + kRanks));
    together.arrive_and_wait();
  });
}

TEST(SharesTest, ToTheHostsWhenTheAggregatorIsLost) {
  auto lost = start_aggregator(100);
  CommunicatorOptions options = options_at({lost.get()});
  options.on_failure = FailurePolicy::kFailover;
  options.root = "127.0.0.1:0";
  options.fallback_aggregators = {"hosts"};
  std::barrier together(kRanks);
  run_ranks(kRanks, options, [&](int rank, auto& communicator) {
    for (int step = 0; step < 20; ++step) {
      if (step == 10) together.arrive_and_wait();
      if (step == 10 && rank == 0) lost.reset();
      sum_and_check(*communicator, 50'000);
    }
    EXPECT_THAT(communicator->describe(), HasSubstr("by 4 embedded shards"));
    together.arrive_and_wait();
  });
}

Status connect_error(const CommunicatorOptions& common,
                     const std::function<void(CommunicatorOptions&)>& edit) {
  std::vector<std::thread> threads;
  std::vector<Status> errors(2);
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      CommunicatorOptions options = common;
      options.rank = rank;
      options.world_size = 2;
      options.connect_timeout = seconds(rank == 0 ? 3 : 2);
      edit(options);
      errors[static_cast<size_t>(rank)] = Communicator::connect(options).status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(errors[0].ok());
  return errors[1];
}

TEST(SharesTest, RefusesWhatRanksDisagreeOn) {
  const auto first = start_aggregator(0), second = start_aggregator(0);
  const CommunicatorOptions options = options_at({first.get(), second.get()});
  EXPECT_THAT(connect_error(options,
                            [](CommunicatorOptions& one) {
                              if (one.rank == 1) std::swap(one.aggregators[0], one.aggregators[1]);
                            })
                  .message(),
              HasSubstr("missing: rank 0"));
  const auto third = start_aggregator(0);
  EXPECT_THAT(connect_error(options,
                            [&](CommunicatorOptions& one) {
                              if (one.rank == 1) one.aggregators[1] = third->control_address();
                            })
                  .message(),
              HasSubstr("names other aggregators than rank"));
  EXPECT_THAT(connect_error(options,
                            [&](CommunicatorOptions& one) {
                              one.aggregators = {one.aggregators[0], one.aggregators[0]};
                            })
                  .message(),
              HasSubstr("are the same aggregator: name it once"));
}

TEST(SharesTest, AnAggregatorThatNobodyReachesIsNamed) {
  const auto first = start_aggregator(0);
  std::string gone;
  { gone = start_aggregator(0)->control_address(); }
  CommunicatorOptions options = options_at({first.get()});
  options.aggregators.push_back(gone);
  const Status error = connect_error(options, [](CommunicatorOptions&) {});
  EXPECT_EQ(error.code(), ErrorCode::kUnreachable);
  EXPECT_THAT(error.message(), HasSubstr(gone));
  EXPECT_THAT(first->status().jobs, SizeIs(0)) << "no job starts half-planned";
}

TEST(SharesTest, RefusesAbsurdRates) {
  CommunicatorOptions options;
  options.aggregators = {"127.0.0.1:1"};
  for (const double bad : {-1.0, 1.0, 1e15, std::nan("")}) {
    options.link_rate_bps = bad;
    EXPECT_THAT(Communicator::connect(options).status().message(), HasSubstr("link_rate_bps")) << bad;
    AggregatorOptions aggregator;
    aggregator.listen = "127.0.0.1:0";
    aggregator.link_rate_bps = bad;
    EXPECT_THAT(Aggregator::start(aggregator).status().message(), HasSubstr("link_rate_bps")) << bad;
    aggregator.link_rate_bps = 0;
    aggregator.sum_rate_bps = bad;
    EXPECT_THAT(Aggregator::start(aggregator).status().message(), HasSubstr("sum_rate_bps")) << bad;
  }
}

}  // namespace
}  // namespace netsum::shares_test
