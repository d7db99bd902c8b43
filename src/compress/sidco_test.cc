// sidco against a slow reference, and how near it comes to the wanted number of elements.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/compress/testing.h"

namespace netsum::compress {
namespace {

constexpr size_t kCount = 200'000;

// Magnitudes of a distribution, with random signs.
template <class Quantile>
std::vector<float> drawn(uint64_t seed, const Quantile& quantile) {
  Rng rng(seed);
  std::vector<float> values(kCount);
  for (float& value : values) {
    const auto magnitude = static_cast<float>(quantile(1 - rng.unit()));
    value = rng.chance(0.5) ? magnitude : -magnitude;
  }
  return values;
}
std::vector<float> exponential(uint64_t seed) {
  return drawn(seed, [](double u) { return -0.01 * std::log(u); });
}
std::vector<float> pareto(uint64_t seed) {
  return drawn(seed, [](double u) { return 0.01 * (std::pow(u, -0.2) - 1) / 0.2; });
}

// With a heavier tail than the others, so that one stage of an exponential distribution passes several times as many as wanted.
std::vector<float> heavy(uint64_t seed) {
  return drawn(seed, [](double u) { return 0.01 * (std::pow(u, -0.45) - 1); });
}

size_t sent_of(const Rank& rank) {
  const auto payload = rank.payload<float>();
  return payload.size() - static_cast<size_t>(std::count(payload.begin(), payload.end(), 0.0f));
}

// Without a residual, so that every step sees the distribution.
CompressionOptions options_of(const char* fit, double ratio) {
  return {.method = "sidco", .ratio = ratio, .fit = fit, .decay = 0};
}

// What passes a threshold of so many stages, by sorting and by the formulas of the paper.
std::vector<float> slow_sidco(const std::vector<float>& values, std::string_view fit, double share,
                              int stages) {
  double threshold = 0;
  for (int stage = 0; stage < stages; ++stage) {
    const double of_stage = stages == 1  ? share
                            : stage == 0 ? 0.25
                                         : std::pow(share / 0.25, 1.0 / (stages - 1));
    std::vector<double> above;
    for (const float value : values)
      if (std::fabs(value) > threshold) above.push_back(std::fabs(value));
    double mean = 0, variance = 0, logs = 0;
    for (const double x : above) mean += (x - threshold) / static_cast<double>(above.size());
    for (const double x : above)
      variance += std::pow(x - threshold - mean, 2) / static_cast<double>(above.size());
    for (const double x : above) logs += std::log(x) / static_cast<double>(above.size());
    if (fit == "gamma" && stage == 0) {
      const double s = std::log(mean) - logs;
      const double alpha = (3 - s + std::sqrt((s - 3) * (s - 3) + 24 * s)) / (12 * s);
      threshold = -mean / alpha * (std::log(of_stage) + std::lgamma(alpha));
    } else if (fit == "exponential") {
      threshold += mean * std::log(1 / of_stage);
    } else {
      const double xi = 0.5 * (1 - mean * mean / variance);
      const double scale = 0.5 * mean * (mean * mean / variance + 1);
      threshold += scale / xi * (std::pow(of_stage, -xi) - 1);
    }
  }
  std::vector<float> sent(values.size(), 0.0f);
  for (size_t i = 0; i < values.size(); ++i)
    if (std::fabs(values[i]) >= static_cast<float>(threshold)) sent[i] = values[i];
  return sent;
}

TEST(SidcoTest, SendsWhatPassesTheThresholdOfTheFittedDistribution) {
  for (const char* const fit : {"exponential", "pareto", "gamma"}) {
    Rank rank(*made(options_of(fit, 0.002)), kCount);
    int most = 0;
    for (uint64_t step = 0; step < 40; ++step) {
      const auto values = heavy(step);
      const auto before = step == 0 ? std::vector<float>(4, 1) : rank.state("compressor");
      rank.compress(values);
      most = std::max(most, static_cast<int>(before[0]));
      ASSERT_EQ(rank.payload<float>(), slow_sidco(values, fit, 0.002, static_cast<int>(before[0])))
          << fit << " " << step;
    }
    EXPECT_GT(most, 1) << fit;
  }
}

TEST(SidcoTest, PassesAboutAsManyElementsAsWanted) {
  for (const double ratio : {0.1, 0.01, 0.001}) {
    for (const char* const fit : {"exponential", "pareto"}) {
      Rank rank(*made(options_of(fit, ratio)), kCount);
      for (uint64_t step = 0; step < 20; ++step) {
        const bool is_exponential = std::string_view(fit) == "exponential";
        rank.compress(is_exponential ? exponential(step) : pareto(step));
        EXPECT_NEAR(static_cast<double>(sent_of(rank)) / (ratio * kCount), 1, 0.25) << fit << " " << ratio;
      }
    }
  }
}

TEST(SidcoTest, StagesAreAddedUntilTheNumberIsRight) {
  Rank rank(*made(options_of("exponential", 0.001)), kCount);
  double first = 0, last = 0;
  for (uint64_t step = 0; step < 60; ++step) {
    rank.compress(heavy(step));
    const double found = static_cast<double>(sent_of(rank)) / (0.001 * kCount);
    if (step == 0) first = found;
    if (step >= 50) last += found / 10;
  }
  EXPECT_GT(first, 2);
  EXPECT_LT(std::fabs(last - 1), 0.35);
  EXPECT_GT(rank.state("compressor")[0], 1);
}

TEST(SidcoTest, WhatIsNotSentRemains) {
  const auto values = exponential(1);
  Rank rank(*made({.method = "sidco", .ratio = 0.01}), kCount);
  rank.compress(values);
  const auto sent = rank.decompress(), rest = rank.state("residual");
  for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(sent[i] + rest[i], values[i]);
}

TEST(SidcoTest, AtLeastTheLargestElementIsSent) {
  for (const char* const fit : {"exponential", "pareto", "gamma"}) {
    for (const std::vector<float>& values :
         {std::vector<float>{0.5f}, std::vector<float>{2, 2, 2, 2}, std::vector<float>{1, 1, 1, 1.0000001f},
          std::vector<float>{0, 0, 0, -3}, std::vector<float>{1e-40f, 1e-42f, 0, 0},
          std::vector<float>{3e38f, -3e38f, 1, 2}}) {
      Rank rank(*made(options_of(fit, 0.25)), values.size());
      for (int step = 0; step < 12; ++step) {
        rank.compress(values);
        const auto largest = std::max_element(values.begin(), values.end(),
                                              [](float a, float b) { return std::fabs(a) < std::fabs(b); });
        ASSERT_EQ(rank.payload<float>()[static_cast<size_t>(largest - values.begin())], *largest) << fit;
      }
    }
  }
}

TEST(SidcoTest, StagesAreSavedAndRestored) {
  const auto compression = made(options_of("exponential", 0.001));
  Rank original(*compression, kCount), restored(*compression, kCount);
  for (uint64_t step = 0; step < 7; ++step) original.compress(heavy(step));
  std::vector<SavedCompressionState> saved;
  for (const CompressionState& part : original.tensor().state()) saved.push_back({part.name, part.values});
  ASSERT_TRUE(restored.tensor().restore(original.tensor().step(), saved).ok());
  for (uint64_t step = 7; step < 20; ++step) {
    original.compress(heavy(step));
    restored.compress(heavy(step));
    ASSERT_EQ(original.payload<float>(), restored.payload<float>()) << step;
  }
  // They are in no unit of the gradients.
  const auto before = original.state("compressor");
  original.tensor().scale_memory(0.5f);
  EXPECT_EQ(original.state("compressor"), before);
}

}  // namespace
}  // namespace netsum::compress
