#include "src/worker/operation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>
#include <vector>

namespace netsum {
namespace {

TEST(Operation, SignatureTellsOperationsApart) {
  int32_t memory[100] = {};
  const auto signature = [&](uint64_t number, DataType type, ReduceOp op, std::vector<size_t> counts) {
    std::vector<TensorView> tensors;
    for (const size_t count : counts) tensors.push_back({memory, memory, count});
    return Operation(number, type, op, tensors, 2, 0).signature();
  };
  const uint32_t first = signature(3, DataType::kFloat32, ReduceOp::kSum, {10, 20});
  EXPECT_EQ(first, signature(3, DataType::kFloat32, ReduceOp::kSum, {10, 20}));
  const std::set<uint32_t> all = {first,
                                  signature(4, DataType::kFloat32, ReduceOp::kSum, {10, 20}),
                                  signature(3, DataType::kInt32, ReduceOp::kSum, {10, 20}),
                                  signature(3, DataType::kFloat32, ReduceOp::kAvg, {10, 20}),
                                  signature(3, DataType::kFloat32, ReduceOp::kSum, {20, 10}),
                                  signature(3, DataType::kFloat32, ReduceOp::kSum, {30}),
                                  signature(3, DataType::kFloat32, ReduceOp::kSum, {10, 20, 0}),
                                  signature(3, DataType::kFloat32, ReduceOp::kSum, {})};
  EXPECT_EQ(all.size(), 8u);
}

TEST(Operation, LaneWidthFollowsTypeAndMembersAndIsSigned) {
  uint16_t memory[100] = {};
  const auto operation = [&](DataType type, int members, int lane_bits) {
    return Operation(0, type, ReduceOp::kSum, {{memory, memory, 10}}, members, 0, {}, lane_bits);
  };
  for (const DataType type : {DataType::kBFloat16, DataType::kFloat16}) {
    EXPECT_EQ(operation(type, 16, 0).narrow_lane_bytes(), 2u);
    EXPECT_EQ(operation(type, 16, 0).wide_lane_bytes(), 4u);
    EXPECT_EQ(operation(type, 16, 0).chunk_elements(1440), 720u);
    EXPECT_EQ(operation(type, 17, 0).narrow_lane_bytes(), 4u);
    EXPECT_EQ(operation(type, 2, 32).narrow_lane_bytes(), 4u);
    EXPECT_EQ(operation(type, 2, 32).wide_lane_bytes(), 8u);
    EXPECT_EQ(operation(type, 2, 0).signature(), operation(type, 2, 16).signature());
    EXPECT_NE(operation(type, 2, 0).signature(), operation(type, 2, 32).signature());
  }
  EXPECT_EQ(operation(DataType::kFloat32, 2, 16).narrow_lane_bytes(), 4u);
  EXPECT_EQ(operation(DataType::kInt32, 2, 16).narrow_lane_bytes(), 4u);
  EXPECT_EQ(operation(DataType::kInt64, 2, 16).narrow_lane_bytes(), 8u);
}

TEST(Operation, SixteenBitLanesRunAcrossTensors) {
  // 1.0 and -2.0 as bfloat16; with 4 members a unit is 2^-12 at exponent 128.
  const uint16_t input[5] = {0x3F80, 0xC000, 0, 0x3F80, 0x7F80};
  uint16_t output[5] = {};
  const Operation operation(0, DataType::kBFloat16, ReduceOp::kAvg,
                            {{input, output, 2}, {input + 2, output + 2, 3}}, 4, 0);
  int16_t lanes[5] = {0, 0, 0, 0, 777};
  operation.to_narrow_lanes(0, 4, 128, reinterpret_cast<uint8_t*>(lanes));
  EXPECT_EQ(std::vector<int16_t>(lanes, lanes + 5), (std::vector<int16_t>{2048, -4096, 0, 2048, 777}));
  for (auto& lane : lanes) lane = static_cast<int16_t>(lane * 4);
  operation.from_narrow_lanes(reinterpret_cast<const uint8_t*>(lanes), 0, 4, 128);
  EXPECT_EQ(std::vector<uint16_t>(output, output + 5), (std::vector<uint16_t>{0x3F80, 0xC000, 0, 0x3F80, 0}));
  int32_t wide[4];
  operation.to_wide_lanes(1, 4, 128, reinterpret_cast<uint8_t*>(wide));
  EXPECT_EQ(std::vector<int32_t>(wide, wide + 4), (std::vector<int32_t>{-4096, 0, 2048, 1 << 16}));
  EXPECT_TRUE(operation.from_wide_lanes(reinterpret_cast<const uint8_t*>(wide), 1, 4, 128));
  EXPECT_EQ(std::vector<uint16_t>(output, output + 5),
            (std::vector<uint16_t>{0x3F80, 0xBF00, 0, 0x3E80, 0x7F80}));
}

TEST(Operation, DescribesItselfForPeople) {
  int32_t memory[100] = {};
  EXPECT_EQ(Operation(12, DataType::kFloat32, ReduceOp::kSum, {{memory, memory, 100}}, 2, 0).describe(),
            "all_reduce #12 (float32[100], sum)");
  EXPECT_EQ(Operation(0, DataType::kInt32, ReduceOp::kSum, {{memory, memory, 4}, {memory, memory, 5}}, 2, 0)
                .describe(),
            "all_reduce #0 (int32[9] in 2 tensors, sum)");
  EXPECT_EQ(Operation(0, DataType::kFloat16, ReduceOp::kSum, {{memory, memory, 4}}, 2, 0).describe(),
            "all_reduce #0 (float16[4] in 16-bit lanes, sum)");
}

TEST(Operation, LanesRunAcrossTensorsAndSkipEmptyOnes) {
  std::vector<int32_t> input(30), output(30, -1);
  std::iota(input.begin(), input.end(), 0);
  const std::vector<TensorView> tensors = {
      {nullptr, nullptr, 0},      {&input[0], &output[0], 7},  {nullptr, nullptr, 0}, {nullptr, nullptr, 0},
      {&input[7], &output[7], 1}, {&input[8], &output[8], 22}, {nullptr, nullptr, 0}};
  const Operation operation(0, DataType::kInt32, ReduceOp::kSum, tensors, 2, 0);
  ASSERT_EQ(operation.count(), 30u);
  for (size_t begin = 0; begin <= 30; ++begin) {
    for (size_t n = 0; begin + n <= 30; ++n) {
      std::vector<int32_t> lanes(n + 1, 777);
      operation.to_narrow_lanes(begin, n, 0, reinterpret_cast<uint8_t*>(lanes.data()));
      for (size_t i = 0; i < n; ++i) ASSERT_EQ(lanes[i], static_cast<int32_t>(begin + i));
      ASSERT_EQ(lanes[n], 777);
      std::fill(output.begin(), output.end(), -1);
      operation.from_narrow_lanes(reinterpret_cast<const uint8_t*>(lanes.data()), begin, n, 0);
      for (size_t i = 0; i < 30; ++i) {
        ASSERT_EQ(output[i], i >= begin && i < begin + n ? static_cast<int32_t>(i) : -1);
      }
    }
  }
}

TEST(Operation, ScalesAreThoseOfTheWholeBlock) {
  const float input[6] = {1.0f, 0.5f, 300.0f, 0.0f, 2.0f, INFINITY};
  float output[6];
  const Operation operation(0, DataType::kFloat32, ReduceOp::kSum,
                            {{input, output, 2}, {input + 2, output + 2, 1}, {input + 3, output + 3, 3}}, 2,
                            0);
  EXPECT_EQ(operation.scan(0, 2), (kernels::BlockScale{127, 0}));
  EXPECT_EQ(operation.scan(0, 5), (kernels::BlockScale{135, 0}));
  EXPECT_EQ(operation.scan(3, 3), (kernels::BlockScale{128, 1}));
  EXPECT_EQ(operation.scan(3, 1), (kernels::BlockScale{0, 0}));
}

TEST(Operation, WideLanesReportAnIntegerThatDoesNotFit) {
  const int32_t input[2] = {0, 0};
  int32_t output[2] = {-1, -1};
  const Operation operation(0, DataType::kInt32, ReduceOp::kSum,
                            {{input, output, 1}, {input + 1, output + 1, 1}}, 2, 0);
  const int64_t fits[2] = {INT32_MIN, INT32_MAX};
  EXPECT_TRUE(operation.from_wide_lanes(reinterpret_cast<const uint8_t*>(fits), 0, 2, 0));
  EXPECT_EQ(output[0], INT32_MIN);
  EXPECT_EQ(output[1], INT32_MAX);
  const int64_t too_large[2] = {int64_t{INT32_MAX} + 1,
                                5};  // in the first tensor: the second may not hide it
  EXPECT_FALSE(operation.from_wide_lanes(reinterpret_cast<const uint8_t*>(too_large), 0, 2, 0));
}

}  // namespace
}  // namespace netsum
