// Reductions that are no sums, end to end: over the network, embedded shards, a hierarchy and shared memory.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "session/placed_job_testing.h"
#include "src/base/rng.h"

namespace netsum::reductions_test {
namespace {

constexpr int kRanks = PlacedJob::kRanks;
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

class Reductions : public testing::TestWithParam<Place> {};

TEST_P(Reductions, AreExact) {
  PlacedJob(GetParam()).run([](Communicator& communicator) {
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
  PlacedJob(GetParam()).run([](Communicator& communicator) {
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
  PlacedJob(GetParam()).run([&](Communicator& communicator) {
    std::vector<int32_t> data(100, 1);
    AllReduceOptions options;
    options.type = DataType::kInt32;
    options.op = communicator.rank() == 3 ? ReduceOp::kBitAnd : ReduceOp::kBitOr;
    const Status status =
        communicator.all_reduce(TensorView{data.data(), data.data(), data.size()}, options).wait();
    EXPECT_EQ(status.code(), ErrorCode::kMismatch) << status.to_string();
  });
}

INSTANTIATE_TEST_SUITE_P(Places, Reductions,
                         testing::Values(Place::kAggregator, Place::kAggregators, Place::kShards,
                                         Place::kHierarchy, Place::kOneHost, Place::kTwoHosts),
                         place_name);
INSTANTIATE_TEST_SUITE_P(Places, ReductionsOfSenders,
                         testing::Values(Place::kAggregator, Place::kAggregators, Place::kShards,
                                         Place::kHierarchy),
                         place_name);

}  // namespace
}  // namespace netsum::reductions_test
