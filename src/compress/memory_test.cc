// Memories against slow references, saved and restored.
#include <gmock/gmock.h>

#include <cmath>

#include "src/compress/testing.h"

namespace netsum::compress {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kCount = 300;
constexpr int kSteps = 20;

TEST(MemoryTest, WhatWasSentAndWhatRemainsIsTheSumOfAllGradients) {
  for (const char* const method : {"topk", "randomk"}) {
    Rank rank(*made({.method = method, .ratio = 0.05}), kCount);
    std::vector<double> all(kCount, 0);
    for (int step = 0; step < kSteps; ++step) {
      const auto gradient = numbers(kCount, static_cast<uint64_t>(step));
      rank.compress(gradient);
      const auto sent = rank.decompress();
      for (size_t i = 0; i < kCount; ++i)
        all[i] += static_cast<double>(gradient[i]) - static_cast<double>(sent[i]);
    }
    const auto rest = rank.state("residual");
    for (size_t i = 0; i < kCount; ++i) ASSERT_NEAR(rest[i], all[i], 1e-5) << method;
  }
}

TEST(MemoryTest, TheResidualDecays) {
  Rank rank(*made({.method = "threshold", .threshold = 1.0, .decay = 0.5}), 2);
  rank.compress({0.8f, 3.0f});
  EXPECT_THAT(rank.state("residual"), ElementsAre(0.8f, 0.0f));
  rank.compress({0.5f, 0.25f});
  EXPECT_THAT(rank.state("residual"), ElementsAre(0.9f, 0.25f));
  rank.compress({0.6f, 0.0f});
  EXPECT_THAT(rank.payload<float>(), ElementsAre(0.6f + 0.45f, 0.0f));
  EXPECT_THAT(rank.state("residual"), ElementsAre(0.0f, 0.125f));
}

// u <- m u + g, v <- v + u; the largest of v are sent, and u and v cleared there.
TEST(MemoryTest, DgcCorrectsMomentumAndMasks) {
  constexpr float kMomentum = 0.5f;
  constexpr size_t kSent = 30;
  Rank rank(*made({.method = "dgc", .ratio = 0.1, .momentum = kMomentum}), kCount);
  std::vector<float> u(kCount, 0), v(kCount, 0);
  for (int step = 0; step < kSteps; ++step) {
    const auto gradient = numbers(kCount, static_cast<uint64_t>(step));
    for (size_t i = 0; i < kCount; ++i) {
      u[i] = kMomentum * u[i] + gradient[i];
      v[i] += u[i];
    }
    std::vector<float> sorted = v;
    std::sort(sorted.begin(), sorted.end(), [](float a, float b) { return std::fabs(a) > std::fabs(b); });
    std::vector<float> sent(kCount, 0);
    for (size_t i = 0; i < kCount; ++i) {
      if (std::fabs(v[i]) < std::fabs(sorted[kSent - 1])) continue;
      sent[i] = v[i];
      u[i] = v[i] = 0;
    }
    rank.compress(gradient);
    ASSERT_EQ(rank.payload<float>(), sent) << step;
    ASSERT_EQ(rank.state("velocity"), u);
    ASSERT_EQ(rank.state("residual"), v);
  }
}

TEST(MemoryTest, DgcClipsTheGradientOfARank) {
  // The norm is 5, and may be 2 / sqrt(4) = 1.
  Rank rank(*made({.method = "dgc", .k = 1, .clip_norm = 2}), 3, 0, 4);
  rank.compress({3.0f, -4.0f, 0.0f});
  EXPECT_THAT(rank.payload<float>(), ElementsAre(0.0f, -0.8f, 0.0f));
  EXPECT_THAT(rank.state("residual"), ElementsAre(0.6f, 0.0f, 0.0f));
  Rank small(*made({.method = "dgc", .k = 1, .clip_norm = 100}), 3, 0, 4);
  small.compress({3.0f, -4.0f, 0.0f});
  EXPECT_THAT(small.payload<float>(), ElementsAre(0.0f, -4.0f, 0.0f));
}

TEST(MemoryTest, ARestoredStateContinuesWithTheSameBits) {
  for (const char* const method : {"topk", "randomk", "dgc"}) {
    const auto compression = made({.method = method, .ratio = 0.05});
    Rank original(*compression, kCount), restored(*compression, kCount);
    for (int step = 0; step < 5; ++step) original.compress(numbers(kCount, static_cast<uint64_t>(step)));
    std::vector<SavedCompressionState> saved;
    for (const CompressionState& part : original.tensor().state()) saved.push_back({part.name, part.values});
    const Status status = restored.tensor().restore(original.tensor().step(), saved);
    ASSERT_TRUE(status.ok()) << status.to_string();
    for (int step = 5; step < 8; ++step) {
      original.compress(numbers(kCount, static_cast<uint64_t>(step)));
      restored.compress(numbers(kCount, static_cast<uint64_t>(step)));
      ASSERT_EQ(original.payload<float>(), restored.payload<float>()) << method;
      ASSERT_EQ(original.decompress(), restored.decompress()) << method;
    }
  }
}

TEST(MemoryTest, AStateOfAnotherTensorOrMethodIsRefusedAndChangesNothing) {
  Rank rank(*made({.method = "topk", .ratio = 0.05}), kCount);
  rank.compress(numbers(kCount, 1));
  const auto before = rank.state("residual");
  const std::vector<float> other_size(kCount - 1, 1.0f), same_size(kCount, 1.0f);
  Status status = rank.tensor().restore(9, std::vector<SavedCompressionState>{{"residual", other_size}});
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("299 numbers"), HasSubstr("300")));
  status = rank.tensor().restore(
      9, std::vector<SavedCompressionState>{{"velocity", same_size}, {"residual", same_size}});
  EXPECT_THAT(status.message(), AllOf(HasSubstr("velocity, residual"), HasSubstr("keeps residual")));
  status = rank.tensor().restore(9, std::vector<SavedCompressionState>{{"velocity", same_size}});
  EXPECT_FALSE(status.ok());
  status = rank.tensor().restore(9, {});
  EXPECT_THAT(status.message(), HasSubstr("no memory"));
  EXPECT_EQ(rank.state("residual"), before);
  EXPECT_EQ(rank.tensor().step(), 1u);
}

TEST(MemoryTest, SurvivorsKeepTheirResiduals) {
  Rank rank(*made({.method = "efsign"}), kCount, 3, 4);
  rank.compress(numbers(kCount, 1));
  const float scale = rank.side()[0];
  const auto lanes = rank.payload<int32_t>();
  rank.decompress(lanes.data(), &scale, 1);
  const auto before = rank.state("residual");
  const size_t of_four = rank.tensor().shape().count;
  rank.tensor().set_ranks(1, 2);
  EXPECT_EQ(rank.state("residual"), before);
  EXPECT_LT(rank.tensor().shape().count, of_four);  // votes of fewer ranks need narrower fields
}

TEST(MemoryTest, TheMemoryCanBeScaled) {
  Rank rank(*made({.method = "dgc", .k = 1}), 3);
  rank.compress({1.0f, 2.0f, 4.0f});
  rank.tensor().scale_memory(0.5f);
  EXPECT_THAT(rank.state("velocity"), ElementsAre(0.5f, 1.0f, 0.0f));
  EXPECT_THAT(rank.state("residual"), ElementsAre(0.5f, 1.0f, 0.0f));
}

}  // namespace
}  // namespace netsum::compress
