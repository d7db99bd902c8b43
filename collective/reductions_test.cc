// Reductions that are no sums, end to end: over the network, embedded shards, a hierarchy and shared memory.
#include <gmock/gmock.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <limits>
#include <type_traits>

#include "collective/test_job.h"
#include "src/base/rng.h"

namespace netsum {
namespace {

constexpr int kRanks = 4;
constexpr size_t kCount = 3'001;  // several packets, and the last one ends within a word
constexpr ReduceOp kBitOps[] = {ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor};
constexpr ReduceOp kOrderOps[] = {ReduceOp::kMax, ReduceOp::kMin};

template <typename T>
constexpr DataType kTypeOf = std::is_same_v<T, float>     ? DataType::kFloat32
                             : std::is_same_v<T, int32_t> ? DataType::kInt32
                                                          : DataType::kInt64;

template <typename T>
T combined(ReduceOp op, T x, T y) {
  if constexpr (std::is_integral_v<T>) {
    if (op == ReduceOp::kBitAnd) return x & y;
    if (op == ReduceOp::kBitOr) return x | y;
    if (op == ReduceOp::kBitXor) return x ^ y;
  }
  return op == ReduceOp::kMax ? std::max(x, y) : std::min(x, y);
}

// The element of a rank: all bits, but a third of the tensor is zero everywhere.
template <typename T>
T element_of(int rank, size_t i) {
  if (i / 1000 == 1) return 0;
  return static_cast<T>(static_cast<int64_t>(Rng(static_cast<uint64_t>(rank) * 1'000'003 + i).next()));
}

template <typename T>
void reduce_and_check(Communicator& communicator, ReduceOp op) {
  std::vector<T> data(kCount);
  for (size_t i = 0; i < kCount; ++i) data[i] = element_of<T>(communicator.rank(), i);
  AllReduceOptions options;
  options.type = kTypeOf<T>;
  options.op = op;
  const Status status =
      communicator.all_reduce(TensorView{data.data(), data.data(), data.size()}, options).wait();
  ASSERT_TRUE(status.ok()) << reduce_op_name(op) << ": " << status.to_string();
  for (size_t i = 0; i < kCount; ++i) {
    T exact = element_of<T>(0, i);
    for (int rank = 1; rank < kRanks; ++rank) exact = combined(op, exact, element_of<T>(rank, i));
    ASSERT_EQ(data[i], exact) << reduce_op_name(op) << ", element " << i;
  }
}

enum class Place { kAggregator, kAggregators, kEmbedded, kRacks, kOneHost, kTwoHosts };

class Reductions : public testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    for (int i = 0; i < 3; ++i) {
      AggregatorOptions options;
      options.listen = "127.0.0.1:0";
      options.in_switch = true;
      if (GetParam() == Place::kRacks && i > 0) options.parent = aggregators_[0]->control_address();
      auto started = Aggregator::start(options);
      ASSERT_TRUE(started.ok()) << started.status().to_string();
      aggregators_.push_back(std::move(started).value());
    }
    options_.job = "reductions";
    options_.timeout = options_.connect_timeout = std::chrono::seconds(60);
    options_.shared_memory = GetParam() == Place::kOneHost || GetParam() == Place::kTwoHosts;
    if (GetParam() == Place::kEmbedded)
      options_.root = "127.0.0.1:0";
    else
      options_.aggregators = {aggregators_[0]->control_address()};
    if (GetParam() == Place::kAggregators) options_.aggregators.push_back(aggregators_[1]->control_address());
  }
  void run(const std::function<void(Communicator& communicator)>& body) {
    run_ranks(
        kRanks, options_, [&](int, std::unique_ptr<Communicator>& communicator) { body(*communicator); },
        [&](CommunicatorOptions& options) {
          const size_t half = options.rank < kRanks / 2 ? 1 : 2;
          if (GetParam() == Place::kRacks) options.aggregators = {aggregators_[half]->control_address()};
          if (GetParam() == Place::kTwoHosts) options.host = half == 1 ? "low" : "high";
        });
  }

  std::vector<std::unique_ptr<Aggregator>> aggregators_;
  CommunicatorOptions options_;
};

TEST_P(Reductions, AreExact) {
  run([](Communicator& communicator) {
    for (const ReduceOp op : kBitOps) {
      reduce_and_check<int32_t>(communicator, op);
      reduce_and_check<int64_t>(communicator, op);
    }
    for (const ReduceOp op : kOrderOps) {
      reduce_and_check<int32_t>(communicator, op);
      reduce_and_check<int64_t>(communicator, op);
      reduce_and_check<float>(communicator, op);
    }
    sum_and_check(communicator, kCount);
  });
}

// Places where each rank sends its own packets.
class ReductionsOfSenders : public Reductions {};

// Of bits that are 0 everywhere, nothing travels.
TEST_P(ReductionsOfSenders, SkipZeros) {
  run([](Communicator& communicator) {
    const uint64_t before = communicator.stats().zero_chunks;
    std::vector<int64_t> bitmap(100'000);
    if (communicator.rank() == 1) bitmap[70'000] = 5;
    if (communicator.rank() == 2) bitmap[70'000] = 6;
    AllReduceOptions options;
    options.type = DataType::kInt64;
    options.op = ReduceOp::kBitOr;
    const Status status =
        communicator.all_reduce(TensorView{bitmap.data(), bitmap.data(), bitmap.size()}, options).wait();
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(bitmap[70'000], 7);
    bitmap[70'000] = 0;
    EXPECT_EQ(bitmap, std::vector<int64_t>(bitmap.size()));
    // 180 elements in a packet.
    EXPECT_EQ(communicator.stats().zero_chunks - before, (bitmap.size() + 179) / 180 - 1);
  });
}

TEST_P(Reductions, RanksWithDifferentOperatorsMismatch) {
  std::barrier connected(kRanks);  // or a slow rank is told while it connects
  run([&](Communicator& communicator) {
    connected.arrive_and_wait();
    std::vector<int32_t> data(100, 1);
    AllReduceOptions options;
    options.type = DataType::kInt32;
    options.op = communicator.rank() == 3 ? ReduceOp::kBitAnd : ReduceOp::kBitOr;
    const Status status =
        communicator.all_reduce(TensorView{data.data(), data.data(), data.size()}, options).wait();
    EXPECT_EQ(status.code(), ErrorCode::kMismatch) << status.to_string();
  });
}

std::string name_of(const testing::TestParamInfo<Place>& place) {
  static constexpr const char* kNames[] = {"Aggregator", "Aggregators", "Embedded",
                                           "Racks",      "OneHost",     "TwoHosts"};
  return kNames[static_cast<size_t>(place.param)];
}

INSTANTIATE_TEST_SUITE_P(Places, Reductions,
                         testing::Values(Place::kAggregator, Place::kAggregators, Place::kEmbedded,
                                         Place::kRacks, Place::kOneHost, Place::kTwoHosts),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Places, ReductionsOfSenders,
                         testing::Values(Place::kAggregator, Place::kAggregators, Place::kEmbedded,
                                         Place::kRacks),
                         name_of);

}  // namespace
}  // namespace netsum
