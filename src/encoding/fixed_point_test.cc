#include "src/encoding/fixed_point.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "src/base/rng.h"
#include "src/kernels/kernels.h"
#include "wire/ids.h"
#include "wire/packet.h"

namespace netsum::fixed_point_test {
namespace {

using Bytes = std::vector<uint8_t>;

// An encoding, and a sequence of tensors to try it on.
struct Trial {
  Trial(DataType type, ReduceOp op, int members, std::vector<TensorView> tensors, int lane_bits = 0)
      : encoding(type, op, members, lane_bits), sequence(type, std::move(tensors)) {}

  Bytes scan(size_t begin, size_t n) const {
    const Elements chunk{&sequence, begin, n};
    Bytes bytes(encoding.agreed_bytes(chunk) + 1, 77);
    encoding.scan(chunk, bytes.data());
    EXPECT_EQ(bytes.back(), 77);
    bytes.pop_back();
    return bytes;
  }
  ChunkPlan plan(size_t begin, size_t n, const uint8_t* agreed, uint32_t payload_bytes = 1440) const {
    return encoding.plan({&sequence, begin, n}, agreed, payload_bytes);
  }
  // The only packet of the chunk.
  template <typename Lane>
  void encode(size_t begin, size_t n, const uint8_t* agreed, Lane* lanes) const {
    const ChunkPlan plan = this->plan(begin, n, agreed);
    EXPECT_EQ(plan.packets, 1);
    EXPECT_EQ(plan.packet[0].payload_bytes, (n * sizeof(Lane) + 7) / 8 * 8);
    encoding.encode({&sequence, begin, n}, agreed, plan.packet[0], reinterpret_cast<uint8_t*>(lanes));
  }
  template <typename Lane>
  bool decode(size_t begin, size_t n, const uint8_t* agreed, const Lane* lanes) const {
    const Payloads payloads{reinterpret_cast<const uint8_t*>(lanes)};
    return encoding.decode({&sequence, begin, n}, agreed, plan(begin, n, agreed).packet[0], payloads);
  }

  FixedPoint encoding;
  TensorSequence sequence;
};

TEST(FixedPoint, LaneWidthFollowsTypeAndMembersAndIsSigned) {
  const auto encoding = [](DataType type, int members, int lane_bits) {
    return FixedPoint(type, ReduceOp::kSum, members, lane_bits);
  };
  for (const DataType type : {DataType::kBFloat16, DataType::kFloat16}) {
    EXPECT_EQ(encoding(type, 16, 0).narrow_lane_bytes(), 2u);
    EXPECT_EQ(encoding(type, 16, 0).wide_lane_bytes(), 4u);
    EXPECT_EQ(encoding(type, 16, 0).chunk_elements(1440), 720u);
    EXPECT_EQ(encoding(type, 16, 0).max_members(), 16);
    EXPECT_EQ(encoding(type, 17, 0).narrow_lane_bytes(), 4u);
    EXPECT_EQ(encoding(type, 2, 32).narrow_lane_bytes(), 4u);
    EXPECT_EQ(encoding(type, 2, 32).wide_lane_bytes(), 8u);
    EXPECT_EQ(encoding(type, 2, 0).signature(), encoding(type, 2, 16).signature());
    EXPECT_NE(encoding(type, 2, 0).signature(), encoding(type, 2, 32).signature());
  }
  for (const DataType type : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16}) {
    EXPECT_EQ(encoding(type, 64, 8).narrow_lane_bytes(), 1u);
    EXPECT_EQ(encoding(type, 64, 8).chunk_elements(1440), 1440u);
    EXPECT_EQ(encoding(type, 64, 8).max_members(), 64);
    EXPECT_EQ(encoding(type, 2, 8).value_format(), NETSUM_FORMAT_NONE)
        << "small operations have no other way";
    EXPECT_EQ(encoding(type, 2, 8).describe(), "in 8-bit lanes");
    EXPECT_NE(encoding(type, 2, 8).signature(), encoding(type, 2, 0).signature());
    EXPECT_NE(encoding(type, 2, 8).signature(), encoding(type, 2, 32).signature());
  }
  EXPECT_EQ(encoding(DataType::kFloat32, 2, 16).narrow_lane_bytes(), 4u);
  EXPECT_EQ(encoding(DataType::kInt32, 2, 8).narrow_lane_bytes(), 4u);
  EXPECT_EQ(encoding(DataType::kInt32, 2, 8).signature(), encoding(DataType::kInt32, 2, 0).signature());
  EXPECT_EQ(encoding(DataType::kInt32, 2, 16).narrow_lane_bytes(), 4u);
  EXPECT_EQ(encoding(DataType::kInt64, 2, 16).narrow_lane_bytes(), 8u);
}

TEST(FixedPoint, SixteenBitLanesRunAcrossTensors) {
  // 1.0 and -2.0 as bfloat16; with 4 members a unit is 2^-12 at exponent 128.
  const uint16_t input[5] = {0x3F80, 0xC000, 0, 0x3F80, 0x7F80};
  uint16_t output[5] = {};
  const Trial trial(DataType::kBFloat16, ReduceOp::kAvg, 4, {{input, output, 2}, {input + 2, output + 2, 3}});
  const uint8_t finite[] = {128, 0, 128, 0};
  int16_t lanes[5] = {0, 0, 0, 0, 777};
  trial.encode(0, 4, finite, lanes);
  EXPECT_EQ(std::vector<int16_t>(lanes, lanes + 5), (std::vector<int16_t>{2048, -4096, 0, 2048, 777}));
  for (auto& lane : lanes) lane = static_cast<int16_t>(lane * 4);
  EXPECT_TRUE(trial.decode(0, 4, finite, lanes));
  EXPECT_EQ(std::vector<uint16_t>(output, output + 5), (std::vector<uint16_t>{0x3F80, 0xC000, 0, 0x3F80, 0}));
  const uint8_t infinite[] = {128, 0, 128, 1};
  int32_t wide[4];
  trial.encode(1, 4, infinite, wide);
  EXPECT_EQ(std::vector<int32_t>(wide, wide + 4), (std::vector<int32_t>{-4096, 0, 2048, 1 << 16}));
  EXPECT_TRUE(trial.decode(1, 4, infinite, wide));
  EXPECT_EQ(std::vector<uint16_t>(output, output + 5),
            (std::vector<uint16_t>{0x3F80, 0xBF00, 0, 0x3E80, 0x7F80}));
}

TEST(FixedPoint, EightBitLanesRunAcrossTensorsAndHaveMarksBeside) {
  // With 4 members a unit is 2^-4 at exponent 127 and 2^-3 at 128, and no lane is further from 0 than 31.
  const float input[7] = {1.0f, -1.999f, 0.03f, 2.0f, -INFINITY, NAN, INFINITY};
  float output[7] = {};
  const Trial trial(DataType::kFloat32, ReduceOp::kAvg, 4, {{input, output, 3}, {input + 3, output + 3, 4}},
                    8);
  const uint8_t finite[] = {127, 0, 128, 0};
  int8_t lanes[8] = {0, 0, 0, 0, 77};
  trial.encode(0, 4, finite, lanes);
  EXPECT_EQ(std::vector<int8_t>(lanes, lanes + 5), (std::vector<int8_t>{16, -31, 0, 16, 77}));
  for (auto& lane : lanes) lane = static_cast<int8_t>(lane * 4);
  EXPECT_TRUE(trial.decode(0, 4, finite, lanes));
  EXPECT_EQ(std::vector<float>(output, output + 5), (std::vector<float>{1.0f, -1.9375f, 0, 2.0f, 0}));

  const uint8_t agreed[] = {127, 0, 128, 1};
  const ChunkPlan plan = trial.plan(0, 7, agreed);
  ASSERT_EQ(plan.packets, 2);
  EXPECT_TRUE(plan.together);
  EXPECT_EQ(plan.packet[0].format, NETSUM_FORMAT_SUM_I8);
  EXPECT_EQ(plan.packet[0].payload_bytes, 8u);
  EXPECT_EQ(plan.packet[1].format, NETSUM_FORMAT_OR_U64);
  EXPECT_EQ(plan.packet[1].payload_bytes, 8u) << "two bits for each element";
  EXPECT_EQ(trial.plan(0, 7, agreed).packet[1].begin, 0u);
  const Elements chunk{&trial.sequence, 0, 7};
  uint8_t marks[8];
  std::fill_n(marks, 8, uint8_t{0xFF});
  trial.encoding.encode(chunk, agreed, plan.packet[0], reinterpret_cast<uint8_t*>(lanes));
  trial.encoding.encode(chunk, agreed, plan.packet[1], marks);
  EXPECT_EQ(Bytes(marks, marks + 8), (Bytes{0, 0b01'11'10, 0, 0, 0, 0, 0, 0}));
  EXPECT_TRUE(
      trial.encoding.decode(chunk, agreed, plan.packet[0], {reinterpret_cast<const uint8_t*>(lanes), marks}));
  EXPECT_EQ(std::vector<float>(output, output + 5),
            (std::vector<float>{0.25f, -0.484375f, 0, 0.5f, -INFINITY}));
  EXPECT_TRUE(std::isnan(output[5]));
  EXPECT_EQ(output[6], INFINITY);
  EXPECT_FALSE(trial.encoding.sum(chunk, agreed, plan.packet[0])) << "there is no such pass";
}

// A payload has no room for two bytes for each element of it.
TEST(FixedPoint, TensorsOfOneElementShareScalesOf8BitLanes) {
  std::vector<float> input(64, 1.0f), output(64);
  std::vector<TensorView> tensors;
  for (size_t i = 0; i < 64; ++i) tensors.push_back({&input[i], &output[i], 1});
  input[2] = 4.0f;
  const Trial all(DataType::kFloat32, ReduceOp::kSum, 2, tensors, 8);
  const Bytes scales = all.scan(0, 64);
  ASSERT_EQ(scales.size(), 64u);
  EXPECT_EQ(Bytes(scales.begin(), scales.begin() + 6), (Bytes{127, 0, 129, 0, 127, 0}));
  EXPECT_EQ(all.scan(1, 63).size(), 64u) << "the last one has a block of its own";
  // Beside larger tensors, each has its own.
  const Trial three(DataType::kFloat32, ReduceOp::kSum, 2,
                    {{&input[0], &output[0], 2}, {&input[2], &output[2], 1}, {&input[3], &output[3], 1}}, 8);
  EXPECT_EQ(three.scan(0, 4), (Bytes{127, 0, 129, 0})) << "the third begins before there is room for three";
  const Trial larger(DataType::kFloat32, ReduceOp::kSum, 2,
                     {{&input[8], &output[8], 4}, {&input[2], &output[2], 1}, {&input[3], &output[3], 1}}, 8);
  EXPECT_EQ(larger.scan(0, 6), (Bytes{127, 0, 129, 0, 127, 0}));
}

TEST(FixedPoint, LanesRunAcrossTensorsAndSkipEmptyOnes) {
  std::vector<int32_t> input(30), output(30, -1);
  std::iota(input.begin(), input.end(), 0);
  const Trial trial(DataType::kInt32, ReduceOp::kSum, 2,
                    {{nullptr, nullptr, 0},
                     {&input[0], &output[0], 7},
                     {nullptr, nullptr, 0},
                     {nullptr, nullptr, 0},
                     {&input[7], &output[7], 1},
                     {&input[8], &output[8], 22},
                     {nullptr, nullptr, 0}});
  const uint8_t agreed[2] = {1, 0};  // integers are one block
  for (size_t begin = 0; begin <= 30; ++begin) {
    for (size_t n = 1; begin + n <= 30; ++n) {
      std::vector<int32_t> lanes(n + 1, 777);
      trial.encode(begin, n, agreed, lanes.data());
      for (size_t i = 0; i < n; ++i) ASSERT_EQ(lanes[i], static_cast<int32_t>(begin + i));
      ASSERT_EQ(lanes[n], 777);
      std::fill(output.begin(), output.end(), -1);
      EXPECT_TRUE(trial.decode(begin, n, agreed, lanes.data()));
      for (size_t i = 0; i < 30; ++i) {
        ASSERT_EQ(output[i], i >= begin && i < begin + n ? static_cast<int32_t>(i) : -1);
      }
    }
  }
}

TEST(FixedPoint, EachTensorHasItsOwnScale) {
  const float input[6] = {1.0f, 0.5f, 300.0f, 0.0f, 2.0f, INFINITY};
  float output[6];
  const Trial trial(DataType::kFloat32, ReduceOp::kSum, 2,
                    {{input, output, 2}, {input + 2, output + 2, 1}, {input + 3, output + 3, 3}});
  EXPECT_EQ(trial.scan(0, 2), (Bytes{127, 0}));
  EXPECT_EQ(trial.scan(0, 5), (Bytes{127, 0, 135, 0, 128, 0}));
  EXPECT_EQ(trial.scan(1, 5), (Bytes{126, 0, 135, 0, 128, 1}));
  EXPECT_EQ(trial.scan(3, 3), (Bytes{128, 1}));
  EXPECT_EQ(trial.scan(3, 1), (Bytes{0, 0}));
  EXPECT_EQ(trial.scan(3, 0), (Bytes{}));
}

TEST(FixedPoint, IntegersAreOneBlock) {
  std::vector<int32_t> memory(30, 5);
  memory[9] = INT32_MAX;
  const Trial trial(DataType::kInt32, ReduceOp::kSum, 2,
                    {{memory.data(), memory.data(), 7}, {&memory[7], &memory[7], 23}});
  EXPECT_EQ(trial.scan(0, 9), (Bytes{1, 0}));
  EXPECT_EQ(trial.scan(0, 10), (Bytes{1, 1}));
  std::fill(memory.begin(), memory.end(), 0);
  EXPECT_EQ(trial.scan(0, 30), (Bytes{0, 0}));
}

TEST(FixedPoint, AChunkThatIsZeroEverywhereHasNoPackets) {
  std::vector<float> memory(32, -0.0F);
  memory[31] = std::numeric_limits<float>::denorm_min();
  const Trial floats(DataType::kFloat32, ReduceOp::kAvg, 2,
                     {{memory.data(), memory.data(), 10}, {&memory[10], &memory[10], 22}});
  EXPECT_EQ(floats.scan(0, 31), (Bytes{0, 0, 0, 0}));
  EXPECT_EQ(floats.scan(0, 32), (Bytes{0, 0, 1, 0}));
  const uint8_t zero[] = {0, 0, 0, 0}, small[] = {0, 0, 1, 0}, special[] = {0, 1, 0, 0};
  EXPECT_EQ(floats.plan(0, 32, zero, 128).packets, 0);
  EXPECT_EQ(floats.plan(0, 32, small, 128).packets, 1) << "subnormal numbers are not zero";
  EXPECT_EQ(floats.plan(0, 32, special, 128).packets, 2) << "nor are NaN and infinity";
}

TEST(FixedPoint, AWideChunkIsTwoPacketsUnlessItFitsOne) {
  std::vector<float> memory(32);
  const Trial floats(DataType::kFloat32, ReduceOp::kSum, 2,
                     {{memory.data(), memory.data(), 10}, {&memory[10], &memory[10], 22}});
  const uint8_t agreed[] = {130, 0, 126, 1};
  const ChunkPlan one = floats.plan(2, 8, agreed, 64);  // of the first tensor alone
  EXPECT_EQ(one.packets, 1);
  EXPECT_EQ(one.packet[0].format, NETSUM_FORMAT_SUM_I32);
  EXPECT_EQ(floats.plan(5, 8, agreed, 64).packets, 1);
  const ChunkPlan two = floats.plan(5, 16, agreed, 64);
  ASSERT_EQ(two.packets, 2);
  EXPECT_FALSE(two.together);
  for (const PacketPlan& packet : two.packet) {
    EXPECT_EQ(packet.format, NETSUM_FORMAT_SUM_I64);
    EXPECT_EQ(packet.count, 8u);
    EXPECT_EQ(packet.payload_bytes, 64u);
  }
  EXPECT_EQ(two.packet[1].begin, 13u);
  // The second packet has elements of the second tensor alone, and its exponent.
  memory[13] = 0.25f;
  int64_t lanes[8];
  const Elements chunk{&floats.sequence, 5, 16};
  floats.encoding.encode(chunk, agreed, two.packet[1], reinterpret_cast<uint8_t*>(lanes));
  EXPECT_EQ(lanes[0], 1 << 28);  // quanta of 2^-30
  for (int64_t& lane : lanes) lane *= 2;
  EXPECT_TRUE(
      floats.encoding.decode(chunk, agreed, two.packet[1], {reinterpret_cast<const uint8_t*>(lanes)}));
  EXPECT_EQ(memory[13], 0.5f);
}

TEST(FixedPoint, Int64ThatMightOverflowIsDecodedFromBothHalves) {
  int64_t memory[3] = {INT64_MAX, -1, int64_t{5} << 40};
  const std::vector<int64_t> before(memory, memory + 3);
  const Trial trial(DataType::kInt64, ReduceOp::kSum, 1, {{memory, memory, 3}});
  const uint8_t agreed[] = {0, 1};
  const ChunkPlan plan = trial.plan(0, 3, agreed);
  ASSERT_EQ(plan.packets, 2);
  EXPECT_TRUE(plan.together);
  const Elements chunk{&trial.sequence, 0, 3};
  std::array<std::array<int64_t, 3>, 2> lanes;
  Payloads payloads;
  for (size_t i = 0; i < 2; ++i) {
    auto* payload = reinterpret_cast<uint8_t*>(lanes[i].data());
    trial.encoding.encode(chunk, agreed, plan.packet[i], payload);
    payloads[i] = payload;
  }
  std::fill(memory, memory + 3, 0);
  EXPECT_TRUE(trial.encoding.decode(chunk, agreed, plan.packet[0], payloads));
  EXPECT_EQ(std::vector<int64_t>(memory, memory + 3), before);
  lanes[1][0] = int64_t{1} << 31;
  EXPECT_FALSE(trial.encoding.decode(chunk, agreed, plan.packet[0], payloads));
}

TEST(FixedPoint, WideLanesReportAnIntegerThatDoesNotFit) {
  const int32_t input[2] = {0, 0};
  int32_t output[2] = {-1, -1};
  const Trial trial(DataType::kInt32, ReduceOp::kSum, 2, {{input, output, 1}, {input + 1, output + 1, 1}});
  const uint8_t agreed[2] = {0, 1};
  const int64_t fits[2] = {INT32_MIN, INT32_MAX};
  EXPECT_TRUE(trial.decode(0, 2, agreed, fits));
  EXPECT_EQ(output[0], INT32_MIN);
  EXPECT_EQ(output[1], INT32_MAX);
  // In the first tensor: the second may not hide it.
  const int64_t too_large[2] = {int64_t{INT32_MAX} + 1, 5};
  EXPECT_FALSE(trial.decode(0, 2, agreed, too_large));
}

TEST(TensorSequence, RunsEndWhereTensorsDoAndEmptyTensorsHaveNone) {
  std::vector<float> memory(30);
  std::vector<TensorView> tensors;
  for (const size_t count : {0, 7, 0, 0, 1, 22, 0}) {
    tensors.push_back({memory.data(), memory.data(), count, 100 + tensors.size()});
  }
  const TensorSequence sequence(DataType::kFloat32, tensors);
  const auto tensor_of = [](size_t element) { return element < 7 ? 1u : element < 8 ? 4u : 5u; };
  const auto first_of = [](uint64_t id) { return id == 101 ? 0u : id == 104 ? 7u : 8u; };
  for (size_t begin = 0; begin < 30; ++begin) {
    for (size_t n = 1; begin + n <= 30; ++n) {
      const Elements range{&sequence, begin, n};
      size_t done = 0, index = 0;
      range.for_each_run([&](const netsum::Run& run) {
        ASSERT_EQ(run.done, done);
        ASSERT_EQ(run.index, index++);
        ASSERT_EQ(sequence.run_of(begin, begin + done), run.index);
        ASSERT_EQ(run.tensor_id, 100 + tensor_of(begin + done));
        ASSERT_EQ(run.offset, begin + done - first_of(run.tensor_id));
        done += run.count;
      });
      ASSERT_EQ(done, n);
      ASSERT_EQ(range.runs(), index);
    }
  }
}

TEST(TensorSequence, APartOfATensorKnowsWhereItBegins) {
  float memory[10] = {};
  const TensorSequence part(DataType::kFloat32, {{memory, memory, 4, 7}, {memory + 4, memory + 4, 6, 8}}, {},
                            1000);
  std::vector<std::pair<uint64_t, size_t>> seen;
  part.for_each_run(2, 5, [&](const netsum::Run& run) { seen.emplace_back(run.tensor_id, run.offset); });
  EXPECT_EQ(seen, (std::vector<std::pair<uint64_t, size_t>>{{7, 1002}, {8, 0}}));
}

// What the members get if they agree, encode, have their lanes added, and decode.
Bytes sum_by_lanes(DataType type, ReduceOp op, int lane_bits, const std::vector<Bytes>& inputs, bool* fits) {
  const size_t count = inputs[0].size() / size_of(type);
  const int members = static_cast<int>(inputs.size());
  Bytes output(inputs[0].size());
  std::vector<Trial> trials;
  for (const Bytes& input : inputs)
    trials.emplace_back(type, op, members, std::vector<TensorView>{{input.data(), output.data(), count}},
                        lane_bits);
  Bytes agreed(2);
  for (const Trial& trial : trials) {
    const Bytes own = trial.scan(0, count);
    for (size_t i = 0; i < 2; ++i) agreed[i] = std::max(agreed[i], own[i]);
  }
  const Trial& any = trials.front();
  const ChunkPlan plan = any.plan(0, count, agreed.data());
  std::array<Bytes, kMaxPackets> sums;
  Payloads payloads{};
  *fits = true;
  for (size_t part = 0; part < plan.packets; ++part) {
    const PacketPlan& packet = plan.packet[part];
    sums[part].resize(packet.payload_bytes);
    payloads[part] = sums[part].data();
    for (const Trial& trial : trials) {
      Bytes lanes(packet.payload_bytes);
      trial.encoding.encode({&trial.sequence, 0, count}, agreed.data(), packet, lanes.data());
      const bool overflow =
          kernels::combine_lanes(packet.format, sums[part].data(), lanes.data(), lanes.size());
      EXPECT_FALSE(overflow);
    }
    if (plan.together) continue;
    Payloads one{payloads[part]};
    *fits &= any.encoding.decode({&any.sequence, 0, count}, agreed.data(), packet, one);
  }
  if (plan.together)
    *fits = any.encoding.decode({&any.sequence, 0, count}, agreed.data(), plan.packet[0], payloads);
  return output;
}

// Any bits, small numbers, and a few infinities and NaNs; integers that overflow, and that do not.
Bytes random_elements(Rng* rng, DataType type, size_t count) {
  Bytes bytes(count * size_of(type));
  const uint64_t kind = rng->below(4);
  for (size_t i = 0; i < count; ++i) {
    uint64_t bits = rng->next();
    if (kind > 0 && type == DataType::kInt32) bits = static_cast<uint64_t>(static_cast<int64_t>(bits) >> 40);
    if (kind > 0 && type == DataType::kInt64) bits = static_cast<uint64_t>(static_cast<int64_t>(bits) >> 8);
    if (kind > 0 && is_floating(type)) {
      const int exponent = static_cast<int>(rng->below(kind == 1 ? 3 : 30)) - (kind == 3 ? 150 : 10);
      const auto x =
          static_cast<float>(std::ldexp(static_cast<double>(bits >> 40) - (1 << 23), exponent - 23));
      bits = std::bit_cast<uint32_t>(x);
      if (type == DataType::kBFloat16) bits >>= 16;
      if (type == DataType::kFloat16) bits = rng->next() & 0xBFFF;  // finite
      if (rng->chance(0.001))
        bits = type == DataType::kFloat16 ? 0x7C00 : type == DataType::kBFloat16 ? 0x7F80 : 0xFF800000;
    }
    std::memcpy(&bytes[i * size_of(type)], &bits, size_of(type));
  }
  return bytes;
}

// The ranks of one host sum in one pass, and those of several hosts by lanes.
TEST(FixedPoint, OnePassSumsToTheSameBitsAs8BitLanes) {
  Rng rng(20261123);
  int passes = 0, marked = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    const DataType type =
        std::array{DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16}[rng.below(3)];
    const ReduceOp op = rng.chance(0.5) ? ReduceOp::kAvg : ReduceOp::kSum;
    const auto members = static_cast<size_t>(std::array{1, 2, 3, 8, 16, 64}[rng.below(6)]);
    const size_t count = 1 + rng.below(1440);
    std::vector<Bytes> inputs;
    for (size_t member = 0; member < members; ++member) inputs.push_back(random_elements(&rng, type, count));
    bool fits = false;
    const Bytes expected = sum_by_lanes(type, op, 8, inputs, &fits);
    ASSERT_TRUE(fits);

    const FixedPoint encoding(type, op, static_cast<int>(members), 8);
    Bytes output(inputs[0].size());
    std::vector<const void*> more;
    for (size_t member = 1; member < members; ++member) more.push_back(inputs[member].data());
    const TensorSequence sequence(type, {{inputs[0].data(), output.data(), count}}, more);
    const Elements chunk{&sequence, 0, count};
    uint8_t agreed[2];
    ASSERT_EQ(encoding.scan(chunk, agreed), 2u);
    const ChunkPlan plan = encoding.plan(chunk, agreed, 1440);
    if (plan.packets == 0) continue;
    if (encoding.sum(chunk, agreed, plan.packet[0])) {
      ++passes;
    } else {
      ++marked;
      Bytes payloads[2];
      for (size_t part = 0; part < plan.packets; ++part) {
        payloads[part].resize(plan.packet[part].payload_bytes, 0xFF);
        std::fill(payloads[part].end() - 8, payloads[part].end(), uint8_t{0});
        encoding.encode(chunk, agreed, plan.packet[part], payloads[part].data());
      }
      ASSERT_TRUE(encoding.decode(chunk, agreed, plan.packet[0], {payloads[0].data(), payloads[1].data()}));
    }
    ASSERT_EQ(output, expected) << "trial " << trial << ", type " << static_cast<int>(type) << ", " << members
                                << " members, " << count << " elements";
  }
  EXPECT_GT(passes, 100);
  EXPECT_GT(marked, 100);
}

TEST(FixedPoint, IntegersSumToTheSameBitsAsValuesAndAsLanes) {
  Rng rng(20261122);
  int unfit = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    const DataType type = rng.chance(0.5) ? DataType::kInt32 : DataType::kInt64;
    const int members = std::array{1, 2, 3, 8, 16, 17, 64}[rng.below(7)];
    const FixedPoint encoding(type, ReduceOp::kSum, members, 0);
    const size_t count = 1 + rng.below(encoding.chunk_elements(1440));
    std::vector<Bytes> inputs;
    Bytes together;
    for (int member = 0; member < members; ++member) {
      inputs.push_back(random_elements(&rng, type, count));
      together.insert(together.end(), inputs.back().begin(), inputs.back().end());
    }
    bool fits = false;
    const Bytes expected = sum_by_lanes(type, ReduceOp::kSum, 0, inputs, &fits);
    Bytes output(count * size_of(type));
    const kernels::Values values{together.data(), count * size_of(type), members, count};
    ASSERT_EQ(kernels::sum_values(type, false, values, output.data()), fits)
        << "trial " << trial << ", type " << static_cast<int>(type) << ", " << members << " members";
    if (fits) {
      ASSERT_EQ(output, expected) << "trial " << trial << ", type " << static_cast<int>(type) << ", "
                                  << members << " members";
    }
    unfit += !fits;
  }
  EXPECT_GT(unfit, 100);
}

}  // namespace
}  // namespace netsum::fixed_point_test
