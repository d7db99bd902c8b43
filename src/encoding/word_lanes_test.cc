#include "src/encoding/word_lanes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "src/base/rng.h"
#include "src/kernels/kernels.h"
#include "wire/ids.h"

namespace netsum::word_lanes_test {
namespace {

using Bytes = std::vector<uint8_t>;
constexpr uint32_t kPayload = 64;

template <typename T>
constexpr DataType kTypeOf = std::is_same_v<T, float>     ? DataType::kFloat32
                             : std::is_same_v<T, int32_t> ? DataType::kInt32
                                                          : DataType::kInt64;

// What the members get by lanes, chunk by chunk. The first two members share a host: their inputs go in one packet.
// `packets` counts those of a member.
template <typename T>
std::vector<T> reduce(ReduceOp op, const std::vector<std::vector<T>>& inputs, size_t* packets) {
  const WordLanes encoding(kTypeOf<T>, op);
  const size_t count = inputs[0].size(), per_chunk = encoding.chunk_elements(kPayload);
  std::vector<T> output(count);
  std::vector<TensorSequence> members;
  for (size_t m = inputs.size() > 1 ? 1 : 0; m < inputs.size(); ++m) {
    std::vector<const void*> more;
    if (m == 1) more.push_back(inputs[0].data());
    members.emplace_back(kTypeOf<T>, std::vector<TensorView>{{inputs[m].data(), output.data(), count}}, more);
  }
  *packets = 0;
  for (size_t begin = 0; begin < count; begin += per_chunk) {
    const size_t n = std::min(per_chunk, count - begin);
    Bytes agreed(kMinAgreedBytes);
    for (const TensorSequence& member : members) {
      Bytes own(kMinAgreedBytes, 77);
      EXPECT_EQ(encoding.scan({&member, begin, n}, own.data()), kMinAgreedBytes);
      kernels::max_lanes8(agreed.data(), own.data(), own.size());
    }
    const Elements chunk{&members[0], begin, n};
    const ChunkPlan plan = encoding.plan(chunk, agreed.data(), kPayload);
    *packets += plan.packets;
    if (plan.packets == 0) {
      encoding.decode_zeros(chunk);
      continue;
    }
    Bytes sum(plan.packet[0].payload_bytes);
    for (const TensorSequence& member : members) {
      Bytes lanes(plan.packet[0].payload_bytes);
      encoding.encode({&member, begin, n}, agreed.data(), plan.packet[0], lanes.data());
      EXPECT_FALSE(kernels::combine_lanes(plan.packet[0].format, sum.data(), lanes.data(), sum.size()));
    }
    EXPECT_TRUE(encoding.decode(chunk, agreed.data(), plan.packet[0], {sum.data()}));
  }
  return output;
}

template <typename T>
T expected(ReduceOp op, T x, T y) {
  if constexpr (std::is_integral_v<T>) {
    if (op == ReduceOp::kBitAnd) return x & y;
    if (op == ReduceOp::kBitOr) return x | y;
    if (op == ReduceOp::kBitXor) return x ^ y;
  }
  return op == ReduceOp::kMax ? std::max(x, y) : std::min(x, y);
}

constexpr ReduceOp kBitOps[] = {ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor};
constexpr ReduceOp kOrderOps[] = {ReduceOp::kMax, ReduceOp::kMin};

template <typename T>
void expect_exact(ReduceOp op, Rng& rng) {
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<std::vector<T>> inputs(1 + rng.below(5));
    const size_t count = 1 + rng.below(60);  // chunks that end within a 64-bit word, too
    for (std::vector<T>& input : inputs) {
      input.resize(count);
      for (T& x : input) {
        const auto bits = static_cast<int64_t>(rng.next());
        x = static_cast<T>(rng.chance(0.2) ? bits >> 40 : bits);
      }
    }
    size_t packets = 0;
    const std::vector<T> output = reduce(op, inputs, &packets);
    for (size_t i = 0; i < count; ++i) {
      T exact = inputs[0][i];
      for (size_t m = 1; m < inputs.size(); ++m) exact = expected(op, exact, inputs[m][i]);
      ASSERT_EQ(output[i], exact) << reduce_op_name(op) << ", trial " << trial << ", element " << i;
    }
  }
}

TEST(WordLanes, AllReductionsAreExact) {
  Rng rng(7);
  for (const ReduceOp op : kBitOps) {
    expect_exact<int32_t>(op, rng);
    expect_exact<int64_t>(op, rng);
  }
  for (const ReduceOp op : kOrderOps) {
    expect_exact<int32_t>(op, rng);
    expect_exact<int64_t>(op, rng);
    expect_exact<float>(op, rng);
  }
}

TEST(WordLanes, AnyNanMakesMaximumAndMinimumANan) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : kOrderOps) {
    size_t packets = 0;
    const std::vector<float> output = reduce<float>(
        op, {{nan, 1, inf, -0.0f, -inf}, {1, -nan, 3, 0.0f, -1}, {-inf, inf, 2, -0.0f, -2}}, &packets);
    EXPECT_TRUE(std::isnan(output[0]));
    EXPECT_TRUE(std::isnan(output[1]));
    EXPECT_EQ(output[2], op == ReduceOp::kMax ? inf : 2);
    EXPECT_EQ(output[3], 0);
    EXPECT_EQ(std::signbit(output[3]), op == ReduceOp::kMin);
    EXPECT_EQ(output[4], op == ReduceOp::kMax ? -1 : -inf);
  }
}

TEST(WordLanes, ChunksOfNeutralBitsTakeNoPackets) {
  const size_t per_chunk = kPayload / sizeof(int32_t);
  for (const ReduceOp op : kBitOps) {
    const int32_t neutral = op == ReduceOp::kBitAnd ? -1 : 0;
    for (size_t one = 0; one < 3; ++one) {
      std::vector<std::vector<int32_t>> inputs(3, std::vector<int32_t>(3 * per_chunk, neutral));
      inputs[one][per_chunk] = 5;
      size_t packets = 0;
      std::vector<int32_t> output = reduce(op, inputs, &packets);
      EXPECT_EQ(packets, 1u) << reduce_op_name(op);
      EXPECT_EQ(output[per_chunk], 5);
      output[per_chunk] = neutral;
      EXPECT_EQ(output, std::vector<int32_t>(3 * per_chunk, neutral));
    }
  }
}

// The element 0 is not the word 0.
TEST(WordLanes, MaximaAndMinimaOfZerosAreZerosAndTakeNoPackets) {
  for (const ReduceOp op : kOrderOps) {
    size_t packets = 77;
    EXPECT_EQ(reduce<int32_t>(op, {{0, 0, 0}, {0, 0, 0}, {0, 0, 0}}, &packets), std::vector<int32_t>(3));
    EXPECT_EQ(packets, 0u);
    EXPECT_EQ(reduce<float>(op, {{0, 0}, {0, 0}}, &packets), std::vector<float>(2));
    EXPECT_EQ(packets, 0u);
    EXPECT_EQ(reduce<int32_t>(op, {{-1, -1}, {-1, -1}}, &packets), std::vector<int32_t>(2, -1));
    EXPECT_EQ(packets, 1u);
  }
}

// A rank that contributes nothing sends zeros, whatever the reduction.
TEST(WordLanes, ZerosAreNeutral) {
  const std::vector<int32_t> input{INT32_MIN, -1, 0, 1, INT32_MAX};
  for (const ReduceOp op :
       {ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor}) {
    const WordLanes encoding(DataType::kInt32, op);
    std::vector<int32_t> output(input.size());
    const TensorSequence own(DataType::kInt32, {{input.data(), output.data(), input.size()}});
    const TensorSequence none(DataType::kInt32, {{nullptr, nullptr, input.size()}});
    const Elements chunk{&own, 0, input.size()}, nothing{&none, 0, input.size()};
    uint8_t agreed[kMinAgreedBytes] = {9, 9};
    encoding.scan(nothing, agreed);
    EXPECT_EQ(agreed[0], 0);
    encoding.scan(chunk, agreed);
    const PacketPlan packet = encoding.plan(chunk, agreed, kPayload).packet[0];
    Bytes lanes(packet.payload_bytes), zeros(packet.payload_bytes, 77);
    encoding.encode(chunk, agreed, packet, lanes.data());
    encoding.encode(nothing, agreed, packet, zeros.data());
    std::fill(zeros.end() - 4, zeros.end(), 0);  // behind the last element
    EXPECT_EQ(zeros, Bytes(packet.payload_bytes));
    kernels::combine_lanes(packet.format, lanes.data(), zeros.data(), lanes.size());
    encoding.decode(chunk, agreed, packet, {lanes.data()});
    EXPECT_EQ(output, input) << reduce_op_name(op);
    encoding.decode(nothing, agreed, packet, {lanes.data()});  // keeps nothing
  }
}

TEST(WordLanes, SkippedElementsAreWrittenOnlyWhereThereIsAnOutput) {
  const WordLanes encoding(DataType::kInt32, ReduceOp::kBitAnd);
  std::vector<int32_t> output(2);
  const TensorSequence sequence(DataType::kInt32, {{nullptr, nullptr, 3}, {nullptr, output.data(), 2}});
  encoding.decode_zeros({&sequence, 0, 5});
  EXPECT_EQ(output, std::vector<int32_t>(2, -1));
}

TEST(WordLanes, FormatsFollowOperatorAndSize) {
  const auto format = [](DataType type, ReduceOp op) {
    const WordLanes encoding(type, op);
    const int64_t one = 1;
    const TensorSequence sequence(type, {{&one, nullptr, 1}});
    const uint8_t agreed[] = {1, 0};
    return encoding.plan({&sequence, 0, 1}, agreed, kPayload).packet[0].format;
  };
  EXPECT_EQ(format(DataType::kBFloat16, ReduceOp::kMax), NETSUM_FORMAT_MAX_U16);
  EXPECT_EQ(format(DataType::kFloat32, ReduceOp::kMin), NETSUM_FORMAT_MAX_U32);
  EXPECT_EQ(format(DataType::kInt64, ReduceOp::kMin), NETSUM_FORMAT_MAX_U64);
  EXPECT_EQ(format(DataType::kInt32, ReduceOp::kBitAnd), NETSUM_FORMAT_OR_U64);
  EXPECT_EQ(format(DataType::kInt64, ReduceOp::kBitOr), NETSUM_FORMAT_OR_U64);
  EXPECT_EQ(format(DataType::kInt32, ReduceOp::kBitXor), NETSUM_FORMAT_XOR_U64);
}

}  // namespace
}  // namespace netsum::word_lanes_test
