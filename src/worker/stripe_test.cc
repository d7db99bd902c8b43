// Rules of one stripe that a simulated run shows only by accident. The test plays the aggregator.
#include "src/worker/stripe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

#include "src/worker/stripe_testing.h"

namespace netsum::stripe_test {
namespace {

// Bytes need no agreement: the first chunk of a group goes to the scale slot, the others to data slots, all at once.
TEST_F(StripeTest, BytesAreSentAtOnceTheFirstOfEachGroupInAScaleSlot) {
  constexpr size_t kChunks = kPayload / 2 + 3;  // two groups
  std::vector<uint8_t> bytes(kChunks * kPayload), out(bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * i);
  OperationSpec spec;
  spec.type = DataType::kByte;
  spec.tensors = {{bytes.data(), out.data(), bytes.size()}};
  const auto operation = std::make_unique<Operation>(0, std::move(spec), 3);
  stripe_.enqueue(operation.get());
  EXPECT_EQ(operation->chunks_left, kChunks);
  connect();
  std::vector<std::pair<uint16_t, uint32_t>> slots_and_chunks;
  std::vector<Sent> due = collect();
  while (!due.empty()) {
    now_ += kRoundTripUs;
    for (const Sent& sent : due) {
      EXPECT_EQ(sent.fields.format, NETSUM_FORMAT_SUM_I64);
      slots_and_chunks.emplace_back(sent.fields.slot, sent.fields.chunk);
      EXPECT_TRUE(result(sent).ok());
    }
    due = collect();
  }
  EXPECT_EQ(operation->chunks_left, 0u);
  EXPECT_NE(stripe_.take_finished(), nullptr);
  EXPECT_EQ(out, bytes);
  std::vector<uint32_t> in_scale_slots;
  std::vector<bool> seen(kChunks);
  for (const auto& [slot, chunk] : slots_and_chunks) {
    if (slot >= options().data_slots) in_scale_slots.push_back(chunk);
    EXPECT_FALSE(seen[chunk]) << chunk;
    seen[chunk] = true;
  }
  EXPECT_EQ(in_scale_slots, (std::vector<uint32_t>{0, kPayload / 2}));
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](bool chunk) { return chunk; }));

  // An all-reduce follows in the next scale slot.
  memory_.assign(16, 5);
  operation_ = integers(1, &memory_);
  stripe_.enqueue(operation_.get());
  const std::vector<Sent> scales = collect();
  ASSERT_EQ(scales.size(), 1u);
  EXPECT_EQ(scales[0].fields.format, NETSUM_FORMAT_MAX_U8);
  EXPECT_EQ(scales[0].fields.slot, options().data_slots);
  EXPECT_EQ(scales[0].fields.round, 2u);
}

TEST_F(StripeTest, EveryThirdHelloIsSmallAndTheyBecomeRarer) {
  std::vector<uint32_t> sizes;
  std::vector<int64_t> times;
  while (sizes.size() < 12) {
    for (const Sent& sent : collect()) {
      EXPECT_EQ(sent.fields.type, NETSUM_TYPE_HELLO);
      sizes.push_back(sent.fields.payload_bytes);
      times.push_back(now_);
    }
    if (stripe_.next_tick_us() <= now_) stripe_.on_tick(now_);
    now_ = stripe_.next_tick_us();
  }
  for (size_t i = 0; i < sizes.size(); ++i) EXPECT_EQ(sizes[i], i % 3 == 2 ? 0u : kPayload);
  for (size_t i = 2; i < times.size(); ++i) {
    EXPECT_EQ(times[i] - times[i - 1], std::min<int64_t>(int64_t{1000} << i, 256'000));
  }
}

TEST_F(StripeTest, AWelcomeOfASmallHelloDoesNotConnect) {
  netsum_fields fields{};
  fields.type = NETSUM_TYPE_WELCOME;
  EXPECT_TRUE(stripe_.on_packet(now_, fields, nullptr).ok());
  EXPECT_FALSE(stripe_.connection().welcomed());
  EXPECT_TRUE(stripe_.connection().only_small_packets_pass());
  fields.payload_bytes = kPayload;
  EXPECT_TRUE(stripe_.on_packet(now_, fields, nullptr).ok());
  EXPECT_TRUE(stripe_.connection().welcomed());
  EXPECT_FALSE(stripe_.connection().only_small_packets_pass());
}

TEST(StripeInAGroupTest, IsConnectedWhenBothWaysHaveBroughtAnAnswer) {
  StripeOptions options;
  options.address.family = options.multicast_group.family = 4;
  options.payload_bytes = kPayload;
  options.world_size = 3;
  options.member = 1;
  netsum_fields to_us{}, to_all{};
  to_us.type = to_all.type = NETSUM_TYPE_WELCOME;
  to_us.payload_bytes = to_all.payload_bytes = kPayload;
  to_us.member = 1;
  to_all.member = NETSUM_MEMBER_ALL;
  for (const bool group_first : {false, true}) {
    Stripe stripe(options);
    EXPECT_TRUE(stripe.on_packet(0, group_first ? to_all : to_us, nullptr).ok());
    EXPECT_FALSE(stripe.connection().welcomed());
    EXPECT_EQ(stripe.connection().multicast_is_silent(), !group_first);
    EXPECT_FALSE(stripe.connection().multicast_is_lost(1'999'999));
    EXPECT_EQ(stripe.connection().multicast_is_lost(2'000'000), !group_first);
    uint8_t frame[NETSUM_HEADER_BYTES + kPayload];
    EXPECT_NE(stripe.next_packet(0, frame), 0u) << "it goes on saying HELLO";
    EXPECT_TRUE(stripe.on_packet(0, group_first ? to_us : to_all, nullptr).ok());
    EXPECT_TRUE(stripe.connection().welcomed());
    EXPECT_FALSE(stripe.connection().multicast_is_silent());
  }
}

TEST_F(StripeTest, StepsUseTheSlotsInTurnAndRoundsCountUp) {
  std::vector<Sent> data = start(32);
  ASSERT_EQ(data.size(), 16u);
  for (uint32_t q = 0; q < 16; ++q) {
    EXPECT_EQ(data[q].fields.slot, q);
    EXPECT_EQ(data[q].fields.round, 1u);
    EXPECT_EQ(data[q].fields.chunk, q);
  }
  now_ += kRoundTripUs;
  EXPECT_TRUE(result(data[1]).ok());
  EXPECT_TRUE(collect().empty()) << "slot 0 is next, and still waits";
  EXPECT_TRUE(result(data[0]).ok());
  const std::vector<Sent> next = collect();
  ASSERT_EQ(next.size(), 2u);
  EXPECT_EQ(next[0].fields.slot, 0u);
  EXPECT_EQ(next[0].fields.round, 2u);
  EXPECT_EQ(next[0].fields.chunk, 16u);
}

TEST_F(StripeTest, AStaleOrRepeatedResultIsDropped) {
  const std::vector<Sent> data = start(32);
  now_ += kRoundTripUs;
  EXPECT_TRUE(result(data[0]).ok());
  EXPECT_EQ(collect().size(), 1u);  // round 2 of slot 0
  memory_[0] = memory_[16 * 16] = -1;
  EXPECT_TRUE(result(data[0]).ok());
  EXPECT_EQ(memory_[0], -1);
  EXPECT_EQ(memory_[16 * 16], -1);
  EXPECT_EQ(stripe_.counters().dropped.get(), 1u);
}

TEST_F(StripeTest, AResultOfSomethingElseInALiveRoundEndsTheJob) {
  std::vector<Sent> data = start(4);
  data[0].fields.chunk = 2;
  EXPECT_EQ(result(data[0]).code(), ErrorCode::kInternal);
  data[1].fields.signature ^= 1;
  EXPECT_EQ(result(data[1]).code(), ErrorCode::kInternal);
}

TEST_F(StripeTest, AnOverdueStepIsAskedForAndSentAgainOnlyIfItIsMissing) {
  const std::vector<Sent> data = start(2);
  ASSERT_EQ(data.size(), 2u);
  now_ += 10 * kRoundTripUs;
  const std::vector<Sent> probes = collect();
  ASSERT_EQ(probes.size(), 2u);
  for (const Sent& probe : probes) EXPECT_EQ(probe.fields.type, NETSUM_TYPE_PROBE);
  now_ += kRoundTripUs;
  EXPECT_TRUE(status(probes[0], 0b010).ok());  // ours is in
  EXPECT_TRUE(status(probes[1], 0b101).ok());  // ours is not
  const std::vector<Sent> again = collect();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].fields.type, NETSUM_TYPE_CONTRIBUTION);
  EXPECT_EQ(again[0].fields.slot, 1u);
  EXPECT_EQ(again[0].payload, data[1].payload);
  // A second answer from before the payload went again says nothing new.
  now_ += kRoundTripUs / 2;
  EXPECT_TRUE(status(probes[1], 0b101).ok());
  EXPECT_TRUE(collect().empty());
}

// A software switch takes as long. Once the round trip is known, no result that is merely on its way is asked for.
TEST_F(StripeTest, ARoundTripOfASecondNeedsNoProbes) {
  constexpr int64_t kSlowUs = 1'000'000, kStepUs = 10'000;
  std::deque<std::pair<int64_t, Sent>> on_their_way;
  for (const Sent& data : start(32)) on_their_way.emplace_back(now_ + kSlowUs, data);
  uint32_t results = 0, probes = 0;
  while (!on_their_way.empty()) {
    now_ += kStepUs;
    while (!on_their_way.empty() && on_their_way.front().first <= now_) {
      ASSERT_TRUE(result(on_their_way.front().second).ok());
      on_their_way.pop_front();
      ++results;
    }
    for (const Sent& sent : collect()) {
      if (sent.fields.type == NETSUM_TYPE_CONTRIBUTION)
        on_their_way.emplace_back(now_ + kSlowUs, sent);
      else if (results >= 16)
        ++probes;
    }
  }
  EXPECT_EQ(results, 32u);
  EXPECT_EQ(probes, 0u);
}

TEST_F(StripeTest, ALostResultIsHadByContributingAgain) {
  const std::vector<Sent> data = start(1);
  now_ += 10 * kRoundTripUs;
  const std::vector<Sent> probes = collect();
  ASSERT_EQ(probes.size(), 1u);
  now_ += kRoundTripUs;
  EXPECT_TRUE(status(probes[0], 0b111).ok());
  const std::vector<Sent> again = collect();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].fields.type, NETSUM_TYPE_CONTRIBUTION);
  EXPECT_EQ(again[0].payload, data[0].payload);
}

// What waits in a queue while a PROBE passes it, or goes by another way, as multicast does, is not lost.
TEST_F(StripeTest, ALossCountsUnlessTheFirstCopyComes) {
  const std::vector<Sent> data = start(5);
  now_ += 10 * kRoundTripUs;
  const std::vector<Sent> probes = collect();
  ASSERT_EQ(probes.size(), 5u);
  now_ += kRoundTripUs;
  EXPECT_TRUE(status(probes[0], 0b111).ok());
  EXPECT_TRUE(result(data[0]).ok()) << "before the payload is sent again";
  EXPECT_TRUE(status(probes[1], 0b111).ok());
  EXPECT_TRUE(status(probes[2], 0b111).ok());
  EXPECT_TRUE(status(probes[3], 0b101).ok());
  EXPECT_EQ(collect().size(), 3u);
  now_ += kRoundTripUs / 4;
  EXPECT_TRUE(result(data[1]).ok()) << "sooner than an answer to that";
  EXPECT_EQ(stripe_.counters().losses.get(), 0u);
  now_ += kRoundTripUs;
  EXPECT_TRUE(result(data[2]).ok());
  EXPECT_EQ(stripe_.counters().losses.get(), 1u) << "one of two results, by all that is known";
  EXPECT_TRUE(result(data[2]).ok());
  EXPECT_EQ(stripe_.counters().losses.get(), 0u) << "both";
  EXPECT_TRUE(result(data[1]).ok());
  EXPECT_TRUE(result(data[2]).ok());
  EXPECT_TRUE(result(data[3]).ok());
  EXPECT_TRUE(result(data[4]).ok());
  EXPECT_EQ(stripe_.counters().losses.get(), 1u) << "the contribution of the fourth";
  EXPECT_EQ(stripe_.counters().retransmissions.get(), 3u);
}

// Its result may answer either of the two packets (Karn's rule).
TEST_F(StripeTest, AStepThatWasSentAgainTellsNothingOfTheRoundTrip) {
  const std::vector<Sent> data = start(1);
  const uint64_t before_us = stripe_.counters().srtt_us.get();
  ASSERT_EQ(before_us, static_cast<uint64_t>(kRoundTripUs));
  now_ += 10 * kRoundTripUs;
  const std::vector<Sent> probes = collect();
  ASSERT_EQ(probes.size(), 1u);
  EXPECT_TRUE(status(probes[0], 0b101).ok());
  const std::vector<Sent> again = collect();
  ASSERT_EQ(again.size(), 1u);
  now_ += 4 * kRoundTripUs;
  EXPECT_TRUE(result(again[0]).ok());
  EXPECT_EQ(stripe_.counters().srtt_us.get(), before_us);
}

TEST_F(StripeTest, ASumThatLeftTheRangeOfItsLanesIsNotDelivered) {
  const std::vector<Sent> data = start(1);
  const std::vector<int32_t> before = memory_;
  const Status status = answer(data[0], NETSUM_TYPE_RESULT, std::vector<uint8_t>(data[0].payload.size(), 9),
                               NETSUM_FLAG_OVERFLOW);
  EXPECT_EQ(status.code(), ErrorCode::kOverflow);
  EXPECT_EQ(memory_, before);
}

TEST_F(StripeTest, AStatusForAnotherMemberIsDropped) {
  std::vector<Sent> data = start(1);
  data[0].fields.member = 2;
  EXPECT_TRUE(status(data[0], 0b100).ok());
  EXPECT_TRUE(collect().empty());
  EXPECT_EQ(stripe_.counters().dropped.get(), 1u);
}

TEST_F(StripeTest, AnOlderStatusDoesNotMakeAMemberMissingAgain) {
  const std::vector<Sent> data = start(1);
  now_ += kRoundTripUs;
  EXPECT_TRUE(status(data[0], 0b011).ok());
  EXPECT_TRUE(status(data[0], 0b010).ok());
  EXPECT_TRUE(status(data[0], 0b001).ok());  // from before our own came in
  EXPECT_TRUE(collect().empty());
  const Stripe::Waiting waiting = stripe_.waiting(now_);
  EXPECT_EQ(waiting.operation, operation_.get());
  EXPECT_TRUE(waiting.answered);
  EXPECT_EQ(waiting.contributed, 0b011u);
}

TEST_F(StripeTest, AGapIsAskedForBeforeTheTimeout) {
  const std::vector<Sent> data = start(32);
  now_ += kRoundTripUs;
  for (size_t q = 1; q <= 7; ++q) EXPECT_TRUE(result(data[q]).ok());
  EXPECT_TRUE(collect().empty()) << "up to seven may have overtaken it";
  EXPECT_TRUE(result(data[8]).ok());
  const std::vector<Sent> probes = collect();
  ASSERT_EQ(probes.size(), 1u);
  EXPECT_EQ(probes[0].fields.type, NETSUM_TYPE_PROBE);
  EXPECT_EQ(probes[0].fields.slot, 0u);
}

class ManySlotsTest : public StripeTest {
 protected:
  ManySlotsTest() : StripeTest(with_many_slots()) {}

  static StripeOptions with_many_slots() {
    StripeOptions options = StripeTest::options();
    options.data_slots = 256;
    options.scale_slots = 16;
    return options;
  }
  // Those of data.
  std::vector<Sent> contributions() {
    std::vector<Sent> all = collect();
    std::erase_if(all, [](const Sent& sent) {
      return sent.fields.type != NETSUM_TYPE_CONTRIBUTION || sent.fields.format != NETSUM_FORMAT_SUM_I32;
    });
    return all;
  }
};

// Whatever they wait for is not in the network: their own packets again, or those of other members.
TEST_F(ManySlotsTest, StepsThatOthersHaveOvertakenTakeNoRoomOfTheWindow) {
  memory_.assign(96 * 16, 5);
  operation_ = integers(0, &memory_);
  stripe_.enqueue(operation_.get());
  connect();
  const std::vector<Sent> scales = collect();
  now_ += kRoundTripUs;
  for (const Sent& sent : scales) EXPECT_TRUE(result(sent).ok());
  const std::vector<Sent> data = contributions();
  ASSERT_EQ(data.size(), 32u);
  now_ += kRoundTripUs;
  EXPECT_TRUE(result(data[20]).ok());
  const std::vector<Sent> more = contributions();
  ASSERT_EQ(more.size(), 33u - (32u - 21u));  // the result is one more for the window

  EXPECT_TRUE(status(data[0], 0b101).ok());
  EXPECT_EQ(contributions().size(), 1u) << "sent again";
  EXPECT_TRUE(result(more[1]).ok());
  EXPECT_EQ(contributions().size(), 32u - (54u - 34u) - 1u) << "that one takes room";
}

TEST_F(StripeTest, WaitingIsJudgedByTheLowestStepNotByTheOneSentFirst) {
  const std::vector<Sent> data = start(2);
  now_ += 10 * kRoundTripUs;
  const std::vector<Sent> probes = collect();
  EXPECT_TRUE(status(probes[0], 0b001).ok());
  EXPECT_TRUE(status(probes[1], 0b010).ok());
  EXPECT_EQ(collect().size(), 1u);  // slot 0 again: now slot 1 is the one sent first
  EXPECT_EQ(stripe_.waiting(now_).contributed, 0b001u);
}

TEST_F(StripeTest, AnErrorNamesTheRankThatDiffers) {
  const std::vector<Sent> data = start(1);
  const Status other = answer(data[0], NETSUM_TYPE_ERROR, {0, NETSUM_ERROR_MISMATCH, 0, 2, 0, 0, 0, 0});
  EXPECT_EQ(other.code(), ErrorCode::kMismatch);
  EXPECT_EQ(other.rank(), 2);
  EXPECT_THAT(other.message(), testing::HasSubstr("rank 2 is not"));
  const Status self = answer(data[0], NETSUM_TYPE_ERROR, {0, NETSUM_ERROR_MISMATCH, 0, 1, 0, 0, 0, 0});
  EXPECT_EQ(self.rank(), 1);
  EXPECT_THAT(self.message(), testing::HasSubstr("at least one other rank"));
  EXPECT_EQ(answer(data[0], NETSUM_TYPE_ERROR, {0, 99, 0, 1, 0, 0, 0, 0}).code(), ErrorCode::kInternal);
}

TEST_F(StripeTest, TheOperationIsFinishedWithItsLastGroup) {
  const std::vector<Sent> data = start(3);
  EXPECT_EQ(operation_->chunks_left, 3u);
  for (const Sent& sent : data) {
    EXPECT_EQ(stripe_.take_finished(), nullptr);
    EXPECT_TRUE(result(sent).ok());
  }
  EXPECT_NE(stripe_.take_finished(), nullptr);
  EXPECT_EQ(stripe_.take_finished(), nullptr);
  EXPECT_EQ(operation_->chunks_left, 0u);
  EXPECT_EQ(stripe_.waiting(now_).operation, nullptr);
}

class ValuesTest : public StripeTest {
 protected:
  ValuesTest()
      : StripeTest([] {
          StripeOptions options = StripeTest::options();
          options.sums_values = true;
          return options;
        }()) {
    connect();
  }
  static constexpr uint8_t kFormat = NETSUM_FORMAT(NETSUM_OP_SUM_VALUES, NETSUM_VALUE_I32);
};

TEST_F(ValuesTest, ASmallOperationIsOneRoundTripInTheScaleSlots) {
  memory_ = {1, 2, 3};
  operation_ = integers(0, &memory_);
  stripe_.enqueue(operation_.get());
  const std::vector<Sent> sent = collect();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].fields.format, kFormat);
  EXPECT_EQ(sent[0].fields.slot, 16);  // the first behind the data slots
  EXPECT_EQ(sent[0].fields.payload_bytes, 16u);
  EXPECT_EQ(sent[0].payload, (std::vector<uint8_t>{1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0}));
  ASSERT_TRUE(answer(sent[0], NETSUM_TYPE_RESULT, {3, 0, 0, 0, 6, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0}).ok());
  EXPECT_NE(stripe_.take_finished(), nullptr);
  EXPECT_EQ(memory_, (std::vector<int32_t>{3, 6, 9}));
  EXPECT_TRUE(collect().empty());
}

TEST_F(ValuesTest, OperationsFollowEachOtherThroughTheSlotsInOrder) {
  // Five chunks of values through two scale slots, then scales and data of a large operation, then values again.
  std::vector<int32_t> small(5 * 16, 1), large(17 * 16, 2), last(1, 3);
  const auto first = integers(0, &small), second = integers(1, &large), third = integers(2, &last);
  for (Operation* operation : {first.get(), second.get(), third.get()}) stripe_.enqueue(operation);
  std::vector<std::pair<uint8_t, uint32_t>> order;
  for (std::vector<Sent> sent = collect(); !sent.empty(); sent = collect()) {
    for (auto one = sent.rbegin(); one != sent.rend(); ++one) {  // results may arrive in any order
      ASSERT_TRUE(result(*one).ok());
    }
    for (const Sent& one : sent) order.emplace_back(one.fields.format, one.fields.chunk);
  }
  ASSERT_EQ(order.size(), 5u + 1u + 17u + 1u);
  for (uint32_t chunk = 0; chunk < 5; ++chunk) EXPECT_EQ(order[chunk], std::pair(kFormat, chunk));
  EXPECT_EQ(std::count(order.begin(), order.end(), std::pair(uint8_t{NETSUM_FORMAT_MAX_U8}, 0u)), 1);
  EXPECT_EQ(std::count_if(order.begin(), order.end(),
                          [](const auto& one) { return one.first == NETSUM_FORMAT_SUM_I32; }),
            17);
  EXPECT_EQ(first->chunks_left + second->chunks_left + third->chunks_left, 0u);
}

TEST_F(ValuesTest, ALostContributionIsFoundAndSentAgainFromTheTensor) {
  memory_ = {7};
  operation_ = integers(0, &memory_);
  stripe_.enqueue(operation_.get());
  const Sent lost = collect().at(0);
  now_ += 1'000'000;
  const Sent probe = collect().at(0);
  EXPECT_EQ(probe.fields.type, NETSUM_TYPE_PROBE);
  const Stripe::Waiting waiting = stripe_.waiting(now_);
  EXPECT_EQ(waiting.operation, operation_.get());
  ASSERT_TRUE(status(probe, 5).ok());  // members 0 and 2 have contributed
  const std::vector<Sent> again = collect();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].payload, lost.payload);
  EXPECT_EQ(stripe_.counters().retransmissions.get(), 1u);
}

class PartialFloatsTest : public StripeTest {
 protected:
  PartialFloatsTest()
      : StripeTest([] {
          StripeOptions options = StripeTest::options();
          options.sums_partial_floats = true;
          options.summands = options.world_size;
          return options;
        }()) {
    connect();
  }
  // One element of 2 in bfloat16.
  std::unique_ptr<Operation> mean_of_bfloat16(int lane_bits) {
    OperationSpec spec;
    spec.type = DataType::kBFloat16;
    spec.op = ReduceOp::kAvg;
    spec.tensors = {{&element_, &element_, 1}};
    spec.deadline_us = INT64_MAX;
    return std::make_unique<Operation>(0, spec, stripe_.options().world_size,
                                       EncodingOptions{.lane_bits = lane_bits});
  }
  uint16_t element_ = 0x4000;
};

TEST_F(PartialFloatsTest, TheRankDividesAndRoundsTheSumInFloat32) {
  operation_ = mean_of_bfloat16(32);
  stripe_.enqueue(operation_.get());
  const std::vector<Sent> sent = collect();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].fields.format, NETSUM_FORMAT(NETSUM_OP_SUM_FLOATS, NETSUM_FLOAT_F32));
  EXPECT_EQ(sent[0].payload, (std::vector<uint8_t>{0, 0, 0, 0x40, 0, 0, 0, 0}));
  // 3.01: a third is 1.00333, which is 1 in bfloat16.
  ASSERT_TRUE(answer(sent[0], NETSUM_TYPE_RESULT, {0xD7, 0xA3, 0x40, 0x40, 0, 0, 0, 0}).ok());
  EXPECT_NE(stripe_.take_finished(), nullptr);
  EXPECT_EQ(element_, 0x3F80);
}

TEST_F(PartialFloatsTest, WhatDoesNotFitAPacketInFloat32TravelsInLanes) {
  operation_ = mean_of_bfloat16(16);
  stripe_.enqueue(operation_.get());
  EXPECT_EQ(collect().at(0).fields.format, NETSUM_FORMAT_MAX_U8);
}

TEST_F(PartialFloatsTest, IntegersTravelInLanes) {
  memory_ = {1, 2, 3};
  operation_ = integers(0, &memory_);
  stripe_.enqueue(operation_.get());
  EXPECT_EQ(collect().at(0).fields.format, NETSUM_FORMAT_MAX_U8);
}

}  // namespace
}  // namespace netsum::stripe_test
