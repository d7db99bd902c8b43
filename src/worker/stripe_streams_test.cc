// Sums and byte transfers at the same time. The test plays the aggregator.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "src/worker/stripe.h"
#include "src/worker/stripe_testing.h"

namespace netsum::stripe_streams_test {
namespace {

class StripeStreamsTest : public StripeTest {
 protected:
  static constexpr SlotLayout kLayout = SlotLayout(16, 16);
  static constexpr size_t kGroup = kPayload / 2;  // chunks of a scale group

  StripeStreamsTest()
      : StripeTest([] {
          StripeOptions options = StripeTest::options();
          options.scale_slots = 16;
          return options;
        }()) {
    connect();
  }

  // Both live until the end of the test.
  Operation* sum(size_t chunks) {
    memories_.push_back(std::make_unique<std::vector<int32_t>>(chunks * 16, 5));
    return submit(integers(operations_.size(), memories_.back().get()));
  }
  Operation* move(size_t chunks, Collective collective = Collective::kBroadcast) {
    memories_.push_back(std::make_unique<std::vector<int32_t>>(chunks * 16, 5));
    OperationSpec spec;
    spec.type = DataType::kByte;
    const size_t parts = has_parts(collective) ? 3 : 1;
    auto* memory = reinterpret_cast<uint8_t*>(memories_.back()->data());
    const size_t bytes = chunks * kPayload / parts;
    for (size_t part = 0; part < parts; ++part)
      spec.tensors.push_back({memory + part * bytes, memory + part * bytes, bytes});
    spec.role.collective = collective;
    return submit(std::make_unique<Operation>(operations_.size(), std::move(spec), 3));
  }
  // Answers all packets that become due, in the order in which they come.
  void answer_all() {
    for (std::vector<Sent> sent = collect(); !sent.empty(); sent = collect())
      for (const Sent& one : sent) ASSERT_TRUE(result(one).ok());
  }
  static bool is_in(const SlotRange& range, const Sent& sent) {
    return sent.fields.slot >= range.first && sent.fields.slot < range.first + range.count;
  }
  static size_t count_in(const SlotRange& range, const std::vector<Sent>& sent) {
    return static_cast<size_t>(
        std::count_if(sent.begin(), sent.end(), [&](const Sent& one) { return is_in(range, one); }));
  }

  std::vector<std::unique_ptr<Operation>> operations_;
  std::vector<std::unique_ptr<std::vector<int32_t>>> memories_;

 private:
  Operation* submit(std::unique_ptr<Operation> operation) {
    stripe_.enqueue(operation.get());
    operations_.push_back(std::move(operation));
    return operations_.back().get();
  }
};

TEST_F(StripeStreamsTest, EachStreamHasItsSlotsAndItsSteps) {
  sum(100);
  move(100);
  std::vector<Sent> sent = collect();
  EXPECT_EQ(count_in(kLayout.first_groups(), sent), 2u);
  EXPECT_EQ(count_in(kLayout.data(SlotLayout::kMoves), sent), 4u) << "their window is their slots";
  EXPECT_EQ(count_in(kLayout.data(SlotLayout::kSums), sent), 0u) << "no scales are agreed on";
  const auto scales =
      std::find_if(sent.begin(), sent.end(), [](const Sent& one) { return one.fields.slot == 16; });
  ASSERT_NE(scales, sent.end());
  EXPECT_EQ(scales->fields.format, NETSUM_FORMAT_MAX_U8);
  EXPECT_TRUE(result(*scales).ok());
  const std::vector<Sent> sums = collect();
  EXPECT_EQ(count_in(kLayout.data(SlotLayout::kSums), sums), 12u);
  EXPECT_EQ(count_in(kLayout.data(SlotLayout::kMoves), sums), 0u);
  for (uint32_t q = 0; q < 12; ++q) {
    EXPECT_EQ(sums[q].fields.slot, q);
    EXPECT_EQ(sums[q].fields.round, 1u);
    EXPECT_EQ(sums[q].fields.chunk, q);
  }
}

TEST_F(StripeStreamsTest, NoStreamWaitsForTheOther) {
  for (const bool sums_wait : {true, false}) {
    Operation* first = sums_wait ? sum(10 * kGroup) : move(10 * kGroup);
    Operation* behind = sums_wait ? sum(10 * kGroup) : move(10 * kGroup);
    Operation* other = sums_wait ? move(10 * kGroup) : sum(10 * kGroup);
    std::vector<Sent> waiting;  // of the first two: no answer comes
    for (std::vector<Sent> sent = collect(); !sent.empty(); sent = collect()) {
      for (const Sent& one : sent) {
        if (one.fields.signature != other->signature())
          waiting.push_back(one);
        else
          ASSERT_TRUE(result(one).ok());
      }
    }
    EXPECT_EQ(other->chunks_left, 0u);
    EXPECT_EQ(first->chunks_left, 10 * kGroup);
    for (const Sent& one : waiting) ASSERT_TRUE(result(one).ok());
    answer_all();
    EXPECT_EQ(first->chunks_left + behind->chunks_left, 0u);
  }
}

TEST_F(StripeStreamsTest, TheFirstGroupsOfAllOperationsAreOpenedInTheirOrder) {
  std::vector<uint32_t> signatures;
  for (int i = 0; i < 6; ++i) {
    signatures.push_back(sum(5 * kGroup)->signature());
    signatures.push_back(move(5 * kGroup)->signature());
  }
  const std::vector<Sent> sent = collect();
  for (const Sent& one : sent) {
    if (!is_in(kLayout.first_groups(), one)) continue;
    EXPECT_EQ(one.fields.signature, signatures[one.fields.slot - kLayout.first_groups().first]);
    EXPECT_EQ(one.fields.round, 1u);
  }
  EXPECT_EQ(count_in(kLayout.first_groups(), sent), 12u);
  for (size_t stream = 0; stream < SlotLayout::kStreams; ++stream) {
    for (const Sent& one : sent) {
      if (is_in(kLayout.later_groups(stream), one)) {
        EXPECT_EQ(one.fields.signature, signatures[stream]) << "only of the stream's first operation";
      }
    }
    EXPECT_EQ(count_in(kLayout.later_groups(stream), sent), 2u);
  }
  for (const Sent& one : sent) ASSERT_TRUE(result(one).ok());
  answer_all();
  for (const auto& operation : operations_) EXPECT_EQ(operation->chunks_left, 0u);
}

// Results in any order: the steps of a stream keep their order, also from one operation to the next.
TEST_F(StripeStreamsTest, StepsFollowTheOrderOfTheirStream) {
  for (int i = 0; i < 4; ++i) {
    sum(2 * kGroup + 3);
    move(1);
    move(kGroup + 7);
  }
  std::array<std::vector<std::pair<uint64_t, uint32_t>>, SlotLayout::kStreams> steps;
  std::array<std::vector<uint64_t>, SlotLayout::kStreams> turns;
  for (std::vector<Sent> sent = collect(); !sent.empty(); sent = collect()) {
    for (auto one = sent.rbegin(); one != sent.rend(); ++one) ASSERT_TRUE(result(*one).ok());
    for (const Sent& one : sent) {
      const auto of = std::find_if(operations_.begin(), operations_.end(), [&](const auto& operation) {
        return operation->signature() == one.fields.signature;
      });
      for (size_t stream = 0; stream < SlotLayout::kStreams; ++stream) {
        const SlotRange& range = kLayout.data(stream);
        if (!is_in(range, one)) continue;
        steps[stream].emplace_back((*of)->number(), one.fields.chunk);
        turns[stream].push_back(uint64_t{one.fields.round - 1} * range.count + one.fields.slot - range.first);
      }
    }
  }
  for (size_t stream = 0; stream < SlotLayout::kStreams; ++stream) {
    EXPECT_FALSE(steps[stream].empty());
    EXPECT_TRUE(std::is_sorted(steps[stream].begin(), steps[stream].end()));
    for (size_t q = 0; q < turns[stream].size(); ++q) EXPECT_EQ(turns[stream][q], q);
  }
  EXPECT_EQ(steps[SlotLayout::kSums].size(), 4 * (2 * kGroup + 3));
  for (const auto& operation : operations_) EXPECT_EQ(operation->chunks_left, 0u);
}

// Groups of zeros have no data, so the ones behind the first would be finished before it.
TEST_F(StripeStreamsTest, AScaleSlotIsUsedAgainWhenAllGroupsBeforeItAreFinished) {
  Operation* operation = sum(6 * kGroup);
  std::vector<int32_t>& memory = *memories_.back();
  std::fill(memory.begin() + kGroup * 16, memory.end(), 0);
  std::vector<Sent> data;  // of the first group: the results do not come yet
  std::vector<uint32_t> groups;
  for (std::vector<Sent> sent = collect(); !sent.empty(); sent = collect()) {
    for (const Sent& one : sent) {
      if (one.fields.format != NETSUM_FORMAT_MAX_U8) {
        data.push_back(one);
        continue;
      }
      groups.push_back(one.fields.chunk);
      ASSERT_TRUE(result(one).ok());
    }
  }
  EXPECT_EQ(groups, (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(operation->chunks_left, 4 * kGroup) << "two groups are finished";
  for (const Sent& one : data) ASSERT_TRUE(result(one).ok());
  answer_all();
  EXPECT_EQ(operation->chunks_left, 0u);
}

TEST_F(StripeStreamsTest, ATurnOfTheOpeningSlotsProvesThatAllRanksHaveFinished) {
  EXPECT_EQ(stripe_.first_unproven(), UINT64_MAX);
  for (uint64_t n = 0; n < 40; ++n) {
    n % 3 == 0 ? sum(1) : move(1);
    EXPECT_EQ(stripe_.first_unproven(), n < 12 ? 0 : n - 12);
    answer_all();
    EXPECT_EQ(stripe_.first_unproven(), n < 12 ? 0 : n - 11);
  }
}

TEST_F(StripeStreamsTest, ATurnOfTheScaleSlotsOfSumsProvesItForTheSumsBefore) {
  sum(5 * kGroup);
  answer_all();
  EXPECT_EQ(stripe_.first_unproven(), 0u) << "another rank may still wait for its last results";
  sum(2 * kGroup);
  answer_all();
  EXPECT_EQ(stripe_.first_unproven(), 0u)
      << "one slot of two is used again: the last group may be unfinished";
  move(5 * kGroup);
  answer_all();
  EXPECT_EQ(stripe_.first_unproven(), 0u) << "these are other slots";
  sum(2 * kGroup);
  answer_all();
  EXPECT_EQ(stripe_.first_unproven(), 1u);
}

TEST_F(StripeStreamsTest, ATurnOfTheScaleSlotsOfMovesProvesItForTheMovesBefore) {
  move(5 * kGroup);
  answer_all();
  sum(5 * kGroup);
  answer_all();
  EXPECT_EQ(stripe_.first_unproven(), 0u);
  move(3 * kGroup);
  answer_all();
  EXPECT_EQ(stripe_.first_unproven(), 1u);
}

// Each rank is the owner of every third chunk.
TEST_F(StripeStreamsTest, ThePartsOfAnAllGatherTakeTurns) {
  move(9, Collective::kAllGather);
  std::vector<uint32_t> chunks;
  for (std::vector<Sent> sent = collect(); !sent.empty(); sent = collect()) {
    for (const Sent& one : sent) ASSERT_TRUE(result(one).ok());
    for (const Sent& one : sent)
      if (!is_in(kLayout.first_groups(), one)) chunks.push_back(one.fields.chunk);
  }
  EXPECT_EQ(chunks, (std::vector<uint32_t>{3, 6, 1, 4, 7, 2, 5, 8}))
      << "after chunk 0, in a first-group slot";
}

}  // namespace
}  // namespace netsum::stripe_streams_test
