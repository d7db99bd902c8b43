// Contributions and results without lanes. The test plays the aggregator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "src/worker/stripe.h"
#include "src/worker/stripe_testing.h"

namespace netsum::stripe_lanes_test {
namespace {

// Of this rank, which has nothing to add.
class StripeWithoutLanes : public StripeTest {
 protected:
  static StripeOptions options(bool takes_empty_packets, bool takes_no_result) {
    StripeOptions options = StripeTest::options();
    options.takes_empty_packets = takes_empty_packets;
    options.takes_no_result = takes_no_result;
    return options;
  }
  explicit StripeWithoutLanes(bool takes_empty_packets = true, bool takes_no_result = false)
      : StripeTest(options(takes_empty_packets, takes_no_result)) {}

  // The first packets of data of an operation to which this rank adds nothing.
  std::vector<Sent> start_empty(size_t chunks) {
    memory_.assign(chunks * 16, 5);
    OperationSpec spec;
    spec.type = DataType::kInt32;
    spec.tensors = {{nullptr, memory_.data(), memory_.size()}};
    spec.role.contributors = Ranks::none();
    spec.deadline_us = 1'000'000;
    operation_ = std::make_unique<Operation>(0, std::move(spec), 3);
    stripe_.enqueue(operation_.get());
    connect();
    const std::vector<Sent> scales = collect();
    EXPECT_EQ(scales.size(), 1u);
    scales_ = scales[0];
    now_ += kRoundTripUs;
    std::vector<uint8_t> agreed(scales_payload(scales_.fields), 0);
    for (size_t i = 0; i < chunks; ++i) agreed[2 * i] = 1;
    EXPECT_TRUE(answer(scales_, NETSUM_TYPE_RESULT, agreed).ok());
    return collect();
  }
  static size_t scales_payload(const netsum_fields& fields) {
    return (fields.flags & NETSUM_FLAG_EMPTY) != 0 ? fields.absent_bytes : fields.payload_bytes;
  }
  static std::vector<uint8_t> length(uint64_t bytes) {
    const netsum_be64 word = netsum_put64(bytes);
    return std::vector<uint8_t>(word.b, word.b + sizeof word);
  }
  Status result_without_lanes(const Sent& sent, uint32_t bytes) {
    netsum_fields fields = sent.fields;
    fields.type = NETSUM_TYPE_RESULT;
    fields.flags = NETSUM_FLAG_EMPTY;
    fields.member = NETSUM_MEMBER_ALL;
    fields.payload_bytes = NETSUM_EMPTY_BYTES;
    fields.absent_bytes = bytes;
    return stripe_.on_packet(now_, fields, length(bytes).data());
  }
  Sent scales_;
};

TEST_F(StripeWithoutLanes, ARankWithNothingToAddSendsNoLanes) {
  const std::vector<Sent> data = start_empty(3);
  ASSERT_EQ(data.size(), 3u);
  EXPECT_EQ(scales_.fields.flags, NETSUM_FLAG_EMPTY);
  EXPECT_EQ(scales_.fields.format, NETSUM_FORMAT_MAX_U8);
  for (const Sent& sent : data) {
    EXPECT_EQ(sent.fields.flags, NETSUM_FLAG_EMPTY);
    EXPECT_EQ(sent.fields.format, NETSUM_FORMAT_SUM_I32);
    EXPECT_EQ(sent.fields.absent_bytes, kPayload);
    EXPECT_EQ(sent.payload, length(kPayload));
  }
  const std::vector<uint8_t> sevens(kPayload, 7);
  EXPECT_TRUE(answer(data[0], NETSUM_TYPE_RESULT, sevens).ok());
  EXPECT_EQ(memory_[0], 0x07070707);
  EXPECT_EQ(memory_[16], 5);
}

TEST_F(StripeWithoutLanes, WhatIsSentAgainHasLanes) {
  const std::vector<Sent> data = start_empty(1);
  ASSERT_EQ(data.size(), 1u);
  now_ += 1'000'000;
  const std::vector<Sent> probes = collect();
  ASSERT_EQ(probes.size(), 1u);
  EXPECT_EQ(probes[0].fields.type, NETSUM_TYPE_PROBE);
  EXPECT_TRUE(status(probes[0], 7).ok());
  const std::vector<Sent> again = collect();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].fields.type, NETSUM_TYPE_CONTRIBUTION);
  EXPECT_EQ(again[0].fields.flags, 0);
  EXPECT_EQ(again[0].payload, std::vector<uint8_t>(kPayload));
}

TEST_F(StripeWithoutLanes, AResultWithoutLanesIsZeros) {
  const std::vector<Sent> data = start_empty(2);
  ASSERT_EQ(data.size(), 2u);
  EXPECT_TRUE(result_without_lanes(data[1], kPayload).ok());
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(memory_[16 + i], 0);
  EXPECT_EQ(memory_[0], 5);
  EXPECT_EQ(result_without_lanes(data[0], kPayload - 8).code(), ErrorCode::kInternal) << "of something else";
}

// An aggregator that cannot lengthen packets asks for one with lanes, although none was lost.
TEST_F(StripeWithoutLanes, BeingAskedForLanesIsNoLoss) {
  const std::vector<Sent> data = start(3);
  ASSERT_EQ(data.size(), 3u);
  const uint64_t window = stripe_.slots().window_packets(SlotLayout::kSums);
  EXPECT_TRUE(status(data[0], 7).ok());
  EXPECT_EQ(stripe_.slots().window_packets(SlotLayout::kSums), window);
  const std::vector<Sent> again = collect();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].payload, data[0].payload);
  EXPECT_EQ(again[0].fields.slot, data[0].fields.slot);
  EXPECT_TRUE(status(data[0], 7).ok());
  EXPECT_TRUE(collect().empty()) << "a duplicate of what asks";
}

class StripeOfOldAggregator : public StripeWithoutLanes {
 protected:
  StripeOfOldAggregator() : StripeWithoutLanes(false) {}
};
TEST_F(StripeOfOldAggregator, IsSentZeros) {
  const std::vector<Sent> data = start_empty(1);
  ASSERT_EQ(data.size(), 1u);
  EXPECT_EQ(scales_.fields.flags, 0);
  EXPECT_EQ(data[0].fields.flags, 0);
  EXPECT_EQ(data[0].payload, std::vector<uint8_t>(kPayload));
}

// This rank, 1, in a reduce-scatter of int32, of which the parts of ranks 0, 1 and 2 have a chunk each.
class ReduceScatterTest : public StripeWithoutLanes {
 protected:
  // The packets of data, in the order of the chunks.
  std::vector<Sent> start_parts() {
    memory_.assign(3 * 16, 0);
    for (size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<int32_t>(100 + i);
    OperationSpec spec;
    spec.type = DataType::kInt32;
    spec.one_tensor = true;
    spec.role = make_role(Collective::kReduceScatter, 0, 1);
    for (size_t part = 0; part < 3; ++part) spec.tensors.push_back({&memory_[part * 16], output_, 16});
    spec.deadline_us = 1'000'000;
    operation_ = std::make_unique<Operation>(0, std::move(spec), 3);
    stripe_.enqueue(operation_.get());
    connect();
    const std::vector<Sent> scales = collect();
    EXPECT_EQ(scales.size(), 1u);
    EXPECT_EQ(scales[0].fields.flags, 0) << "its scales count";
    now_ += kRoundTripUs;
    EXPECT_TRUE(result(scales[0]).ok());
    return collect();
  }
  // The sum of the others: all lanes are `value`.
  static std::vector<uint8_t> others(int32_t value) {
    const std::vector<int32_t> values(16, value);
    std::vector<uint8_t> bytes(kPayload);
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  void expect_sum(int32_t of_others) const {
    for (int32_t i = 0; i < 16; ++i) EXPECT_EQ(output_[i], 100 + 16 + i + of_others) << i;
  }
  int32_t output_[16] = {};
};

TEST_F(ReduceScatterTest, LanesThatNobodyElseNeedsAreKeptAndAdded) {
  const std::vector<Sent> data = start_parts();
  ASSERT_EQ(data.size(), 3u);
  EXPECT_EQ(data[0].fields.flags, 0);
  EXPECT_EQ(data[1].fields.flags, NETSUM_FLAG_EMPTY);
  EXPECT_EQ(data[2].fields.flags, 0);
  EXPECT_TRUE(answer(data[1], NETSUM_TYPE_RESULT, others(1000)).ok());
  expect_sum(1000);
  EXPECT_TRUE(answer(data[0], NETSUM_TYPE_RESULT, others(1)).ok());
  EXPECT_TRUE(answer(data[2], NETSUM_TYPE_RESULT, others(1)).ok());
  expect_sum(1000);
  EXPECT_EQ(operation_->chunks_left, 0u);
}

TEST_F(ReduceScatterTest, KeptLanesCountOnceWhenTheContributionIsSentAgain) {
  const std::vector<Sent> data = start_parts();
  ASSERT_EQ(data.size(), 3u);
  now_ += 1'000'000;
  for (const Sent& probe : collect()) EXPECT_TRUE(status(probe, 7).ok());
  for (const Sent& again : collect()) {
    ASSERT_EQ(again.fields.type, NETSUM_TYPE_CONTRIBUTION);
    EXPECT_EQ(again.fields.flags, 0) << "room for the result";
    const bool zeros =
        std::all_of(again.payload.begin(), again.payload.end(), [](uint8_t b) { return b == 0; });
    EXPECT_EQ(zeros, again.fields.chunk == 1);
    EXPECT_TRUE(answer(again, NETSUM_TYPE_RESULT, others(-7)).ok());
  }
  expect_sum(-7);
  EXPECT_EQ(operation_->chunks_left, 0u);
}

TEST_F(ReduceScatterTest, WithoutOtherLanesTheResultIsItsOwn) {
  const std::vector<Sent> data = start_parts();
  ASSERT_EQ(data.size(), 3u);
  EXPECT_TRUE(result_without_lanes(data[1], kPayload).ok());
  expect_sum(0);
}

TEST_F(ReduceScatterTest, ASumThatPassesItsLaneWithTheKeptOnesIsAnError) {
  const std::vector<Sent> data = start_parts();
  ASSERT_EQ(data.size(), 3u);
  EXPECT_EQ(answer(data[1], NETSUM_TYPE_RESULT, others(INT32_MAX - 110)).code(), ErrorCode::kOverflow);
}

// Bytes of rank 1, in three parts of a chunk each, at an aggregator that leaves out lanes of results.
class ResultsWithoutLanes : public StripeWithoutLanes {
 protected:
  explicit ResultsWithoutLanes(bool takes_no_result = true) : StripeWithoutLanes(true, takes_no_result) {}
  // Its packets, in the order of the chunks.
  std::vector<Sent> start_moving(Collective collective) {
    for (size_t i = 0; i < input_.size(); ++i) input_[i] = static_cast<uint8_t>(i + 1);
    OperationSpec spec;
    spec.type = DataType::kByte;
    spec.role = make_role(collective, 0, 1);
    for (size_t part = 0; part < 3; ++part)
      spec.tensors.push_back({&input_[part * kPayload], &output_[part * kPayload], kPayload});
    spec.deadline_us = 10'000'000;
    operation_ = std::make_unique<Operation>(0, std::move(spec), 3);
    stripe_.enqueue(operation_.get());
    connect();
    return in_order(collect());
  }
  static std::vector<Sent> in_order(std::vector<Sent> packets) {
    std::sort(packets.begin(), packets.end(),
              [](const Sent& a, const Sent& b) { return a.fields.chunk < b.fields.chunk; });
    return packets;
  }
  static std::vector<int> flags_of(const std::vector<Sent>& packets) {
    std::vector<int> flags;
    for (const Sent& sent : packets) flags.push_back(sent.fields.flags);
    return flags;
  }
  std::vector<uint8_t> input_ = std::vector<uint8_t>(3 * kPayload);
  std::vector<uint8_t> output_ = std::vector<uint8_t>(3 * kPayload);
};

TEST_F(ResultsWithoutLanes, ARankCopiesWhatItHasItself) {
  const std::vector<Sent> data = start_moving(Collective::kAllGather);
  ASSERT_EQ(flags_of(data), (std::vector<int>{NETSUM_FLAG_EMPTY, NETSUM_FLAG_NO_RESULT, NETSUM_FLAG_EMPTY}));
  EXPECT_TRUE(answer(data[0], NETSUM_TYPE_RESULT, std::vector<uint8_t>(kPayload, 201)).ok());
  EXPECT_TRUE(result_without_lanes(data[1], kPayload).ok());
  EXPECT_TRUE(answer(data[2], NETSUM_TYPE_RESULT, std::vector<uint8_t>(kPayload, 203)).ok());
  EXPECT_EQ(operation_->chunks_left, 0u);
  std::vector<uint8_t> expected(3 * kPayload, 201);
  std::copy_n(input_.begin() + kPayload, kPayload, expected.begin() + kPayload);
  std::fill_n(expected.begin() + 2 * kPayload, kPayload, uint8_t{203});
  EXPECT_EQ(output_, expected);
}

TEST_F(ResultsWithoutLanes, WhatIsSentAgainIsAsBefore) {
  const std::vector<Sent> data = start_moving(Collective::kGather);  // to rank 0
  constexpr int kNeither = NETSUM_FLAG_EMPTY | NETSUM_FLAG_NO_RESULT;
  ASSERT_EQ(flags_of(data), (std::vector<int>{kNeither, NETSUM_FLAG_NO_RESULT, kNeither}));
  now_ += 1'000'000;
  for (const Sent& probe : collect()) EXPECT_TRUE(status(probe, 7).ok());
  const std::vector<Sent> again = in_order(collect());
  EXPECT_EQ(flags_of(again), flags_of(data));
  for (size_t i = 0; i < again.size(); ++i) EXPECT_EQ(again[i].payload, data[i].payload);
  for (const Sent& sent : again) EXPECT_TRUE(result_without_lanes(sent, kPayload).ok());
  EXPECT_EQ(operation_->chunks_left, 0u);
  EXPECT_EQ(output_, std::vector<uint8_t>(3 * kPayload)) << "its outputs are not used";
}

// Floats that the aggregator adds, of rank 1: float32 in three parts of two chunks each.
class FloatsWithoutScales : public StripeWithoutLanes {
 protected:
  static constexpr size_t kPart = 2 * kPayload / sizeof(float);

  FloatsWithoutScales() : StripeWithoutLanes(true, true) {
    for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i) - 0.5f;
  }
  // Its packets.
  std::vector<Sent> start(Collective collective) {
    OperationSpec spec;
    spec.role = make_role(collective, 0, 1);
    for (size_t part = 0; part < 3; ++part)
      spec.tensors.push_back({&memory[part * kPart], &memory[part * kPart], kPart});
    spec.deadline_us = 10'000'000;
    operation_ =
        std::make_unique<Operation>(0, std::move(spec), 3, EncodingOptions{.floats = FloatSums::kAsTheyAre});
    stripe_.enqueue(operation_.get());
    connect();
    return collect();
  }
  std::vector<float> memory = std::vector<float>(3 * kPart);
};

TEST_F(FloatsWithoutScales, AllPacketsAreSentAtOnceAndTheFirstInAScaleSlot) {
  const std::vector<float> inputs = memory;
  const std::vector<Sent> sent = start(Collective::kAllReduce);
  ASSERT_EQ(sent.size(), 6u);
  std::set<uint32_t> chunks;
  for (const Sent& one : sent) {
    EXPECT_EQ(one.fields.format, NETSUM_FORMAT(NETSUM_OP_SUM_FLOATS, NETSUM_FLOAT_F32));
    EXPECT_EQ(one.fields.flags, 0);
    EXPECT_EQ(one.fields.slot >= 16, one.fields.chunk == 0);
    EXPECT_EQ(std::memcmp(one.payload.data(), &inputs[one.fields.chunk * 16], kPayload), 0);
    chunks.insert(one.fields.chunk);
    ASSERT_TRUE(answer(one, NETSUM_TYPE_RESULT, std::vector<uint8_t>(kPayload, 0x40)).ok());
  }
  EXPECT_EQ(chunks.size(), 6u);
  EXPECT_EQ(operation_->chunks_left, 0u);
  EXPECT_EQ(memory, std::vector<float>(3 * kPart, std::bit_cast<float>(0x40404040)));
}

// Of a reduce-scatter, this rank needs the second part alone, and has to contribute to it in its turn.
TEST_F(FloatsWithoutScales, ARankGetsNoSumsThatItDoesNotNeedAndKeepsNoneBack) {
  const std::vector<float> inputs = memory;
  const std::vector<Sent> sent = start(Collective::kReduceScatter);
  ASSERT_EQ(sent.size(), 6u);
  for (const Sent& one : sent) {
    const bool own = one.fields.chunk / 2 == 1;
    EXPECT_EQ(one.fields.flags, own ? 0 : NETSUM_FLAG_NO_RESULT) << one.fields.chunk;
    EXPECT_EQ(std::memcmp(one.payload.data(), &inputs[one.fields.chunk * 16], kPayload), 0);
    if (own)
      ASSERT_TRUE(answer(one, NETSUM_TYPE_RESULT, std::vector<uint8_t>(kPayload, 0x40)).ok());
    else
      ASSERT_TRUE(result_without_lanes(one, kPayload).ok());
  }
  EXPECT_EQ(operation_->chunks_left, 0u);
  for (size_t i = 0; i < memory.size(); ++i)
    EXPECT_EQ(memory[i], i / kPart == 1 ? std::bit_cast<float>(0x40404040) : inputs[i]) << i;
}

class OldResults : public ResultsWithoutLanes {
 protected:
  OldResults() : ResultsWithoutLanes(false) {}
};
TEST_F(OldResults, HaveLanesForAll) {
  const std::vector<Sent> data = start_moving(Collective::kGather);
  EXPECT_EQ(flags_of(data), (std::vector<int>{NETSUM_FLAG_EMPTY, 0, NETSUM_FLAG_EMPTY}));
}

}  // namespace
}  // namespace netsum::stripe_lanes_test
