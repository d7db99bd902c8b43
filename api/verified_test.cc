// Verified sums from connect() to the error: on all data paths, with an aggregator that flips bits, and by failover.
#include <gmock/gmock.h>

#include <atomic>
#include <mutex>

#include "netsum/netsum.h"
#include "netsum/sparse.h"
#include "session/job_testing.h"
#include "src/base/rng.h"

namespace netsum::verified_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kFlips = 0.02;

std::unique_ptr<Aggregator> start_aggregator_below(const std::string& parent) {
  AggregatorOptions options;
  options.listen = "127.0.0.1:0";
  options.in_switch = true;
  options.parent = parent;
  auto aggregator = Aggregator::start(options);
  EXPECT_TRUE(aggregator.ok()) << aggregator.status().to_string();
  return aggregator.ok() ? std::move(aggregator).value() : nullptr;
}

// Of whose sums one in fifty has a flipped bit, but none of the first fifty: the ranks can connect.
std::unique_ptr<Aggregator> start_faulty_aggregator(
    const std::string& parent = "", std::function<void(const AggregatorEvent&)> on_event = nullptr) {
  AggregatorOptions options;
  options.on_event = std::move(on_event);
  options.listen = "127.0.0.1:0";
  options.in_switch = true;
  options.parent = parent;
  options.inject.flipped_bits = kFlips;
  const auto right_at_first = [](uint64_t seed) {
    Rng rng(seed);
    for (int sum = 0; sum < 50; ++sum)
      if (rng.chance(kFlips)) return false;
    return true;
  };
  while (!right_at_first(options.inject.seed)) ++options.inject.seed;
  auto aggregator = Aggregator::start(options);
  EXPECT_TRUE(aggregator.ok()) << aggregator.status().to_string();
  return aggregator.ok() ? std::move(aggregator).value() : nullptr;
}

uint64_t counter_of(const Aggregator& aggregator, const std::string& name) {
  for (const AggregatorCounter& counter : aggregator.status().counters)
    if (counter.name == name) return counter.value;
  ADD_FAILURE() << "the aggregator has no counter " << name;
  return 0;
}

// Adds up what a rank has recorded, all of which must be about the only stripe of `aggregator`.
uint64_t wrong_sums_of(const CommunicatorStats& stats, const Aggregator& aggregator) {
  uint64_t results = 0;
  for (const CommunicatorStats::WrongSums& wrong : stats.wrong_sums) {
    EXPECT_EQ(wrong.aggregator, aggregator.control_address());
    EXPECT_EQ(wrong.stripe, 0u);
    EXPECT_EQ(wrong.address, aggregator.status().data_addresses.at(0));
    EXPECT_GT(wrong.results, 0u);
    results += wrong.results;
  }
  EXPECT_LE(stats.wrong_sums.size(), 1u);
  return results;
}

CommunicatorOptions options_for(const std::string& aggregator) {
  CommunicatorOptions options;
  options.job = "verified";
  options.verify = Verify::kBoth;
  options.shared_memory = false;
  if (aggregator.empty()) {
    options.root = "127.0.0.1:0";
  } else {
    options.aggregators = {aggregator};
  }
  return options;
}

// Sums numbers whose sums are exact. *right becomes false if one is wrong.
Status sum_exact(Communicator& communicator, size_t count, bool* right) {
  const int world = communicator.world_size();
  std::vector<float> data(count);
  for (size_t i = 0; i < count; ++i)
    data[i] = static_cast<float>(communicator.rank() + static_cast<int>(i % 100));
  const Status status = communicator.all_reduce(TensorView{data.data(), data.data(), count}, {}).wait();
  if (!status.ok()) return status;
  for (size_t i = 0; i < count; ++i)
    *right &= data[i] == static_cast<float>(world * (world - 1) / 2 + world * static_cast<int>(i % 100));
  return status;
}

// Indices of what is not zero, and bytes, are sums as well.
void sum_sparse_and_broadcast(Communicator& communicator) {
  std::vector<float> values(50'000);
  for (size_t i = 0; i < values.size(); i += 500) values[i] = static_cast<float>(communicator.rank() + 1);
  Status status = sparse_all_reduce(communicator, TensorView{values.data(), values.data(), values.size()},
                                    {.mode = SparseMode::kOn})
                      .wait();
  ASSERT_TRUE(status.ok()) << status.to_string();
  const int world = communicator.world_size();
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(values[i], i % 500 == 0 ? static_cast<float>(world * (world + 1) / 2) : 0.0f) << i;

  std::vector<uint8_t> bytes(30'001, static_cast<uint8_t>(communicator.rank()));
  const BufferView buffer{bytes.data(), bytes.data(), bytes.size()};
  status = communicator.broadcast(std::span(&buffer, 1), world - 1, {}).wait();
  ASSERT_TRUE(status.ok()) << status.to_string();
  ASSERT_EQ(bytes, std::vector<uint8_t>(bytes.size(), static_cast<uint8_t>(world - 1)));
}

void expect_verified(CommunicatorOptions options, int ranks,
                     const std::function<void(CommunicatorOptions&)>& edit = nullptr) {
  for (const Verify verify : {Verify::kBoth, Verify::kSum}) {
    options.verify = verify;
    run_ranks(
        ranks, options,
        [verify](int, std::unique_ptr<Communicator>& communicator) {
          for (const size_t count : {size_t{1}, size_t{356}, size_t{357}, size_t{5'000}, size_t{300'000}})
            sum_and_check(*communicator, count);
          sum_sparse_and_broadcast(*communicator);
          const auto says_no_tags = HasSubstr("the ranks verify every sum, and packets have no tags");
          EXPECT_THAT(communicator->describe(), HasSubstr("the ranks verify every sum"));
          if (verify == Verify::kSum) {
            EXPECT_THAT(communicator->describe(), says_no_tags);
          } else {
            EXPECT_THAT(communicator->describe(), Not(says_no_tags));
          }
          const CommunicatorStats stats = communicator->stats();
          EXPECT_GT(stats.sums_verified, 100u);
          EXPECT_EQ(stats.sums_refused, 0u);
          EXPECT_TRUE(stats.wrong_sums.empty());
          for (const CommunicatorStats::Drop& drop : stats.drops)
            EXPECT_TRUE(drop.reason != "bad_check" || drop.packets == 0) << drop.packets;
        },
        edit);
  }
}

TEST(VerifiedSums, AtAnAggregator) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  expect_verified(options_for(aggregator->control_address()), 3);
}

TEST(VerifiedSums, ByEmbeddedShards) {
  expect_verified(options_for(""), 3);
}

TEST(VerifiedSums, BetweenHostsOfSeveralRanks) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  CommunicatorOptions options = options_for(aggregator->control_address());
  options.shared_memory = true;
  expect_verified(options, 4, [](CommunicatorOptions& mine) { mine.host = std::to_string(mine.rank / 2); });
}

// Ranks 0 and 3 at the top, rank 1 in the middle, the others at the bottom.
TEST(VerifiedSums, InAHierarchyOfThreeLevels) {
  const auto top = start_aggregator_at("127.0.0.1:0");
  const auto middle = start_aggregator_below(top->control_address());
  const auto bottom = start_aggregator_below(middle->control_address());
  expect_verified(options_for(top->control_address()), 5, [&](CommunicatorOptions& mine) {
    const auto& joins = mine.rank % 3 == 0 ? top : mine.rank == 1 ? middle : bottom;
    mine.aggregators = {joins->control_address()};
  });
}

// On all ranks, also on those that have no part in the network; and the job goes on.
TEST(VerifiedSums, WhatIsNoSumIsRefused) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  for (const bool shared_memory : {false, true}) {
    CommunicatorOptions options = options_for(aggregator->control_address());
    options.shared_memory = shared_memory;
    run_ranks(
        3, options,
        [](int, std::unique_ptr<Communicator>& communicator) {
          int32_t element = 1;
          const TensorView view{&element, &element, 1};
          const Status status =
              communicator->all_reduce(view, {.type = DataType::kInt32, .op = ReduceOp::kMax}).wait();
          EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
          EXPECT_THAT(status.message(), HasSubstr("verifies all results"));
          sum_and_check(*communicator, 10);
        },
        [](CommunicatorOptions& mine) { mine.host = std::to_string(mine.rank / 2); });
  }
}

TEST(VerifiedSums, LanesOf8BitsAreRefused) {
  CommunicatorOptions options = options_for("127.0.0.1:1");
  options.lane_bits = 8;
  const auto communicator = Communicator::connect(options);
  EXPECT_EQ(communicator.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(communicator.status().message(), HasSubstr("lane_bits is 8 and verify is not kPacket"));
}

void expect_told(Verify one, Verify other, const std::string& says) {
  auto aggregator = start_aggregator_at("127.0.0.1:0");
  const std::string address = aggregator->control_address();
  std::vector<Status> ends(2);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      CommunicatorOptions options = options_for(address);
      options.rank = static_cast<int>(rank);
      options.world_size = 2;
      options.verify = rank == 0 ? one : other;
      ends[rank] = Communicator::connect(options).status();
      // The other one need not wait for longer.
      if (ends[rank].code() == ErrorCode::kInvalidArgument) aggregator.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  const size_t refused = ends[0].code() == ErrorCode::kInvalidArgument ? 0 : 1;
  EXPECT_EQ(ends[refused].code(), ErrorCode::kInvalidArgument) << ends[refused].to_string();
  EXPECT_THAT(ends[refused].message(), HasSubstr("was created with verify "));
  EXPECT_THAT(ends[refused].message(), HasSubstr(says));
  EXPECT_FALSE(ends[1 - refused].ok());
}

TEST(VerifiedSums, RanksThatDifferInItAreTold) {
  expect_told(Verify::kBoth, Verify::kPacket, "packet");
  expect_told(Verify::kBoth, Verify::kSum, "sum");
  expect_told(Verify::kPacket, Verify::kSum, "sum");
}

TEST(VerifiedSums, BitsAreFlippedOnPurposeOnlyWhereThatIsPossible) {
  AggregatorOptions options;
  options.listen = "127.0.0.1:0";
  options.inject.flipped_bits = 1.5;
  EXPECT_EQ(Aggregator::start(options).status().code(), ErrorCode::kInvalidArgument);
  options.inject.flipped_bits = 0.5;
  for (const DataplaneKind other : {DataplaneKind::kXdp, DataplaneKind::kP4}) {
    options.dataplane = other;
    const Status status = Aggregator::start(options).status();
    EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(status.message(), HasSubstr("--inject-flips"));
  }
}

// The same fault without verified sums: some sums are wrong, and nobody knows.
TEST(VerifiedSums, WithoutThemFlippedBitsAreDelivered) {
  const auto aggregator = start_faulty_aggregator();
  CommunicatorOptions options = options_for(aggregator->control_address());
  options.verify = Verify::kPacket;
  std::atomic<int> wrong = 0;
  run_ranks(2, options, [&](int, std::unique_ptr<Communicator>& communicator) {
    EXPECT_THAT(communicator->describe(), Not(HasSubstr("verify")));
    for (int i = 0; i < 40; ++i) {
      bool right = true;
      if (!sum_exact(*communicator, 5'000, &right).ok()) return;
      wrong += right ? 0 : 1;
    }
  });
  EXPECT_GT(wrong, 0);
}

class FlippedBits : public ::testing::TestWithParam<Verify> {};

TEST_P(FlippedBits, AreFoundAndSaidWhere) {
  const auto aggregator = start_faulty_aggregator();
  CommunicatorOptions options = options_for(aggregator->control_address());
  options.verify = GetParam();
  std::mutex mutex;
  std::vector<Status> ends;
  uint64_t recorded = 0;
  run_ranks(3, options, [&](int, std::unique_ptr<Communicator>& communicator) {
    Status status;
    bool right = true;
    for (int i = 0; i < 1'000 && status.ok(); ++i) status = sum_exact(*communicator, 5'000, &right);
    EXPECT_TRUE(right);
    const std::lock_guard lock(mutex);
    ends.push_back(status);
    const CommunicatorStats stats = communicator->stats();
    EXPECT_EQ(wrong_sums_of(stats, *aggregator), stats.sums_refused);
    recorded += stats.sums_refused;
    // A second look counts nothing twice.
    EXPECT_EQ(wrong_sums_of(communicator->stats(), *aggregator), stats.sums_refused);
  });
  ASSERT_EQ(ends.size(), 3u);
  for (const Status& status : ends) {
    EXPECT_EQ(status.code(), ErrorCode::kWrongSum) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("by the aggregator at 127.0.0.1:"));
    EXPECT_THAT(status.message(), HasSubstr("(stripe 0, "));
  }
  EXPECT_GT(recorded, 0u);
  EXPECT_GT(counter_of(*aggregator, "injected_flips"), 0u);
  EXPECT_EQ(counter_of(*aggregator, "jobs_failed_wrong_sum"), 1u);
  EXPECT_EQ(counter_of(*aggregator, "jobs_failed_peer_lost"), 0u);
}

// Whoever is at fault, every rank refuses what is wrong for it, and none takes it for a sum.
TEST_P(FlippedBits, AreFoundInAHierarchy) {
  for (const bool at_top : {false, true}) {
    SCOPED_TRACE(at_top ? "at the top" : "in a rack");
    const auto top = at_top ? start_faulty_aggregator() : start_aggregator_at("127.0.0.1:0");
    const auto faulty_rack = at_top ? start_aggregator_below(top->control_address())
                                    : start_faulty_aggregator(top->control_address());
    const auto rack = start_aggregator_below(top->control_address());
    CommunicatorOptions options = options_for(top->control_address());
    options.verify = GetParam();
    std::mutex mutex;
    std::vector<Status> ends;
    const auto body = [&](int, std::unique_ptr<Communicator>& communicator) {
      Status status;
      bool right = true;
      for (int i = 0; i < 1'000 && status.ok(); ++i) status = sum_exact(*communicator, 5'000, &right);
      EXPECT_TRUE(right);
      const std::lock_guard lock(mutex);
      ends.push_back(status);
    };
    run_ranks(4, options, body, [&](CommunicatorOptions& mine) {
      mine.aggregators = {(mine.rank < 2 ? faulty_rack : rack)->control_address()};
    });
    ASSERT_EQ(ends.size(), 4u);
    for (const Status& status : ends) {
      EXPECT_EQ(status.code(), ErrorCode::kWrongSum) << status.to_string();
      EXPECT_THAT(status.message(), HasSubstr(", or one above, below or beside it (stripe 0, "));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(VerifiedSums, FlippedBits, ::testing::Values(Verify::kBoth, Verify::kSum));

// Bits flip in what a rank has received. The tag of its packet tells, or that of the sum.
TEST_P(FlippedBits, InReceivedPacketsAreNotDelivered) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  constexpr int kJobs = 10, kRanks = 3, kSums = 40;
  // Without tags of packets, a bit in a header or in scales may end the job, also while it is opened.
  const double flips = GetParam() == Verify::kBoth ? 0.02 : 0.002;
  std::mutex mutex;
  int whole = 0;
  uint64_t bad_checks = 0, refused = 0;
  for (int job = 0; job < kJobs; ++job) {
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        CommunicatorOptions options = options_for(aggregator->control_address());
        options.job += std::to_string(job);
        options.rank = rank;
        options.world_size = kRanks;
        options.verify = GetParam();
        options.inject = {.seed = static_cast<uint64_t>(100 * job), .flipped_bits = flips};
        const auto communicator = Communicator::connect(options);
        Status status = communicator.status();
        bool right = true;
        for (int i = 0; i < kSums && status.ok(); ++i) status = sum_exact(**communicator, 5'000, &right);
        EXPECT_TRUE(right);
        const std::lock_guard lock(mutex);
        if (GetParam() == Verify::kBoth) {
          EXPECT_TRUE(status.ok()) << status.to_string();
        }
        whole += status.ok() ? 1 : 0;
        if (!communicator.ok()) return;
        const CommunicatorStats stats = (*communicator)->stats();
        refused += stats.sums_refused;
        for (const CommunicatorStats::Drop& drop : stats.drops)
          if (drop.reason == "bad_check") bad_checks += drop.packets;
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
  EXPECT_GT(whole, kRanks * kJobs / 4);
  if (GetParam() == Verify::kBoth) {
    EXPECT_GT(bad_checks, 0u);  // in mode sum, few of the bits are those of the cookie
    EXPECT_EQ(refused, 0u);
  } else {
    EXPECT_GT(refused, 0u);
  }
}

// The job moves to the hosts, once, though the aggregator is still there.
TEST(VerifiedSums, FailoverLeavesAnAggregatorWhoseSumsAreWrong) {
  std::mutex mutex;
  std::vector<std::string> reasons;  // of failed jobs, in the aggregator's log
  const auto aggregator = start_faulty_aggregator("", [&](const AggregatorEvent& event) {
    const std::lock_guard lock(mutex);
    if (event.kind == AggregatorEvent::Kind::kJobFailed) reasons.push_back(event.reason);
  });
  CommunicatorOptions options = options_for(aggregator->control_address());
  options.root = "127.0.0.1:0";
  options.on_failure = FailurePolicy::kFailover;
  options.fallback_aggregators = {"hosts"};
  uint64_t recorded = 0;
  run_ranks(3, options, [&](int rank, std::unique_ptr<Communicator>& communicator) {
    bool right = true;
    for (int i = 0; i < 40; ++i) {
      const Status status = sum_exact(*communicator, 5'000, &right);
      ASSERT_TRUE(status.ok()) << "rank " << rank << ": " << status.to_string();
    }
    EXPECT_TRUE(right);
    EXPECT_EQ(communicator->stats().failovers, 1u);
    EXPECT_THAT(communicator->describe(), HasSubstr("embedded shards"));
    // The record is kept, though the counts of the session begin anew.
    const CommunicatorStats stats = communicator->stats();
    EXPECT_EQ(stats.sums_refused, 0u);
    const std::lock_guard lock(mutex);
    recorded += wrong_sums_of(stats, *aggregator);
  });
  EXPECT_GT(recorded, 0u);
  EXPECT_EQ(counter_of(*aggregator, "jobs_failed_wrong_sum"), 1u);
  const std::lock_guard lock(mutex);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_THAT(reasons[0], HasSubstr("wrong_sum: "));
  EXPECT_THAT(reasons[0], HasSubstr("by the aggregator at " + aggregator->status().data_addresses.at(0) +
                                    " (stripe 0, "));
}

TEST(VerifiedSums, InC) {
  const auto aggregator = start_faulty_aggregator();
  const std::string address = aggregator->control_address();
  std::atomic<uint64_t> recorded = 0;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      netsum_comm_options options = {};
      options.struct_size = sizeof options;
      options.rank = rank;
      options.world_size = 2;
      options.aggregators = address.c_str();
      options.no_shared_memory = 1;
      options.verify = NETSUM_VERIFY_BOTH;
      netsum_comm* comm = nullptr;
      ASSERT_EQ(netsum_comm_connect(&options, &comm), NETSUM_OK) << netsum_last_error();
      std::vector<float> data(5'000);
      int code = NETSUM_OK;
      for (int i = 0; i < 1'000 && code == NETSUM_OK; ++i) {
        netsum_work* work = nullptr;
        ASSERT_EQ(netsum_all_reduce(comm, data.data(), data.data(), data.size(), NETSUM_FLOAT32, NETSUM_SUM,
                                    0, &work),
                  NETSUM_OK);
        code = netsum_work_wait(work, -1);
        netsum_work_free(work);
      }
      EXPECT_EQ(code, NETSUM_WRONG_SUM);
      netsum_wrong_sums wrong[2] = {};
      const size_t stripes = netsum_comm_wrong_sums(comm, wrong, 2);
      EXPECT_LE(stripes, 1u);
      if (stripes == 1) {
        EXPECT_STREQ(wrong[0].aggregator, address.c_str());
        EXPECT_EQ(wrong[0].address, aggregator->status().data_addresses.at(0));
        EXPECT_EQ(wrong[0].stripe, 0u);
        recorded += wrong[0].results;
      }
      netsum_comm_close(comm);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_GT(recorded, 0u);
}

}  // namespace
}  // namespace netsum::verified_test
