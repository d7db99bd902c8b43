// Ranks that wait for their operations in different ways, over the network and in shared memory.
#include <gtest/gtest.h>

#include <future>
#include <random>
#include <thread>

#include "netsum/netsum.h"
#include "session/job_testing.h"

namespace netsum::waiting_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kPatience{60};  // only a hang makes it this long

struct Sum {
  std::vector<int32_t> data;
  Work work;
};

Sum start_sum(Communicator& communicator, size_t count, int round) {
  Sum sum;
  for (size_t i = 0; i < count; ++i)
    sum.data.push_back(communicator.rank() * 7 + round + static_cast<int32_t>(i));
  sum.work = communicator.all_reduce(TensorView{sum.data.data(), sum.data.data(), count},
                                     {.type = DataType::kInt32, .timeout = kPatience});
  return sum;
}

void check(const Sum& sum, int world_size, int round) {
  const Status status = sum.work.wait();
  ASSERT_TRUE(status.ok()) << status.to_string();
  for (size_t i = 0; i < sum.data.size(); ++i) {
    ASSERT_EQ(sum.data[i],
              7 * world_size * (world_size - 1) / 2 + world_size * (round + static_cast<int32_t>(i)))
        << i;
  }
}

// The heartbeats tell it long before the deadline.
void miss_a_deadline(bool shared_memory) {
  const char* place = "solve.c:41";
  netsum_set_stack_hint(
      [](char* text, size_t size, void* user_data) -> size_t {
        return std::string(*static_cast<const char**>(user_data)).copy(text, size);
      },
      &place);
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  CommunicatorOptions options;
  options.aggregators = {aggregator->control_address()};
  options.shared_memory = shared_memory;
  options.liveness_timeout = milliseconds(400);
  std::promise<void> over;
  run_ranks(2, options, [&](int rank, std::unique_ptr<Communicator>& communicator) {
    check(start_sum(*communicator, 10, 1), 2, 1);
    if (rank == 1) {
      EXPECT_EQ(over.get_future().wait_for(kPatience), std::future_status::ready);
      return;
    }
    int32_t one = 1;
    const Status status =
        communicator->all_reduce(TensorView{&one, &one, 1}, {.type = DataType::kInt32, .timeout = seconds(3)})
            .wait();
    over.set_value();
    EXPECT_EQ(status.code(), ErrorCode::kTimeout);
    EXPECT_NE(
        status.message().find("; rank 1 has not submitted operation 2; its main thread is at solve.c:41"),
        std::string::npos)
        << status.to_string();
  });
  netsum_set_stack_hint(nullptr, nullptr);
}

TEST(MissedDeadline, NamesWhoHasNotSubmittedAndWhereItIs) {
  miss_a_deadline(false);
}

TEST(MissedDeadline, NamesWhoHasNotSubmittedAndWhereItIsInSharedMemory) {
  miss_a_deadline(true);
}

enum class Way { kNetwork, kSharedMemory, kFailover };

class WaitingTest : public ::testing::TestWithParam<Way> {
 protected:
  CommunicatorOptions options() {
    CommunicatorOptions options;
    options.aggregators = {aggregator_->control_address()};
    options.shared_memory = GetParam() == Way::kSharedMemory;
    if (GetParam() == Way::kFailover) options.on_failure = FailurePolicy::kFailover;
    return options;
  }
  const std::unique_ptr<Aggregator> aggregator_ = start_aggregator_at("127.0.0.1:0");
};

constexpr const char* kNames[] = {"Network", "SharedMemory", "Failover"};
INSTANTIATE_TEST_SUITE_P(, WaitingTest, ::testing::Values(Way::kNetwork, Way::kSharedMemory, Way::kFailover),
                         [](const auto& way) { return kNames[static_cast<size_t>(way.param)]; });

// More threads than this machine may have cores, all of which watch before they sleep.
TEST_P(WaitingTest, EightRanksDoNotStarveEachOther) {
  run_ranks(8, options(), [](int, std::unique_ptr<Communicator>& communicator) {
    for (int round = 0; round < 200; ++round) check(start_sum(*communicator, 256, round), 8, round);
  });
}

// Each rank waits in its own way, at its own times.
TEST_P(WaitingTest, RanksMayWaitInDifferentWays) {
  run_ranks(3, options(), [](int rank, std::unique_ptr<Communicator>& communicator) {
    std::mt19937 random(static_cast<unsigned>(rank));
    for (int round = 0; round < 200; ++round) {
      const size_t counts[] = {1, 256, round % 20 == 0 ? size_t{200'000} : size_t{5'000}};
      const Sum first = start_sum(*communicator, counts[round % 3], round);
      if (round < 40) {  // until callers drive
        check(first, 3, round);
        continue;
      }
      switch (random() % 5) {
        case 0:
          (void)first.work.wait(milliseconds(0));
          break;
        case 1:
          (void)first.work.wait(milliseconds(1));
          break;
        case 2: {
          std::promise<void> ended;
          first.work.on_done([&](const Status&) { ended.set_value(); });
          ASSERT_EQ(ended.get_future().wait_for(kPatience), std::future_status::ready);
          break;
        }
        case 3:
          std::this_thread::sleep_for(milliseconds(2));
          break;
        default:
          break;
      }
      check(first, 3, round);
    }
  });
}

TEST_P(WaitingTest, SeveralOperationsMayBeWaitedForInAnyOrder) {
  run_ranks(2, options(), [](int, std::unique_ptr<Communicator>& communicator) {
    for (int round = 0; round < 100; ++round) {
      for (int i = 0; i < 10; ++i) check(start_sum(*communicator, 10, i), 2, i);
      const Sum first = start_sum(*communicator, 300, round), second = start_sum(*communicator, 1'000, round),
                third = start_sum(*communicator, 1, round);
      check(second, 2, round);
      check(third, 2, round);
      check(first, 2, round);
    }
  });
}

TEST_P(WaitingTest, ClosingTheCommunicatorEndsAWaitOfAnotherThread) {
  run_ranks(2, options(), [](int rank, std::unique_ptr<Communicator>& communicator) {
    for (int i = 0; i < 50; ++i) check(start_sum(*communicator, 10, i), 2, i);
    if (rank == 1) return;  // leaves
    std::promise<void> waits;
    std::thread waiter([&] {
      const Sum sum = start_sum(*communicator, 10, 0);
      waits.set_value();
      const ErrorCode code = sum.work.wait().code();
      EXPECT_TRUE(code == ErrorCode::kAborted || code == ErrorCode::kPeerLost) << static_cast<int>(code);
    });
    waits.get_future().get();
    std::this_thread::sleep_for(milliseconds(20));
    communicator.reset();
    waiter.join();
  });
}

// The other rank comes late: whoever waits is neither woken up early nor late.
TEST_P(WaitingTest, AnOperationWithoutAPeerEndsAtItsDeadline) {
  run_ranks(2, options(), [](int rank, std::unique_ptr<Communicator>& communicator) {
    for (int i = 0; i < 50; ++i) check(start_sum(*communicator, 10, i), 2, i);
    if (rank == 1) {
      std::this_thread::sleep_for(milliseconds(400));
      return;
    }
    int32_t value = 1;
    const Work work = communicator->all_reduce(TensorView{&value, &value, 1},
                                               {.type = DataType::kInt32, .timeout = milliseconds(100)});
    EXPECT_EQ(work.wait().code(), ErrorCode::kTimeout);
  });
}

}  // namespace
}  // namespace netsum::waiting_test
