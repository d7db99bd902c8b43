// Memories against slow references, saved and restored.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <set>

#include "src/compress/testing.h"

namespace netsum::compress::memory_test {
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

// Every method with every memory and path that it can have.
std::vector<CompressionOptions> combinations() {
  std::vector<CompressionOptions> all;
  for (const std::string_view method : compression_methods())
    for (const char* const memory : {"none", "residual", "dgc", "momentum"})
      for (const char* const path : {"dense", "union", "gather"})
        for (const bool sampled : {false, true}) {
          CompressionOptions options{
              .method = std::string(method), .memory = memory, .path = path, .sampled = sampled};
          if (method == "threshold") options.threshold = 0.25;
          if (method == "topk" && sampled) options.ratio = 0.3;
          if (Compression::make(options).ok()) all.push_back(options);
        }
  return all;
}

std::vector<std::vector<float>> states_of(CompressedTensor& tensor) {
  std::vector<std::vector<float>> parts;
  for (const CompressionState& part : tensor.state())
    parts.emplace_back(part.values.begin(), part.values.end());
  return parts;
}

// Without what a shorter payload has left behind it.
std::vector<uint8_t> payload_of(Rank& rank) {
  std::vector<uint8_t> bytes = rank.payload<uint8_t>();
  uint64_t used = bytes.size();
  if (rank.tensor().shape().varies) std::memcpy(&used, bytes.data(), sizeof used);
  bytes.resize(used);
  return bytes;
}

TEST(MemoryTest, AStepThatIsGivenUpLeavesNoTrace) {
  constexpr size_t kRows = 60, kLong = kRows * 100;
  for (const CompressionOptions& options : combinations()) {
    const auto compression = made(options);
    SCOPED_TRACE(compression->describe());
    Rank rank(*compression, kLong, 1, 3, kRows), undisturbed(*compression, kLong, 1, 3, kRows);
    CompressedTensor& tensor = rank.tensor();
    for (uint64_t step = 0; step < 6; ++step) {
      const auto before = states_of(tensor);
      const uint32_t tag = tensor.tag();
      const auto other = numbers(kLong, 100 + step);
      std::vector<float> agreed(tensor.agreed_values());
      if (step == 0 && !agreed.empty()) {
        tensor.agree(other.data(), agreed.data());
        tensor.agree(other.data(), agreed.data());
        EXPECT_EQ(tensor.tag(), tag);
        tensor.give_up();
      } else if (step % 2 == 1) {
        rank.compress(other);
        if (step > 1) rank.decompress();
        EXPECT_NE(tensor.tag(), tag);
        tensor.give_up();
        tensor.give_up();  // no further back
      }
      ASSERT_EQ(states_of(tensor), before) << step;
      ASSERT_EQ(tensor.step(), step);
      const auto gradient = numbers(kLong, step);
      rank.compress(gradient);
      undisturbed.compress(gradient);
      ASSERT_EQ(payload_of(rank), payload_of(undisturbed)) << step;
      ASSERT_EQ(rank.decompress(), undisturbed.decompress());
      ASSERT_EQ(states_of(tensor), states_of(undisturbed.tensor()));
    }
  }
}

// A failed agreement leaves agree() without its compress().
TEST(MemoryTest, AnAgreementThatIsRepeatedCountsTheGradientOnce) {
  for (const CompressionOptions& options : combinations()) {
    const auto compression = made(options);
    SCOPED_TRACE(compression->describe());
    Rank rank(*compression, kCount, 0, 1, 15), undisturbed(*compression, kCount, 0, 1, 15);
    std::vector<float> agreed(rank.tensor().agreed_values()), expected(agreed.size());
    if (agreed.empty()) continue;
    for (uint64_t step = 0; step < 3; ++step) {
      const auto gradient = numbers(kCount, step);
      rank.tensor().agree(numbers(kCount, 50 + step).data(), agreed.data());
      if (step == 1) rank.tensor().set_ranks(0, 1);
      if (step == 2) rank.tensor().set_step(2);
      rank.tensor().agree(gradient.data(), agreed.data());
      undisturbed.tensor().agree(gradient.data(), expected.data());
      ASSERT_EQ(agreed, expected);
      rank.compress(gradient, agreed);
      undisturbed.compress(gradient, expected);
      ASSERT_EQ(rank.decompress(), undisturbed.decompress());
    }
    ASSERT_EQ(states_of(rank.tensor()), states_of(undisturbed.tensor()));
  }
}

TEST(MemoryTest, TagsDifferBetweenTensorsAndSteps) {
  const auto compression = made({.method = "topk"});
  std::set<uint32_t> tags;
  for (uint64_t id = 0; id < 20; ++id) {
    const auto tensor = compression->tensor(id, kCount, 0, 2);
    for (uint64_t step = 0; step < 20; ++step) {
      tensor->set_step(step);
      tags.insert(tensor->tag());
    }
    EXPECT_EQ(compression->tensor(id, kCount, 1, 2)->tag(), compression->tensor(id, 1, 0, 1)->tag());
  }
  EXPECT_EQ(tags.size(), 400u);
  EXPECT_FALSE(tags.contains(0));
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
}  // namespace netsum::compress::memory_test
