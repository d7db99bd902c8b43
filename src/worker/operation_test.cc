#include "src/worker/operation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>
#include <vector>

namespace netsum {
namespace {

// The bytes of blocks' scales.
std::vector<uint8_t> scales_of(const Operation& operation, size_t begin, size_t n) {
  std::vector<uint8_t> scales(2 * operation.blocks(begin, n) + 1, 77);
  operation.scan(begin, n, scales.data());
  EXPECT_EQ(scales.back(), 77);
  scales.pop_back();
  return scales;
}

using Bytes = std::vector<uint8_t>;

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
  const uint8_t scales[] = {128, 0, 128, 1};
  int16_t lanes[5] = {0, 0, 0, 0, 777};
  operation.to_narrow_lanes(0, 4, scales, reinterpret_cast<uint8_t*>(lanes));
  EXPECT_EQ(std::vector<int16_t>(lanes, lanes + 5), (std::vector<int16_t>{2048, -4096, 0, 2048, 777}));
  for (auto& lane : lanes) lane = static_cast<int16_t>(lane * 4);
  operation.from_narrow_lanes(reinterpret_cast<const uint8_t*>(lanes), 0, 4, scales);
  EXPECT_EQ(std::vector<uint16_t>(output, output + 5), (std::vector<uint16_t>{0x3F80, 0xC000, 0, 0x3F80, 0}));
  int32_t wide[4];
  operation.to_wide_lanes(1, 4, scales, reinterpret_cast<uint8_t*>(wide));
  EXPECT_EQ(std::vector<int32_t>(wide, wide + 4), (std::vector<int32_t>{-4096, 0, 2048, 1 << 16}));
  EXPECT_TRUE(operation.from_wide_lanes(reinterpret_cast<const uint8_t*>(wide), 1, 4, scales));
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
  const uint8_t scales[2] = {};  // integers are one block
  for (size_t begin = 0; begin <= 30; ++begin) {
    for (size_t n = 0; begin + n <= 30; ++n) {
      std::vector<int32_t> lanes(n + 1, 777);
      operation.to_narrow_lanes(begin, n, scales, reinterpret_cast<uint8_t*>(lanes.data()));
      for (size_t i = 0; i < n; ++i) ASSERT_EQ(lanes[i], static_cast<int32_t>(begin + i));
      ASSERT_EQ(lanes[n], 777);
      std::fill(output.begin(), output.end(), -1);
      operation.from_narrow_lanes(reinterpret_cast<const uint8_t*>(lanes.data()), begin, n, scales);
      for (size_t i = 0; i < 30; ++i) {
        ASSERT_EQ(output[i], i >= begin && i < begin + n ? static_cast<int32_t>(i) : -1);
      }
    }
  }
}

TEST(Operation, EachTensorHasItsOwnScale) {
  const float input[6] = {1.0f, 0.5f, 300.0f, 0.0f, 2.0f, INFINITY};
  float output[6];
  const Operation operation(0, DataType::kFloat32, ReduceOp::kSum,
                            {{input, output, 2}, {input + 2, output + 2, 1}, {input + 3, output + 3, 3}}, 2,
                            0);
  EXPECT_EQ(scales_of(operation, 0, 2), (Bytes{127, 0}));
  EXPECT_EQ(scales_of(operation, 0, 5), (Bytes{127, 0, 135, 0, 128, 0}));
  EXPECT_EQ(scales_of(operation, 1, 5), (Bytes{126, 0, 135, 0, 128, 1}));
  EXPECT_EQ(scales_of(operation, 3, 3), (Bytes{128, 1}));
  EXPECT_EQ(scales_of(operation, 3, 1), (Bytes{0, 0}));
  EXPECT_EQ(scales_of(operation, 3, 0), (Bytes{}));
}

TEST(Operation, BlocksEndWhereTensorsDoAndEmptyTensorsHaveNone) {
  std::vector<float> memory(30);
  std::vector<TensorView> tensors;
  for (const size_t count : {0, 7, 0, 0, 1, 22, 0}) tensors.push_back({memory.data(), memory.data(), count});
  const Operation floats(0, DataType::kFloat32, ReduceOp::kSum, tensors, 2, 0);
  const Operation integers(0, DataType::kInt32, ReduceOp::kSum, tensors, 2, 0);
  const auto tensor_of = [](size_t element) { return element < 7 ? 0 : element < 8 ? 1 : 2; };
  for (size_t begin = 0; begin < 30; ++begin) {
    for (size_t n = 1; begin + n <= 30; ++n) {
      const size_t last = begin + n - 1;
      const auto blocks = static_cast<size_t>(tensor_of(last) - tensor_of(begin)) + 1;
      ASSERT_EQ(floats.block_of(begin, last), blocks - 1) << begin << " " << n;
      ASSERT_EQ(floats.blocks(begin, n), blocks);
      ASSERT_EQ(integers.blocks(begin, n), 1u);
      const std::vector<size_t> sizes = floats.block_sizes(begin, n);
      ASSERT_EQ(sizes.size(), blocks);
      ASSERT_EQ(std::accumulate(sizes.begin(), sizes.end(), size_t{0}), n);
      ASSERT_EQ(integers.block_sizes(begin, n), std::vector<size_t>{n});
    }
  }
  EXPECT_EQ(floats.block_sizes(5, 20), (std::vector<size_t>{2, 1, 17}));
}

TEST(Operation, FurtherInputsLieAsTheFirstDo) {
  // Two ranks' memory of one host, each with three tensors in a row.
  const float first[6] = {1e30f, 1.0f, 2.0f, 3.0f, 1e-30f, 2e-30f};
  const float second[6] = {1e30f, 5.0f, 6.0f, 7.0f, 3e-30f, 4e-30f};
  float sum[6] = {};
  Joint joint;
  joint.more_inputs = {second};
  const Operation operation(0, DataType::kFloat32, ReduceOp::kSum,
                            {{first, sum, 1}, {first + 1, sum + 1, 3}, {first + 4, sum + 4, 2}}, 2, 0, joint);
  for (const size_t begin : {0, 2}) {
    std::vector<int32_t> lanes(6);
    const Bytes scales = scales_of(operation, begin, 6 - begin);
    operation.to_narrow_lanes(begin, 6 - begin, scales.data(), reinterpret_cast<uint8_t*>(lanes.data()));
    operation.from_narrow_lanes(reinterpret_cast<const uint8_t*>(lanes.data()), begin, 6 - begin,
                                scales.data());
  }
  EXPECT_EQ(std::vector<float>(sum, sum + 6), (std::vector<float>{2e30f, 6.0f, 8.0f, 10.0f, 4e-30f, 6e-30f}));
}

TEST(Operation, WideLanesReportAnIntegerThatDoesNotFit) {
  const int32_t input[2] = {0, 0};
  int32_t output[2] = {-1, -1};
  const Operation operation(0, DataType::kInt32, ReduceOp::kSum,
                            {{input, output, 1}, {input + 1, output + 1, 1}}, 2, 0);
  const uint8_t scales[2] = {0, 1};
  const int64_t fits[2] = {INT32_MIN, INT32_MAX};
  EXPECT_TRUE(operation.from_wide_lanes(reinterpret_cast<const uint8_t*>(fits), 0, 2, scales));
  EXPECT_EQ(output[0], INT32_MIN);
  EXPECT_EQ(output[1], INT32_MAX);
  const int64_t too_large[2] = {int64_t{INT32_MAX} + 1,
                                5};  // in the first tensor: the second may not hide it
  EXPECT_FALSE(operation.from_wide_lanes(reinterpret_cast<const uint8_t*>(too_large), 0, 2, scales));
}

}  // namespace
}  // namespace netsum
