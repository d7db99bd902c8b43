#include "src/encoding/floats.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <vector>

#include "wire/ids.h"

namespace netsum::floats_test {
namespace {

constexpr uint32_t kPayload = 64;

std::unique_ptr<const Encoding> encoding_of(EncodingOptions options, DataType type, int members = 4,
                                            ReduceOp op = ReduceOp::kSum) {
  return make_encoding(options, type, op, members);
}

TEST(Floats, AreChosenWhereWhatSumsAddsThem) {
  const EncodingOptions all{.floats = FloatSums::kAsTheyAre}, float32{.floats = FloatSums::kInFloat32};
  for (const DataType type : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16}) {
    EXPECT_FALSE(encoding_of(all, type)->agrees());
    EXPECT_FALSE(encoding_of(all, type, 4, ReduceOp::kAvg)->agrees());
    EXPECT_TRUE(encoding_of({}, type)->agrees());
    EXPECT_TRUE(encoding_of({.fixed_floats = true, .floats = FloatSums::kAsTheyAre}, type)->agrees());
    EXPECT_TRUE(encoding_of({.lane_bits = 8, .floats = FloatSums::kAsTheyAre}, type)->agrees());
    EXPECT_TRUE(encoding_of(all, type, 4, ReduceOp::kMax)->agrees());
    // Not if it would take more bytes than lanes.
    EXPECT_EQ(encoding_of(float32, type)->agrees(), type != DataType::kFloat32);
    EXPECT_FALSE(encoding_of(float32, type, 17)->agrees());
    EXPECT_FALSE(encoding_of({.lane_bits = 32, .floats = FloatSums::kInFloat32}, type)->agrees());
  }
  EXPECT_TRUE(encoding_of(all, DataType::kInt32)->agrees());
}

// Ranks that differ must not take the sum of one another.
TEST(Floats, HaveSignaturesOfTheirOwn) {
  const DataType type = DataType::kFloat32;
  const uint16_t floats = encoding_of({.floats = FloatSums::kAsTheyAre}, type)->signature();
  const uint16_t float32 = encoding_of({.floats = FloatSums::kInFloat32}, type)->signature();
  EXPECT_NE(floats, float32);
  for (const uint16_t other : {encoding_of({}, type)->signature(),
                               make_encoding({}, DataType::kByte, ReduceOp::kSum, 4)->signature(),
                               encoding_of({}, type, 4, ReduceOp::kMax)->signature()}) {
    EXPECT_NE(floats, other);
    EXPECT_NE(float32, other);
  }
}

TEST(Floats, TravelAsTheyAreAcrossTheBordersOfTensors) {
  const Floats encoding(FloatSums::kAsTheyAre, DataType::kBFloat16, ReduceOp::kAvg, 3);
  std::vector<uint16_t> first = {0x7FC1, 0x8000, 1}, second = {0xFF80, 0x4000};
  std::vector<uint16_t> out1(3), out2(2);
  const TensorSequence sequence(DataType::kBFloat16,
                                {{first.data(), out1.data(), 3}, {second.data(), out2.data(), 2}});
  const Elements chunk{&sequence, 0, 5};
  EXPECT_EQ(encoding.chunk_elements(kPayload), kPayload / 2);
  const ChunkPlan plan = encoding.plan(chunk, nullptr, kPayload);
  EXPECT_EQ(plan.packets, 1);
  EXPECT_EQ(plan.packet[0].format, NETSUM_FORMAT(NETSUM_OP_AVG_FLOATS, NETSUM_FLOAT_BF16));
  EXPECT_EQ(plan.packet[0].payload_bytes, 16u);
  std::array<uint16_t, 8> payload{};
  encoding.encode(chunk, nullptr, plan.packet[0], reinterpret_cast<uint8_t*>(payload.data()));
  EXPECT_EQ(payload, (std::array<uint16_t, 8>{0x7FC1, 0x8000, 1, 0xFF80, 0x4000, 0, 0, 0}));
  EXPECT_TRUE(encoding.decode(chunk, nullptr, plan.packet[0], {reinterpret_cast<uint8_t*>(payload.data())}));
  EXPECT_EQ(out1, first);
  EXPECT_EQ(out2, second);
}

TEST(Floats, SumsInFloat32AreDividedAndRoundedOnceByTheRank) {
  const Floats encoding(FloatSums::kInFloat32, DataType::kBFloat16, ReduceOp::kAvg, 3);
  uint16_t element = 0x4000;
  const TensorSequence sequence(DataType::kBFloat16, {{&element, &element, 1}});
  const Elements chunk{&sequence, 0, 1};
  EXPECT_EQ(encoding.chunk_elements(kPayload), kPayload / 4);
  const ChunkPlan plan = encoding.plan(chunk, nullptr, kPayload);
  EXPECT_EQ(plan.packet[0].format, NETSUM_FORMAT(NETSUM_OP_SUM_FLOATS, NETSUM_FLOAT_F32));
  std::array<float, 2> payload{};
  encoding.encode(chunk, nullptr, plan.packet[0], reinterpret_cast<uint8_t*>(payload.data()));
  EXPECT_EQ(payload, (std::array<float, 2>{2.0f, 0.0f}));
  payload[0] = 3.01f;
  EXPECT_TRUE(encoding.decode(chunk, nullptr, plan.packet[0], {reinterpret_cast<uint8_t*>(payload.data())}));
  EXPECT_EQ(element, 0x3F80) << "1.00333 is 1";
}

// Without inputs, as in no sum of today: zeros are added. Without outputs: nothing is written.
TEST(Floats, ARankWithoutInputsAddsZeros) {
  const Floats encoding(FloatSums::kAsTheyAre, DataType::kFloat32, ReduceOp::kSum, 2);
  const TensorSequence sequence(DataType::kFloat32, {{nullptr, nullptr, 2}});
  const Elements chunk{&sequence, 0, 2};
  std::array<float, 2> payload = {7, 7};
  encoding.encode(chunk, nullptr, encoding.plan(chunk, nullptr, kPayload).packet[0],
                  reinterpret_cast<uint8_t*>(payload.data()));
  EXPECT_EQ(payload, (std::array<float, 2>{0, 0}));
  EXPECT_TRUE(encoding.decode(chunk, nullptr, {}, {reinterpret_cast<uint8_t*>(payload.data())}));
}

}  // namespace
}  // namespace netsum::floats_test
