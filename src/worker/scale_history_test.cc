#include "src/worker/scale_history.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "src/base/rng.h"

namespace netsum::scale_history_test {
namespace {

using Bytes = std::vector<uint8_t>;

// What is trusted of the prediction for an operation of that kind, which then agrees on `agreed`.
std::optional<Bytes> next(ScaleHistory* history, uint64_t kind, const Bytes& agreed) {
  const ScaleHistory::Prediction prediction = history->begin(kind);
  std::optional<Bytes> trusted;
  if (!prediction.bytes.empty() && prediction.trusts(0, prediction.bytes.size()))
    trusted = Bytes(prediction.bytes.begin(), prediction.bytes.end());
  history->learn(agreed);
  return trusted;
}

TEST(ScaleHistoryTest, WhatHasRecurredTwiceIsTrusted) {
  ScaleHistory history;
  const Bytes bytes = {130, 0, 7, 1};
  for (int i = 0; i < 3; ++i) EXPECT_EQ(next(&history, 5, bytes), std::nullopt) << i;
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(next(&history, 5, bytes), bytes) << i;
}

TEST(ScaleHistoryTest, EachByteIsTrustedByItself) {
  ScaleHistory history;
  for (uint8_t i = 0; i < 4; ++i) {
    history.begin(1);
    history.learn(Bytes{9, 9, i, 9});
  }
  const ScaleHistory::Prediction prediction = history.begin(1);
  EXPECT_TRUE(prediction.trusts(0, 2));
  EXPECT_FALSE(prediction.trusts(2, 1));
  EXPECT_FALSE(prediction.trusts(1, 3));
  EXPECT_TRUE(prediction.trusts(3, 1));
  EXPECT_FALSE(prediction.trusts(3, 2)) << "beyond its end";
}

TEST(ScaleHistoryTest, AfterAMistakeItHasToRecurTwiceAgain) {
  ScaleHistory history;
  const Bytes one = {1}, two = {2};
  for (int i = 0; i < 10; ++i) next(&history, 1, one);
  EXPECT_EQ(next(&history, 1, two), one);
  EXPECT_EQ(next(&history, 1, one), std::nullopt);
  EXPECT_EQ(next(&history, 1, one), std::nullopt);
  EXPECT_EQ(next(&history, 1, one), std::nullopt);
  EXPECT_EQ(next(&history, 1, one), one);
}

TEST(ScaleHistoryTest, AlternatingAndRandomBytesAreNotTrusted) {
  ScaleHistory alternating, pairs, random;
  Rng rng(1);
  int trusted = 0;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(next(&alternating, 1, Bytes{static_cast<uint8_t>(i % 2)}), std::nullopt);
    EXPECT_EQ(next(&pairs, 1, Bytes{static_cast<uint8_t>(i / 2 % 2)}), std::nullopt);
    trusted += next(&random, 1, Bytes{static_cast<uint8_t>(rng.below(255))}).has_value() ? 1 : 0;
  }
  EXPECT_LE(trusted, 2);
}

// The largest exponent of a few hundred normally distributed values is another one in one step of four.
TEST(ScaleHistoryTest, NoiseIsNotTrustedAndRareChangesAre) {
  for (const double changes : {0.25, 0.01}) {
    ScaleHistory history;
    Rng rng(3);
    constexpr size_t kBlocks = 200, kTimes = 300;
    size_t trusted = 0, right = 0;
    for (size_t n = 0; n < kTimes; ++n) {
      Bytes agreed(2 * kBlocks);
      for (size_t block = 0; block < kBlocks; ++block) agreed[2 * block] = rng.chance(changes) ? 121 : 120;
      const ScaleHistory::Prediction prediction = history.begin(1);
      for (size_t block = 0; block < kBlocks; ++block) {
        if (!prediction.trusts(2 * block, 2)) continue;
        ++trusted;
        right += prediction.bytes[2 * block] == agreed[2 * block] ? 1 : 0;
      }
      history.learn(agreed);
    }
    if (changes > 0.1) {
      EXPECT_LT(trusted, kBlocks * kTimes / 50);
    } else {
      EXPECT_GT(trusted, kBlocks * kTimes * 9 / 10);
      EXPECT_GT(right, trusted * 95 / 100);
    }
  }
}

// Iterations of a training: equal layers follow each other, so a kind alone does not say which one it is.
TEST(ScaleHistoryTest, OperationsAreFoundByTheirPlaceInTheSequence) {
  ScaleHistory history;
  std::vector<std::pair<uint64_t, Bytes>> iteration;
  for (uint8_t layer = 0; layer < 12; ++layer) iteration.push_back({7, {layer}});
  iteration.push_back({8, {100}});
  iteration.push_back({7, {50}});
  iteration.push_back({9, {60, 61}});
  for (int i = 0; i < 40; ++i) {
    for (size_t n = 0; n < iteration.size(); ++n) {
      const auto& [kind, bytes] = iteration[n];
      const std::optional<Bytes> trusted = next(&history, kind, bytes);
      if (i >= 5) EXPECT_EQ(trusted, bytes) << "iteration " << i << ", operation " << n;
    }
    // Now and then there is an operation of another kind between iterations.
    if (i == 20) next(&history, 77, Bytes{3, 3, 3});
  }
}

TEST(ScaleHistoryTest, TheSequenceMayBeAlmostAsLongAsTheMemory) {
  for (const size_t length : {ScaleHistory::kOperations - 1, ScaleHistory::kOperations}) {
    ScaleHistory history;
    int trusted = 0;
    for (size_t i = 0; i < 6 * length; ++i) {
      const Bytes bytes = {static_cast<uint8_t>(i % length % 251), static_cast<uint8_t>(i % length / 251)};
      const std::optional<Bytes> known = next(&history, 1'000 + i % length, bytes);
      trusted += known == bytes ? 1 : 0;
    }
    EXPECT_EQ(trusted, length < ScaleHistory::kOperations ? static_cast<int>(3 * length) : 0);
  }
}

TEST(ScaleHistoryTest, AnOperationWithOtherBytesThanItsKindHadIsNotPredicted) {
  ScaleHistory history;
  for (int i = 0; i < 5; ++i) next(&history, 1, Bytes{1, 2});
  for (int i = 0; i < 3; ++i) EXPECT_NE(next(&history, 1, Bytes{1}), Bytes{1});
  EXPECT_EQ(next(&history, 1, Bytes{1}), Bytes{1});
}

TEST(ScaleHistoryTest, OneInThirtyTwoMayBeWrong) {
  for (const size_t bytes : {63, 64}) {
    ScaleHistory history;
    Bytes agreed(bytes, 5);
    for (int i = 0; i < 10; ++i) next(&history, 1, agreed);
    agreed[0] = agreed[1] = 6;
    next(&history, 1, agreed);
    EXPECT_EQ(history.begin(1).trusts(2, bytes - 2), bytes == 64) << bytes;
  }
}

// Of an operation that has not been seen before, the trust in the place before it is halved: then the latest operation of the
// kind counts if no other one was like the place in more operations.
TEST(ScaleHistoryTest, AnOperationInBetweenHalvesTheTrustInTheSequence) {
  ScaleHistory once, twice;
  for (const auto& [kind, byte] :
       std::vector<std::pair<uint64_t, uint8_t>>{{1, 0}, {3, 10}, {3, 11}, {1, 0}, {9, 0}})
    next(&once, kind, Bytes{byte});
  EXPECT_EQ(once.begin(3).bytes[0], 11);
  for (const auto& [kind, byte] :
       std::vector<std::pair<uint64_t, uint8_t>>{{1, 0}, {2, 0}, {3, 10}, {3, 11}, {1, 0}, {2, 0}, {9, 0}})
    next(&twice, kind, Bytes{byte});
  EXPECT_EQ(twice.begin(3).bytes[0], 10);
}

}  // namespace
}  // namespace netsum::scale_history_test
