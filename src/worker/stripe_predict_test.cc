// Data that is sent before its scales are agreed on. The test plays the aggregator, and the other two ranks, which send zeros
// unless the test says otherwise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <utility>

#include "src/worker/modes/predicted_scales.h"
#include "src/worker/stripe_testing.h"

namespace netsum::stripe_predict_test {
namespace {

constexpr size_t kLanes = kPayload / 4;  // elements of a chunk

StripeOptions predicting(StripeOptions options, bool without_lanes) {
  options.data_slots = 128;
  options.scale_slots = 8;
  options.predicts_scales = true;
  options.takes_empty_packets = options.takes_no_result = without_lanes;
  return options;
}

class PredictTest : public StripeTest {
 protected:
  explicit PredictTest(bool without_lanes = false) : StripeTest(predicting(options(), without_lanes)) {
    connect();
  }

  // An operation of `chunks` chunks in place, with this value everywhere.
  void enqueue(size_t chunks, float value) {
    floats_.assign(chunks * kLanes, value);
    OperationSpec spec;
    spec.tensors = {{floats_.data(), floats_.data(), floats_.size()}};
    spec.deadline_us = INT64_MAX;
    operation_ = std::make_unique<Operation>(number_++, std::move(spec), 3);
    stripe_.enqueue(operation_.get());
  }
  void finish() {
    for (std::vector<Sent> sent = collect(); operation_->chunks_left > 0; sent = collect()) {
      ASSERT_FALSE(sent.empty());
      for (const Sent& one : sent)
        ASSERT_TRUE((one.fields.type == NETSUM_TYPE_PROBE ? status(one, 0b111) : result(one)).ok());
      now_ += 10 * kRoundTripUs;
    }
  }
  Status result(const Sent& sent) {
    return answer(sent, NETSUM_TYPE_RESULT, sent.payload, sent.fields.flags & NETSUM_FLAG_PART);
  }
  // So often that the next one is predicted.
  void teach(size_t chunks, float value) {
    for (int i = 0; i < 3; ++i) {
      enqueue(chunks, value);
      EXPECT_EQ(collect_once().size(), 1u) << "scales alone";
      finish();
      EXPECT_EQ(floats_, std::vector<float>(chunks * kLanes, value));
    }
  }
  std::vector<Sent> collect_once() {
    std::vector<Sent> sent = collect();
    for (const Sent& one : sent)
      EXPECT_TRUE(one.fields.format == NETSUM_FORMAT_MAX_U8 ? result(one).ok() : true);
    return sent;
  }
  // The maximum with what the others require of every chunk.
  static Sent raised(Sent scales, uint8_t exponent, size_t chunk) {
    scales.payload[2 * chunk] = std::max(scales.payload[2 * chunk], exponent);
    return scales;
  }
  uint64_t predicted() { return stripe_.counters().scales_predicted.get(); }
  uint64_t mispredicted() { return stripe_.counters().scales_mispredicted.get(); }

  std::vector<float> floats_;
  uint64_t number_ = 0;
};

class PredictWithoutLanesTest : public PredictTest {
 protected:
  PredictWithoutLanesTest() : PredictTest(true) {}
};

TEST_F(PredictTest, ScalesAndDataGoInOneRoundTrip) {
  teach(3, 1.5f);
  EXPECT_EQ(predicted(), 0u);
  enqueue(3, 1.25f);
  const std::vector<Sent> sent = collect();
  ASSERT_EQ(sent.size(), 4u);
  EXPECT_EQ(sent[0].fields.format, NETSUM_FORMAT_MAX_U8);
  for (const Sent& one : sent) EXPECT_TRUE(result(one).ok());
  EXPECT_NE(stripe_.take_finished(), nullptr);
  EXPECT_TRUE(collect().empty());
  EXPECT_EQ(floats_, std::vector<float>(3 * kLanes, 1.25f));
  EXPECT_EQ(predicted(), 3u);
  EXPECT_EQ(mispredicted(), 0u);
}

TEST_F(PredictTest, TheSignatureCoversEveryPredictedByte) {
  enqueue(1, 1);
  const uint8_t one[] = {120, 118}, other[] = {120, 119};
  Step step;
  step.operation = operation_.get();
  step.predicted = true;
  step.chunk = operation_->chunk_of(0, kLanes);
  step.chunk.agreed = one;
  const uint32_t signature = PredictedScales::signature_of(step);
  step.chunk.agreed = other;
  EXPECT_NE(PredictedScales::signature_of(step), signature);
}

TEST_F(PredictTest, WithoutTheOptionTheyNeverDo) {
  StripeOptions without = predicting(options(), false);
  without.predicts_scales = false;
  Stripe stripe(without);
  netsum_fields welcome{};
  welcome.type = NETSUM_TYPE_WELCOME;
  welcome.payload_bytes = kPayload;
  ASSERT_TRUE(stripe.on_packet(now_, welcome, nullptr).ok());
  for (int i = 0; i < 10; ++i) {
    floats_.assign(kLanes, 1);
    OperationSpec spec;
    spec.tensors = {{floats_.data(), floats_.data(), floats_.size()}};
    operation_ = std::make_unique<Operation>(static_cast<uint64_t>(i), std::move(spec), 3);
    stripe.enqueue(operation_.get());
    uint8_t frame[NETSUM_HEADER_BYTES + kPayload];
    for (int packets = 0; operation_->chunks_left > 0; ++packets) {
      ASSERT_LT(packets, 2);
      netsum_fields fields{};
      const uint32_t size = stripe.next_packet(now_, frame);
      ASSERT_EQ(netsum_parse(frame, size, &fields), NETSUM_DROP_NONE);
      uint8_t more[sizeof frame];
      ASSERT_EQ(stripe.next_packet(now_, more), 0u);
      ASSERT_EQ(fields.format, packets == 0 ? NETSUM_FORMAT_MAX_U8 : NETSUM_FORMAT_SUM_I32);
      fields.type = NETSUM_TYPE_RESULT;
      ASSERT_TRUE(stripe.on_packet(now_, fields, frame + NETSUM_HEADER_BYTES).ok());
    }
  }
}

// Another rank has a larger element in chunk 1 than ever before.
TEST_F(PredictTest, OnlyWhatWasPredictedWrongIsSentAgain) {
  teach(3, 1.5f);
  enqueue(3, 1.25f);
  const std::vector<Sent> sent = collect();
  ASSERT_EQ(sent.size(), 4u);
  ASSERT_TRUE(result(raised(sent[0], 130, 1)).ok());
  for (size_t i = 1; i < 4; ++i) {
    ASSERT_TRUE(answer(sent[i], NETSUM_TYPE_RESULT, std::vector<uint8_t>(kPayload, uint8_t{0})).ok());
  }
  EXPECT_EQ(floats_[0], 0.0f);
  EXPECT_EQ(floats_[kLanes], 1.25f) << "the input stays";
  EXPECT_EQ(floats_[2 * kLanes], 0.0f);
  const std::vector<Sent> again = collect();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].fields.chunk, 1u);
  EXPECT_NE(again[0].fields.signature, sent[2].fields.signature) << "the two are never added";
  EXPECT_EQ(again[0].fields.signature, operation_->signature());
  EXPECT_NE(again[0].payload, sent[2].payload);
  ASSERT_TRUE(result(again[0]).ok());
  EXPECT_EQ(operation_->chunks_left, 0u);
  EXPECT_EQ(floats_[kLanes], 1.25f);
  EXPECT_EQ(mispredicted(), 1u);
  // The next time, all wait for the agreement. Then that chunk does, but the others do not.
  enqueue(3, 1.25f);
  EXPECT_EQ(collect_once().size(), 1u);
  finish();
  enqueue(3, 1.25f);
  const std::vector<Sent> next = collect();
  ASSERT_EQ(next.size(), 3u);
  EXPECT_EQ(next[1].fields.chunk, 0u);
  EXPECT_EQ(next[2].fields.chunk, 2u);
}

// The signature tells what was predicted, so ranks that predict differently find a mismatch.
TEST_F(PredictTest, PredictionsAreSigned) {
  for (int i = 0; i < 4; ++i) {
    enqueue(3, 1.5f);
    floats_[0] = 1000;
    if (i < 3) finish();
  }
  const std::vector<Sent> sent = collect();
  ASSERT_EQ(sent.size(), 4u);
  EXPECT_NE(sent[1].fields.signature, sent[2].fields.signature);
  EXPECT_EQ(sent[2].fields.signature, sent[3].fields.signature);
}

// So that other stripes do not wait for this one.
TEST_F(PredictTest, ChunksThatAreSentAgainAreNoStepBack) {
  teach(3, 1.5f);
  const uint64_t first = 1000;
  enqueue(3, 1.5f);
  operation_->first_chunk = first;
  EXPECT_EQ(stripe_.next_chunk(0), first);
  const std::vector<Sent> sent = collect();
  ASSERT_TRUE(result(raised(sent.at(0), 140, 0)).ok());
  EXPECT_EQ(stripe_.next_chunk(0), first + 2) << "chunk 0 is next";
  finish();
  EXPECT_EQ(stripe_.next_chunk(0), UINT64_MAX);
}

TEST_F(PredictTest, ResultsThatOvertakeTheAgreementWaitForIt) {
  teach(2, 1.5f);
  enqueue(2, 1.25f);
  const std::vector<Sent> sent = collect();
  ASSERT_EQ(sent.size(), 3u);
  const std::vector<uint8_t> zeros(kPayload);
  ASSERT_TRUE(answer(sent[2], NETSUM_TYPE_RESULT, zeros).ok());
  ASSERT_TRUE(answer(sent[1], NETSUM_TYPE_RESULT, zeros).ok());
  EXPECT_EQ(floats_, std::vector<float>(2 * kLanes, 1.25f)) << "the input stays";
  EXPECT_EQ(operation_->chunks_left, 2u);
  ASSERT_TRUE(result(raised(sent[0], 140, 0)).ok());
  EXPECT_EQ(floats_[0], 1.25f) << "its sum is worthless";
  EXPECT_EQ(floats_[kLanes], 0.0f);
  finish();
  EXPECT_EQ(floats_[0], 1.25f);
}

TEST_F(PredictTest, AnOverflowCountsOnlyIfThePredictionWasRight) {
  for (const bool right : {false, true}) {
    for (const bool early : {false, true}) {
      SCOPED_TRACE(testing::Message() << right << early);
      teach(1, 1.5f);
      enqueue(1, 1.5f);
      const std::vector<Sent> sent = collect();
      ASSERT_EQ(sent.size(), 2u);
      const auto scales = [&] { return result(right ? sent[0] : raised(sent[0], 200, 0)); };
      const auto data = [&] {
        return answer(sent[1], NETSUM_TYPE_RESULT, sent[1].payload, NETSUM_FLAG_OVERFLOW);
      };
      const Status first = early ? data() : scales();
      ASSERT_TRUE(first.ok());
      const Status second = early ? scales() : data();
      EXPECT_EQ(second.code(), right ? ErrorCode::kOverflow : ErrorCode::kOk);
      if (!right) finish();
      if (right) return;
    }
  }
}

// More than there is room for: the others are asked for again, as if they had been lost.
TEST_F(PredictTest, ManyResultsMayOvertakeTheAgreement) {
  constexpr size_t kChunks = kPayload / 2;  // of one group
  teach(kChunks, 1.5f);
  enqueue(kChunks, 1.25f);
  std::vector<Sent> sent = collect();
  const Sent scales = sent.at(0);
  sent.erase(sent.begin());
  ASSERT_EQ(sent.size(), kChunks);
  for (const Sent& one : sent) ASSERT_TRUE(result(one).ok());
  EXPECT_EQ(operation_->chunks_left, kChunks);
  ASSERT_TRUE(result(scales).ok());
  EXPECT_EQ(operation_->chunks_left, kChunks) << "of the group";
  const uint64_t before = stripe_.counters().retransmissions.get();
  now_ += 1'000'000;
  finish();
  EXPECT_EQ(stripe_.counters().retransmissions.get() - before, kChunks - 16);
  EXPECT_EQ(floats_, std::vector<float>(kChunks * kLanes, 1.25f));
}

// Its elements do not fit into the lanes.
TEST_F(PredictTest, ARankThatRequiresMoreSendsZeros) {
  teach(2, 1.5f);
  enqueue(2, 1.5f);
  floats_[3] = std::numeric_limits<float>::infinity();
  const std::vector<Sent> sent = collect();
  ASSERT_EQ(sent.size(), 3u);
  EXPECT_EQ(sent[1].payload, std::vector<uint8_t>(kPayload));
  EXPECT_NE(sent[2].payload, std::vector<uint8_t>(kPayload));
  for (const Sent& one : sent) ASSERT_TRUE(result(one).ok());
  finish();
  EXPECT_EQ(floats_[3], std::numeric_limits<float>::infinity());
  EXPECT_EQ(floats_[2], 1.5f);
}

TEST_F(PredictWithoutLanesTest, ARankThatRequiresMoreSendsAndGetsNoLanes) {
  teach(1, 1.5f);
  enqueue(1, 3e30f);
  const std::vector<Sent> sent = collect();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[1].fields.flags, NETSUM_FLAG_EMPTY | NETSUM_FLAG_NO_RESULT);
  EXPECT_EQ(sent[1].fields.payload_bytes, uint32_t{NETSUM_EMPTY_BYTES});
  EXPECT_EQ(netsum_full_bytes(&sent[1].fields), kPayload);
  ASSERT_TRUE(result(sent[0]).ok());
  netsum_fields fields = sent[1].fields;
  fields.type = NETSUM_TYPE_RESULT;
  fields.flags = NETSUM_FLAG_EMPTY;
  ASSERT_TRUE(stripe_.on_packet(now_, fields, sent[1].payload.data()).ok());
  finish();
  EXPECT_EQ(floats_[0], 3e30f);
}

// The chunk has been sent again meanwhile, its result may be in the memory, and its elements in no range.
TEST_F(PredictTest, AContributionThatWasLostIsRepeatedAsZerosIfItIsWorthless) {
  teach(1, 1.5f);
  enqueue(1, 1.5f);
  const std::vector<Sent> sent = collect();
  ASSERT_EQ(sent.size(), 2u);
  ASSERT_TRUE(result(raised(sent[0], 254, 0)).ok());
  const std::vector<Sent> again = collect();
  ASSERT_EQ(again.size(), 1u);
  ASSERT_TRUE(result(again[0]).ok());
  EXPECT_EQ(operation_->chunks_left, 1u) << "it may not end before its packets are answered";
  now_ += 1'000'000;
  const std::vector<Sent> probes = collect();
  ASSERT_EQ(probes.size(), 1u);
  EXPECT_EQ(probes[0].fields.type, NETSUM_TYPE_PROBE);
  ASSERT_TRUE(status(probes[0], 0b101).ok());
  const std::vector<Sent> repeated = collect();
  ASSERT_EQ(repeated.size(), 1u);
  EXPECT_EQ(repeated[0].fields.signature, sent[1].fields.signature);
  EXPECT_EQ(repeated[0].payload, std::vector<uint8_t>(kPayload));
  const float before = floats_[0];
  ASSERT_TRUE(answer(repeated[0], NETSUM_TYPE_RESULT, sent[1].payload).ok());
  EXPECT_EQ(floats_[0], before);
  EXPECT_EQ(operation_->chunks_left, 0u);
}

// An aggregator with a parent sends its sum up again only when a member whose lanes it has sends lanes again.
TEST_F(PredictWithoutLanesTest, WhatWasSentWithLanesIsRepeatedWithLanes) {
  teach(1, 1.5f);
  floats_.assign(kLanes, 1.5f);
  OperationSpec spec;
  spec.tensors = {{floats_.data(), floats_.data(), floats_.size()}};
  spec.role = make_role(Collective::kReduce, 0, 1);  // this rank needs no lanes of the result
  for (int i = 0; i < 4; ++i) {
    operation_ = std::make_unique<Operation>(number_++, spec, 3);
    stripe_.enqueue(operation_.get());
    if (i < 3) finish();
  }
  const std::vector<Sent> sent = collect();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[1].fields.flags, NETSUM_FLAG_NO_RESULT);
  ASSERT_TRUE(result(raised(sent[0], 254, 0)).ok());
  collect();
  now_ += 1'000'000;
  for (const Sent& probe : collect()) {
    EXPECT_EQ(probe.fields.type, NETSUM_TYPE_PROBE);
    if (probe.fields.slot == sent[1].fields.slot) ASSERT_TRUE(status(probe, 0b111).ok());
  }
  const std::vector<Sent> repeated = collect();
  ASSERT_EQ(repeated.size(), 1u);
  EXPECT_EQ(repeated[0].fields.signature, sent[1].fields.signature);
  EXPECT_EQ(repeated[0].fields.flags, NETSUM_FLAG_NO_RESULT);
  EXPECT_EQ(repeated[0].payload, std::vector<uint8_t>(kPayload));
}

// All ranks must send the same steps in the same order, so data goes ahead of its own agreement only.
TEST_F(PredictTest, TheNextOperationWaitsForTheAgreementOfTheOneBefore) {
  teach(1, 1.5f);
  std::vector<float> second(kLanes, 1.75f);
  enqueue(1, 1.5f);
  OperationSpec spec;
  spec.tensors = {{second.data(), second.data(), second.size()}};
  Operation next(number_++, std::move(spec), 3);
  stripe_.enqueue(&next);
  const std::vector<Sent> sent = collect();
  ASSERT_EQ(sent.size(), 3u);
  EXPECT_EQ(sent[2].fields.format, NETSUM_FORMAT_MAX_U8);
  ASSERT_TRUE(result(sent[2]).ok());
  EXPECT_TRUE(collect().empty());
  ASSERT_TRUE(result(raised(sent[0], 140, 0)).ok());
  const std::vector<Sent> data = collect();
  ASSERT_EQ(data.size(), 2u);
  EXPECT_EQ(data[0].fields.signature, operation_->signature()) << "again, before the next one";
  for (const Sent& one : {sent[1], data[0], data[1]}) ASSERT_TRUE(result(one).ok());
  EXPECT_EQ(operation_->chunks_left + next.chunks_left, 0u);
  EXPECT_EQ(second, std::vector<float>(kLanes, 1.75f));
}

// Integers are sent in narrow lanes at once, and in wide lanes if they might overflow.
TEST_F(PredictTest, Integers) {
  std::vector<int64_t> large;
  for (int i = 0; i < 6; ++i) {
    large.assign(8, i == 5 ? std::numeric_limits<int64_t>::max() / 2 : 3);
    OperationSpec spec;
    spec.type = DataType::kInt64;
    spec.tensors = {{large.data(), large.data(), large.size()}};
    operation_ = std::make_unique<Operation>(number_++, std::move(spec), 3);
    stripe_.enqueue(operation_.get());
    std::vector<Sent> sent = collect();
    EXPECT_EQ(sent.size(), i < 3 ? 1u : 2u) << i;
    int rounds = 0;
    for (; !sent.empty(); sent = collect(), ++rounds)
      for (const Sent& one : sent) ASSERT_TRUE(result(one).ok());
    EXPECT_EQ(rounds, i == 3 || i == 4 ? 1 : 2) << i;
    EXPECT_EQ(large[0], i == 5 ? std::numeric_limits<int64_t>::max() / 2 : 3) << i;
  }
}

TEST_F(PredictTest, ChunksOfZerosAreNotSent) {
  for (int i = 0; i < 6; ++i) {
    enqueue(2, 0);
    EXPECT_EQ(collect_once().size(), 1u);
    EXPECT_EQ(operation_->chunks_left, 0u);
  }
  EXPECT_EQ(predicted(), 0u);
}

}  // namespace
}  // namespace netsum::stripe_predict_test
