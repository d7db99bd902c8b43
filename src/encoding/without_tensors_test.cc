#include "src/encoding/without_tensors.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "netsum/options.h"

namespace netsum {
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
    // No memory is behind the pointers: nothing may be read or written there.
    auto* const nothing = reinterpret_cast<uint8_t*>(uintptr_t{64});
    const size_t count = with->chunk_elements(kPayload);
    const TensorSequence sequence(one.type, {{nothing, nothing, count - 1}, {nothing, nothing, 1}});
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

}  // namespace
}  // namespace netsum
