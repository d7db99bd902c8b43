// Sums in 8-bit lanes, end to end: over the network, embedded shards, a hierarchy and shared memory.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "session/placed_job_testing.h"
#include "src/base/rng.h"

namespace netsum::lanes8_test {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

constexpr int kRanks = PlacedJob::kRanks;
constexpr int kQuantumBits = 5;     // with 4 ranks
constexpr float kLargestLane = 31;  // 127 / 4

// Numbers of which the largest is just below 2, so that its block has quanta of 2^-4.
float number_of(int rank, size_t i) {
  const auto random = static_cast<double>(Rng(static_cast<uint64_t>(rank) * 1'000'003 + i).next() >> 40);
  return static_cast<float>(std::ldexp(random, -23)) - 1;
}

float lane_of(float x) {
  return std::clamp(std::nearbyint(std::ldexp(x, kQuantumBits - 1)), -kLargestLane, kLargestLane);
}

class Lanes8Test : public testing::TestWithParam<Place> {};

INSTANTIATE_TEST_SUITE_P(Places, Lanes8Test,
                         testing::Values(Place::kShards, Place::kLossyShards, Place::kAggregator,
                                         Place::kAggregators, Place::kHierarchy, Place::kOneHost,
                                         Place::kTwoHosts, Place::kFailover),
                         place_name);

// Bit by bit what docs/numerics.md says.
TEST_P(Lanes8Test, SumsAndMeansHaveTheDocumentedBits) {
  PlacedJob(GetParam())
      .run(
          [](Communicator& communicator) {
            for (const size_t count : {size_t{1}, size_t{1440}, size_t{100'003}}) {
              for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
                std::vector<float> data(count), expected(count);
                for (size_t i = 0; i < count; ++i) {
                  // The first element of each packet decides its exponent.
                  const auto x = [&](int rank) { return i % 1440 == 0 ? 1.99f : number_of(rank, i); };
                  data[i] = x(communicator.rank());
                  float sum = 0;
                  for (int rank = 0; rank < kRanks; ++rank) sum += lane_of(x(rank));
                  expected[i] = std::ldexp(sum, 1 - kQuantumBits) / (op == ReduceOp::kAvg ? kRanks : 1);
                }
                const Status status =
                    communicator.all_reduce(TensorView{data.data(), data.data(), count}, {.op = op}).wait();
                ASSERT_TRUE(status.ok()) << status.to_string();
                for (size_t i = 0; i < count; ++i)
                  ASSERT_EQ(data[i], expected[i]) << "element " << i << " of " << count;
              }
            }
          },
          8);
}

TEST_P(Lanes8Test, SpecialsStayWhereTheyAreAndIntegersAreExact) {
  constexpr size_t kCount = 5'000;
  PlacedJob(GetParam())
      .run(
          [](Communicator& communicator) {
            const int rank = communicator.rank();
            std::vector<float> data(kCount, 1.0f);
            if (rank == 1) data[17] = NAN;
            if (rank == 2) data[18] = INFINITY;
            if (rank == 3) data[18] = data[4'000] = -INFINITY;
            if (rank == 0) data[1'440] = INFINITY;
            std::vector<int32_t> integers(kCount);
            std::vector<int64_t> large(kCount);
            for (size_t i = 0; i < kCount; ++i) {
              integers[i] = static_cast<int32_t>(i) * (rank + 1);
              large[i] = std::numeric_limits<int64_t>::max() / 8 - static_cast<int64_t>(i) * rank;
            }
            const Work works[] = {
                communicator.all_reduce(TensorView{data.data(), data.data(), kCount}, {}),
                communicator.all_reduce(TensorView{integers.data(), integers.data(), kCount},
                                        {.type = DataType::kInt32}),
                communicator.all_reduce(TensorView{large.data(), large.data(), kCount},
                                        {.type = DataType::kInt64})};
            for (const Work& work : works) ASSERT_TRUE(work.wait().ok()) << work.wait().to_string();
            for (size_t i = 0; i < kCount; ++i) {
              if (i == 17 || i == 18)
                ASSERT_TRUE(std::isnan(data[i])) << i;
              else
                ASSERT_EQ(data[i], i == 1'440 ? INFINITY : i == 4'000 ? -INFINITY : 4.0f) << i;
              ASSERT_EQ(integers[i], static_cast<int32_t>(i) * 10);
              ASSERT_EQ(large[i], std::numeric_limits<int64_t>::max() / 8 * 4 - static_cast<int64_t>(i) * 6);
            }
          },
          8);
}

TEST(Lanes8, OptionsThatDoNotGoTogetherAreRefused) {
  CommunicatorOptions options;
  options.aggregators = {"127.0.0.1:1"};
  options.rank = 0;
  options.world_size = 65;
  options.lane_bits = 8;
  EXPECT_THAT(Communicator::connect(options).status().to_string(), HasSubstr("at most 64 ranks"));
  options.world_size = 2;
  options.lane_bits = 12;
  EXPECT_THAT(Communicator::connect(options).status().to_string(),
              HasSubstr("it must be 8, 16, 32, or 0 for automatic"));
}

TEST(Lanes8, RanksThatDoNotAgreeAreToldWhenTheyJoin) {
  const auto aggregator = start_aggregator_at("127.0.0.1:0");
  std::array<Status, 2> ends;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      CommunicatorOptions options;
      options.aggregators = {aggregator->control_address()};
      options.rank = rank;
      options.world_size = 2;
      options.lane_bits = rank == 0 ? 8 : 0;
      options.connect_timeout = seconds(3);
      ends[static_cast<size_t>(rank)] = Communicator::connect(options).status();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  // The second to join is told at once; the first one waits for it in vain.
  EXPECT_FALSE(ends[0].ok() || ends[1].ok());
  EXPECT_THAT(ends[0].to_string() + ends[1].to_string(), HasSubstr("lane_bits"));
}

}  // namespace
}  // namespace netsum::lanes8_test
