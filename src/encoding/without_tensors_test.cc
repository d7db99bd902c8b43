#include "src/encoding/without_tensors.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "netsum/options.h"

namespace netsum::without_tensors_test {
namespace {

constexpr uint32_t kPayload = 64;

struct Case {
  EncodingOptions options;
  DataType type;
  ReduceOp op;
};

const std::vector<Case> kCases = {
    {{}, DataType::kFloat32, ReduceOp::kSum},
    {{.lane_bits = 8}, DataType::kBFloat16, ReduceOp::kAvg},
    {{.floats = FloatSums::kAsTheyAre}, DataType::kFloat32, ReduceOp::kAvg},
    {{.floats = FloatSums::kInFloat32}, DataType::kFloat16, ReduceOp::kSum},
    {{}, DataType::kInt64, ReduceOp::kSum},
    {{}, DataType::kInt32, ReduceOp::kMax},
    {{}, DataType::kByte, ReduceOp::kSum},
};

// The other ranks must not see a difference.
TEST(WithoutTensors, SendsThePacketsOfTheOtherRanks) {
  for (const Case& one : kCases) {
    SCOPED_TRACE(data_type_name(one.type));
    const auto with = make_encoding(one.options, one.type, one.op, 4);
    EncodingOptions options = one.options;
    options.without_tensors = true;
    const auto without = make_encoding(options, one.type, one.op, 4);
    EXPECT_EQ(without->signature(), with->signature());
    EXPECT_EQ(without->agrees(), with->agrees());
    EXPECT_EQ(without->value_format(), with->value_format());
    EXPECT_EQ(without->separates_tensors(), with->separates_tensors());
    ASSERT_EQ(without->chunk_elements(kPayload), with->chunk_elements(kPayload));
    // No memory is behind the outputs: nothing may be written there.
    auto* const nothing = reinterpret_cast<uint8_t*>(uintptr_t{64});
    const Contribution zeros;
    const size_t count = with->chunk_elements(kPayload);
    const TensorSequence sequence(one.type, {{&zeros, nothing, count - 1}, {&zeros, nothing, 1}});
    const Elements chunk{&sequence, 0, count};
    std::array<uint8_t, kPayload> agreed;
    agreed.fill(0xff);
    ASSERT_EQ(without->agreed_bytes(chunk), with->agreed_bytes(chunk));
    EXPECT_EQ(without->scan(chunk, agreed.data()), with->agreed_bytes(chunk));
    for (size_t i = 0; i < with->agreed_bytes(chunk); ++i) EXPECT_EQ(agreed[i], 0);
    // As another rank requires.
    agreed.fill(1);
    const ChunkPlan plan = without->plan(chunk, agreed.data(), kPayload);
    ASSERT_EQ(plan.packets, with->plan(chunk, agreed.data(), kPayload).packets);
    ASSERT_GT(plan.packets, 0);
    for (size_t i = 0; i < plan.packets; ++i) {
      std::vector<uint8_t> payload(plan.packet[i].payload_bytes, 0xff);
      without->encode(chunk, agreed.data(), plan.packet[i], payload.data());
      EXPECT_EQ(payload, std::vector<uint8_t>(payload.size(), 0));
      EXPECT_TRUE(without->decode(chunk, agreed.data(), plan.packet[i], {payload.data(), payload.data()}));
    }
    without->decode_zeros(chunk);
  }
}

// What a rank contributes for chunk 1 of an operation: its required bytes, and its packets where it decides alone.
struct Sent {
  std::vector<uint8_t> required, payload;
  std::vector<float> values;  // that come out, if it is the only rank
};

Sent sent_by(const EncodingOptions& options, DataType type, const Contribution& of) {
  constexpr uint32_t kFull = 1440;
  EncodingOptions without = options;
  without.without_tensors = true;
  const auto encoding = make_encoding(without, type, ReduceOp::kSum, 4);
  const size_t count = encoding->chunk_elements(kFull);
  const TensorSequence sequence(type, {{&of, nullptr, 3 * count}});
  const Elements chunk{&sequence, count, count};
  Sent sent;
  sent.required.resize(encoding->agreed_bytes(chunk), 0xff);
  encoding->scan(chunk, sent.required.data());
  // As others require at least.
  std::vector<uint8_t> agreed = sent.required;
  if (!agreed.empty()) agreed[0] = std::max<uint8_t>(agreed[0], 1);
  const ChunkPlan plan = encoding->plan(chunk, agreed.data(), kFull);
  EXPECT_EQ(plan.packets, 1);
  sent.payload.resize(plan.packet[0].payload_bytes, 0xff);
  encoding->encode(chunk, agreed.data(), plan.packet[0], sent.payload.data());
  if (type != DataType::kFloat32) return sent;
  sent.values.resize(3 * count);
  const TensorSequence out(type, {{nullptr, sent.values.data(), 3 * count}});
  make_encoding(options, type, ReduceOp::kSum, 4)
      ->decode({&out, count, count}, agreed.data(), plan.packet[0], {sent.payload.data()});
  sent.values = {sent.values.begin() + static_cast<std::ptrdiff_t>(count),
                 sent.values.begin() + static_cast<std::ptrdiff_t>(2 * count)};
  return sent;
}

std::vector<uint8_t> scales_of(uint8_t scale) {
  return std::vector<uint8_t>(100, scale);
}

// What one value of that exponent requires, required by a rank with tensors.
std::vector<uint8_t> required_by(const EncodingOptions& options, float value) {
  const auto encoding = make_encoding(options, DataType::kFloat32, ReduceOp::kSum, 4);
  std::vector<float> values(encoding->chunk_elements(1440));
  values[0] = value;
  const TensorSequence sequence(DataType::kFloat32, {{values.data(), nullptr, values.size()}});
  const Elements chunk{&sequence, 0, values.size()};
  std::vector<uint8_t> bytes(encoding->agreed_bytes(chunk));
  encoding->scan(chunk, bytes.data());
  return bytes;
}

TEST(WithoutTensors, ZerosRequireTheRecordedScales) {
  const std::vector<uint8_t> scales = scales_of(130);  // 8 to 16
  for (const int lane_bits : {0, 16, 8}) {
    const EncodingOptions options{.lane_bits = lane_bits, .fixed_floats = true};
    const Sent sent = sent_by(options, DataType::kFloat32, {.scales = scales});
    EXPECT_EQ(sent.required, required_by(options, 8));
    EXPECT_NE(sent.required, required_by(options, 4));
    EXPECT_EQ(sent.payload, std::vector<uint8_t>(sent.payload.size(), 0));
  }
}

TEST(WithoutTensors, NoiseHasTheRecordedScales) {
  for (const uint8_t scale : {41, 100, 127, 130, 253}) {
    for (const EncodingOptions& options :
         {EncodingOptions{.fixed_floats = true}, EncodingOptions{.floats = FloatSums::kAsTheyAre}}) {
      const std::vector<uint8_t> scales = scales_of(scale);
      const Sent sent = sent_by(options, DataType::kFloat32, {.scales = scales, .noise = true, .seed = 3});
      const float magnitude = std::ldexp(1.0f, scale - 127);
      if (!sent.required.empty()) EXPECT_EQ(sent.required, required_by(options, magnitude));
      size_t negative = 0, large = 0;
      for (const float value : sent.values) {
        ASSERT_TRUE(std::isnormal(value) || (options.fixed_floats && value == 0)) << value;
        ASSERT_LT(std::abs(value), 2 * magnitude);
        negative += value < 0 ? 1 : 0;
        large += std::abs(value) >= magnitude ? 1 : 0;
      }
      const size_t count = sent.values.size();
      EXPECT_TRUE(negative > count / 3 && negative < 2 * count / 3) << negative;
      EXPECT_TRUE(large > count / 3 && large < 2 * count / 3) << "of a uniform distribution: " << large;
    }
  }
}

// A packet that is sent again is the same one; other ranks and operations have other noise.
TEST(WithoutTensors, NoiseFollowsFromItsSeed) {
  const EncodingOptions options{.floats = FloatSums::kAsTheyAre};
  const std::vector<uint8_t> scales = scales_of(127);
  const auto noise = [&](uint64_t seed, DataType type = DataType::kFloat32) {
    return sent_by(options, type, {.scales = scales, .noise = true, .seed = seed}).payload;
  };
  EXPECT_EQ(noise(3), noise(3));
  EXPECT_NE(noise(3), noise(4));
  for (const DataType type : {DataType::kBFloat16, DataType::kFloat16})
    EXPECT_NE(noise(3, type), std::vector<uint8_t>(noise(3, type).size(), 0));
}

TEST(WithoutTensors, NoiseOfVerySmallOrNoScaleIsNeverSubnormal) {
  const EncodingOptions options{.floats = FloatSums::kAsTheyAre};
  for (const uint8_t scale : {0, 1, 20}) {
    const std::vector<uint8_t> scales = scales_of(scale);
    const Sent sent = sent_by(options, DataType::kFloat32, {.scales = scales, .noise = true});
    for (const float value : sent.values) ASSERT_TRUE(value == 0 || std::isnormal(value)) << value;
  }
}

}  // namespace
}  // namespace netsum::without_tensors_test
