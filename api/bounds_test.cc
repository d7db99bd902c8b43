// Options at and beyond the ends of their ranges, end to end.
#include <gmock/gmock.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "netsum/netsum.h"
#include "session/job_testing.h"
#include "wire/mtu.h"

namespace netsum::bounds_test {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kForever = milliseconds::max();

CommunicatorOptions patient() {
  CommunicatorOptions options;
  options.connect_timeout = options.timeout = options.liveness_timeout = options.failover_timeout = kForever;
  return options;
}

void sum_patiently(int rank, Communicator& communicator) {
  std::vector<int32_t> numbers(3000, rank + 1);
  AllReduceOptions how;
  how.type = DataType::kInt32;
  how.timeout = kForever;
  const Work work = communicator.all_reduce(TensorView{numbers.data(), numbers.data(), numbers.size()}, how);
  const Status status = work.wait(kForever);
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(numbers.back(), 3);
  EXPECT_TRUE(communicator.barrier(kForever).ok());
}

TEST(Bounds, TheLongestTimeoutsThereAre) {
  AggregatorOptions options;
  options.listen = "127.0.0.1:0";
  options.join_timeout = kForever;
  options.in_switch = true;  // sums all
  const auto aggregator = Aggregator::start(options);
  ASSERT_TRUE(aggregator.ok()) << aggregator.status().to_string();
  for (const bool shared_memory : {true, false}) {
    CommunicatorOptions common = patient();
    common.aggregators = {(*aggregator)->control_address()};
    common.shared_memory = shared_memory;
    run_ranks(2, common, [](int rank, auto& communicator) { sum_patiently(rank, *communicator); });
  }
  CommunicatorOptions with_failover = patient();
  with_failover.aggregators = {(*aggregator)->control_address()};
  with_failover.on_failure = FailurePolicy::kFailover;
  run_ranks(2, with_failover, [](int rank, auto& communicator) { sum_patiently(rank, *communicator); });
  EXPECT_TRUE((*aggregator)->drain(kForever));
}

TEST(Bounds, TheLongestTimeoutsOfARegroup) {
  CommunicatorOptions common = patient();
  common.root = "127.0.0.1:0";
  run_ranks(2, common, [](int rank, auto& communicator) {
    RegroupOptions options;
    options.timeout = options.gather = kForever;
    options.min_members = 2;
    const auto regrouped = communicator->regroup(options);
    ASSERT_TRUE(regrouped.ok()) << regrouped.status().to_string();
    sum_patiently(rank, *communicator);
  });
}

TEST(Bounds, TheLongestTimeoutsInC) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  const std::string address = aggregator->control_address();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      netsum_comm_options options{};
      options.struct_size = sizeof options;
      options.rank = rank;
      options.world_size = 2;
      options.aggregators = address.c_str();
      options.connect_timeout_ms = options.timeout_ms = options.liveness_timeout_ms = INT64_MAX;
      netsum_comm* comm = nullptr;
      ASSERT_EQ(netsum_comm_connect(&options, &comm), NETSUM_OK) << netsum_last_error();
      int32_t number = rank + 1;
      netsum_work* work = nullptr;
      EXPECT_EQ(netsum_all_reduce(comm, &number, &number, 1, NETSUM_INT32, NETSUM_SUM, INT64_MAX, &work),
                NETSUM_OK);
      EXPECT_EQ(netsum_work_wait(work, INT64_MAX), NETSUM_OK) << netsum_last_error();
      EXPECT_EQ(number, 3);
      netsum_work_free(work);
      EXPECT_EQ(netsum_barrier(comm, INT64_MAX), NETSUM_OK) << netsum_last_error();
      netsum_comm_close(comm);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(Bounds, NegativeTimeoutsAreRefused) {
  for (milliseconds CommunicatorOptions::*timeout :
       {&CommunicatorOptions::connect_timeout, &CommunicatorOptions::timeout,
        &CommunicatorOptions::liveness_timeout}) {
    CommunicatorOptions options;
    options.root = "127.0.0.1:0";
    options.*timeout = milliseconds::min();
    const auto communicator = Communicator::connect(options);
    ASSERT_FALSE(communicator.ok());
    EXPECT_EQ(communicator.status().code(), ErrorCode::kInvalidArgument);
  }
}

TEST(Bounds, TheSmallestPacketsWorkAndSmallerOnesAreRefused) {
  for (const char* listen : {"127.0.0.1:0", "[::1]:0"}) {
    const auto aggregator = start_aggregator_at(listen);
    CommunicatorOptions common;
    common.aggregators = {aggregator->control_address()};
    common.shared_memory = false;
    common.mtu = wire::kMinMtu;
    run_ranks(2, common, [](int rank, auto& communicator) { sum_patiently(rank, *communicator); });
    common.mtu = wire::kMinMtu - 1;
    const auto refused = Communicator::connect(common);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.status().message(), testing::HasSubstr("it must be a whole number from 144 to 9000"));
  }
}

}  // namespace
}  // namespace netsum::bounds_test
