// Jobs whose ranks all share the memory of this host, through the public API.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "session/job_testing.h"

namespace netsum::one_host_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

CommunicatorOptions one_host() {
  CommunicatorOptions options;
  options.job = "one-host";
  options.root = "127.0.0.1:0";
  options.timeout = options.connect_timeout = seconds(120);
  return options;
}

// More ranks than cores, which wait for each other after every small operation.
TEST(OneHost, ManySmallOperationsOfMoreRanksThanCores) {
  run_ranks(8, one_host(), [](int, std::unique_ptr<Communicator>& communicator) {
    for (int i = 0; i < 300; ++i) sum_and_check(*communicator, i % 2 == 0 ? 1024 : 1);
    EXPECT_EQ(communicator->stats().operations, 300u);
  });
}

TEST(OneHost, LargeTensorsAreReadInPlace) {
  constexpr int kRanks = 3;
  run_ranks(kRanks, one_host(), [](int rank, std::unique_ptr<Communicator>& communicator) {
    for (int i = 0; i < 3; ++i) sum_and_check(*communicator, 10);  // in these, ranks find out that they can
    constexpr size_t kCount = 1'100'001;
    for (int round = 0; round < 3; ++round) {
      sum_and_check(*communicator, kCount);
      std::vector<uint8_t> bytes(kCount, static_cast<uint8_t>(rank + round));
      const BufferView buffer{bytes.data(), bytes.data(), bytes.size()};
      ASSERT_TRUE(communicator->broadcast(std::span(&buffer, 1), round, {}).wait().ok());
      EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 2 * round), std::ptrdiff_t(kCount));
      std::array<std::vector<uint8_t>, kRanks> parts;
      std::vector<BufferView> views;
      for (int r = 0; r < kRanks; ++r) {
        auto& part = parts[static_cast<size_t>(r)];
        part.assign(kCount + static_cast<size_t>(r), static_cast<uint8_t>(r == rank ? 100 + r : 0));
        views.push_back({part.data(), part.data(), part.size()});
      }
      ASSERT_TRUE(communicator->all_gather(views, {}).wait().ok());
      for (size_t r = 0; r < kRanks; ++r)
        EXPECT_EQ(std::count(parts[r].begin(), parts[r].end(), 100 + r), std::ptrdiff_t(parts[r].size()))
            << r;
    }
    EXPECT_THAT(communicator->describe(), HasSubstr("large tensors in place"));
  });
}

// The ranks that give up name the one that is missing, and get their memory back: it may read nothing of it afterwards.
TEST(OneHost, ARankThatComesTooLateReadsNothing) {
  std::atomic<int> given_up{0};
  run_ranks(3, one_host(), [&](int rank, std::unique_ptr<Communicator>& communicator) {
    for (int i = 0; i < 3; ++i) sum_and_check(*communicator, 10);
    std::vector<float> data(300'000, 1.0f);
    const TensorView view{data.data(), data.data(), data.size()};
    if (rank == 2) {
      while (given_up < 2) std::this_thread::sleep_for(milliseconds(1));
      const Status status = communicator->all_reduce(view, {}).wait();
      EXPECT_FALSE(status.ok());
      EXPECT_EQ(std::count(data.begin(), data.end(), 1.0f), std::ptrdiff_t(data.size()));
      return;
    }
    const Status status = communicator->all_reduce(view, {.timeout = milliseconds(500)}).wait();
    EXPECT_FALSE(status.ok());
    std::fill(data.begin(), data.end(), 1e30f);
    data = {};
    ++given_up;
  });
}

}  // namespace
}  // namespace netsum::one_host_test
