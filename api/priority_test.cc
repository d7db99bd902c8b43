// Operations with priorities through the public API, on every data path: the bits of those without, in another order.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "netsum/sparse.h"
#include "netsum/watermarks.h"
#include "session/placed_job_testing.h"
#include "src/base/rng.h"

namespace netsum::priority_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRanks = PlacedJob::kRanks;

void expect_ok(const Work& work) {
  const Status status = work.wait();
  ASSERT_TRUE(status.ok()) << status.to_string();
}

// A sum of some tensors, of one type.
struct Sum {
  DataType type = DataType::kFloat32;
  std::vector<size_t> counts;
  int32_t priority = 0;
};

// Values whose fixed-point scales differ from chunk to chunk.
std::vector<std::byte> input_of(const Sum& sum, int rank, uint64_t seed) {
  size_t count = 0;
  for (const size_t one : sum.counts) count += one;
  std::vector<std::byte> bytes(count * 4);
  Rng rng(seed * 100 + static_cast<uint64_t>(rank));
  for (size_t i = 0; i < count; ++i) {
    const auto scale = static_cast<float>(1 << (i / 97 % 20));
    const auto number = static_cast<float>(rng.unit() - 0.5) * scale;
    const auto integer = static_cast<int32_t>(rng.below(1'000'000));
    std::memcpy(&bytes[4 * i], sum.type == DataType::kInt32 ? static_cast<const void*>(&integer) : &number,
                4);
  }
  return bytes;
}

Work start(Communicator& communicator, const Sum& sum, std::vector<std::byte>* memory, int32_t priority,
           milliseconds timeout = {}) {
  std::vector<TensorView> tensors;
  size_t begin = 0;
  for (const size_t count : sum.counts) {
    tensors.push_back({memory->data() + begin, memory->data() + begin, count});
    begin += 4 * count;
  }
  return communicator.all_reduce(tensors, {.type = sum.type, .timeout = timeout, .priority = priority});
}

class PriorityTest : public ::testing::TestWithParam<Place> {};
INSTANTIATE_TEST_SUITE_P(Places, PriorityTest,
                         testing::Values(Place::kShards, Place::kLossyShards, Place::kAggregators,
                                         Place::kHierarchy, Place::kOneHost, Place::kTwoHosts,
                                         Place::kFailover),
                         place_name);

// Ranks submit at different times; other collectives are between the sums.
TEST_P(PriorityTest, ResultsHaveTheBitsOfOperationsWithout) {
  for (const int lane_bits : {0, 8}) {
    for (const Numerics numerics : {Numerics::kAuto, Numerics::kFixed}) {
      if (lane_bits == 8 && numerics == Numerics::kFixed) continue;  // 8-bit lanes are of fixed point
      PlacedJob job(GetParam());
      job.edit([&](CommunicatorOptions& options) {
        options.numerics = numerics;
        options.engine_threads = 1 + options.rank % 2;
      });
      job.run(
          [](Communicator& communicator) {
            const int rank = communicator.rank();
            const Sum sums[] = {
                {.counts = {300'001}},
                {.counts = {7, 0, 100'000, 1, 50'000}, .priority = 2},
                {.counts = {100}, .priority = -1},
                {.type = DataType::kInt32, .counts = {200'003}, .priority = 1},
                {.counts = {0}, .priority = 3},
                {.counts = {6'000}, .priority = 3},
                {.counts = {400'000}, .priority = -2},
            };
            std::vector<std::vector<std::byte>> expected, memory;
            uint64_t seed = 0;
            for (const Sum& sum : sums) {
              memory.push_back(input_of(sum, rank, ++seed));
              expected.push_back(memory.back());
              expect_ok(start(communicator, sum, &expected.back(), 0));
            }
            EXPECT_THAT(communicator.describe(), Not(HasSubstr("credit")));
            std::vector<int32_t> moved(10'000, rank);
            std::vector<Work> works;
            Rng rng(static_cast<uint64_t>(rank));
            for (size_t i = 0; i < std::size(sums); ++i) {
              if (rng.chance(0.3)) std::this_thread::sleep_for(milliseconds(1));
              works.push_back(start(communicator, sums[i], &memory[i], sums[i].priority));
              if (i != 3) continue;
              const BufferView buffer{moved.data(), moved.data(), moved.size() * sizeof(int32_t)};
              works.push_back(communicator.broadcast({&buffer, 1}, 2, {}));
            }
            std::vector<float> sparse(50'000);
            sparse[static_cast<size_t>(rank)] = 1;
            works.push_back(sparse_all_reduce(communicator, {sparse.data(), sparse.data(), sparse.size()},
                                              {.mode = SparseMode::kOn}));
            ASSERT_TRUE(communicator.barrier(seconds(60)).ok());
            for (const Work& work : works) expect_ok(work);
            EXPECT_EQ(std::count(sparse.begin(), sparse.end(), 1.0f), kRanks);
            for (size_t i = 0; i < std::size(sums); ++i) EXPECT_EQ(memory[i], expected[i]) << i;
            EXPECT_EQ(std::count(moved.begin(), moved.end(), 2), 10'000);
            EXPECT_THAT(communicator.describe(), HasSubstr("; priorities with a credit of "));
          },
          lane_bits);
    }
  }
}

// Which ends first is no matter of time: until all ranks have submitted all, nothing ends, and two batches can begin. The large
// one has eight or more.
TEST_P(PriorityTest, AnUrgentOperationOvertakesALargeOne) {
  PlacedJob job(GetParam());
  std::barrier submitted(kRanks);
  job.run([&](Communicator& communicator) {
    const Sum large{.counts = {8 << 20}}, urgent{.counts = {1000}};
    std::vector<std::byte> slow(size_t{4} * (8 << 20)), fast(4000), held(4000);
    std::mutex mutex;
    std::vector<int> ends;
    const auto note = [&](const Work& work, int which) {
      work.on_done([&, which](const Status&) {
        const std::lock_guard lock(mutex);
        ends.push_back(which);
      });
    };
    const auto watermarks = std::make_shared<Watermarks>();
    const Work first = communicator.all_reduce(TensorView{held.data(), held.data(), 1000},
                                               {.priority = 9, .watermarks = watermarks});
    const Work second = start(communicator, large, &slow, -1);
    const Work third = start(communicator, urgent, &fast, 5);
    note(second, 2);
    note(third, 3);
    submitted.arrive_and_wait();
    watermarks->make_available(SIZE_MAX);
    for (const Work& work : {first, second, third}) expect_ok(work);
    ASSERT_TRUE(communicator.barrier(seconds(60)).ok());
    const std::lock_guard lock(mutex);
    EXPECT_EQ(ends, (std::vector<int>{3, 2}));
  });
}

void expect_mismatch(const Work& work) {
  const Status status = work.wait();
  EXPECT_EQ(status.code(), ErrorCode::kMismatch) << status.to_string();
}

TEST_P(PriorityTest, RanksThatDisagreeAreToldAtOnce) {
  for (const int32_t other : {0, 2}) {  // 0: that rank has none
    PlacedJob job(GetParam());
    job.run([&](Communicator& communicator) {
      const Sum sum{.counts = {50'000}};
      std::vector<std::byte> memory(200'000), next(200'000);
      const Work first = start(communicator, sum, &memory, communicator.rank() == 1 ? other : 1);
      const Work second = start(communicator, sum, &next, 1);
      expect_mismatch(first);
      expect_mismatch(second);
      EXPECT_EQ(communicator.status().code(), ErrorCode::kMismatch);
      EXPECT_FALSE(start(communicator, sum, &memory, 1).wait().ok());
    });
  }
}

TEST_P(PriorityTest, ARankThatComesNotEndsAllAtTheDeadline) {
  PlacedJob job(GetParam());
  std::barrier ended(kRanks);
  job.run([&](Communicator& communicator) {
    const Sum sum{.counts = {50'000}};
    std::vector<std::byte> memory(200'000), next(200'000);
    if (communicator.rank() != 1) {
      const Work first = start(communicator, sum, &memory, 1, milliseconds(300));
      const Work second = start(communicator, sum, &next, 2, seconds(60));
      EXPECT_FALSE(first.wait().ok());
      EXPECT_FALSE(second.wait().ok());
    }
    ended.arrive_and_wait();
  });
}

TEST_P(PriorityTest, RefusedArgumentsBreakNothing) {
  PlacedJob job(GetParam());
  job.run([](Communicator& communicator) {
    std::vector<std::byte> memory(4000);
    const Sum sum{.counts = {1000}};
    expect_ok(start(communicator, sum, &memory, 1));
    const TensorView null{nullptr, memory.data(), 1000};
    const Status status = communicator.all_reduce(null, {.priority = 1}).wait();
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << status.to_string();
    expect_ok(start(communicator, sum, &memory, 2));
  });
}

TEST(PriorityRegroup, SurvivorsBeginWithoutPriorities) {
  PlacedJob job(Place::kAggregator);
  std::barrier ended(kRanks);
  job.run([&](Communicator& communicator) {
    const Sum sum{.counts = {500'000}};
    std::vector<std::byte> memory(2'000'000), next(2'000'000);
    expect_ok(start(communicator, sum, &memory, 1));
    const bool leaves = communicator.rank() == 1;
    if (leaves) {
      communicator.abort("dies");
    } else {
      const Work first = start(communicator, sum, &memory, 1), second = start(communicator, sum, &next, 2);
      EXPECT_FALSE(first.wait().ok());
      EXPECT_FALSE(second.wait().ok());
    }
    ended.arrive_and_wait();
    if (leaves) return;
    ASSERT_TRUE(communicator.regroup({.gather = milliseconds(300)}).ok());
    EXPECT_THAT(communicator.describe(), Not(HasSubstr("credit")));
    expect_ok(start(communicator, sum, &memory, 0));
    expect_ok(start(communicator, sum, &memory, -7));
  });
}

// All pieces are repeated at the other aggregator.
TEST(PriorityFailover, GoesOnAtAnotherAggregator) {
  PlacedJob job(Place::kFailover);
  std::barrier half(kRanks);
  job.run([&](Communicator& communicator) {
    const Sum sums[] = {{.counts = {3'000'000}, .priority = 1}, {.counts = {500'000}, .priority = 2}};
    std::vector<std::vector<std::byte>> expected, memory;
    for (const Sum& sum : sums) {
      memory.push_back(input_of(sum, communicator.rank(), memory.size()));
      expected.push_back(memory.back());
      expect_ok(start(communicator, sum, &expected.back(), 0));
    }
    std::vector<Work> works;
    for (size_t i = 0; i < 2; ++i)
      works.push_back(start(communicator, sums[i], &memory[i], sums[i].priority));
    half.arrive_and_wait();
    if (communicator.rank() == 0) job.end_aggregator();
    for (const Work& work : works) expect_ok(work);
    EXPECT_EQ(memory, expected);
    ASSERT_TRUE(communicator.barrier(seconds(60)).ok());
    EXPECT_EQ(communicator.stats().failovers, 1u);
  });
}

// Closing, with operations that have not begun, ends them.
TEST(PriorityClose, EndsWhatWaits) {
  std::atomic<int> ended{0};
  {
    CommunicatorOptions options;
    options.root = "127.0.0.1:0";
    options.timeout = options.connect_timeout = seconds(60);
    std::vector<std::byte> memory(2 * 4000);
    run_ranks(2, options, [&](int rank, std::unique_ptr<Communicator>& communicator) {
      if (rank == 0) {
        const TensorView tensor{memory.data(), memory.data(), 1000};
        for (int i = 0; i < 3; ++i)
          communicator->all_reduce(tensor, {.priority = 1}).on_done([&](const Status& status) {
            EXPECT_FALSE(status.ok());
            ++ended;
          });
      }
      communicator.reset();
    });
  }
  EXPECT_EQ(ended, 3);
}

}  // namespace
}  // namespace netsum::priority_test
