// sidco against a slow reference, and how near it comes to the wanted number of elements.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <set>

#include "src/compress/testing.h"

namespace netsum::compress::sidco_test {
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

// With a heavier tail than the others, which no fit has: the number of stages matters.
std::vector<float> heavy(uint64_t seed) {
  return drawn(seed, [](double u) { return 0.01 * (std::pow(u, -0.6) - 1); });
}
std::vector<float> normal(uint64_t seed, int power) {
  Rng rng(seed);
  std::vector<float> values(kCount);
  for (float& value : values) {
    const double radius = std::sqrt(-2 * std::log(1 - rng.unit()));
    value = static_cast<float>(std::pow(radius * std::cos(2 * std::numbers::pi * rng.unit()), power));
  }
  return values;
}

size_t sent_of(const Rank& rank) {
  const auto payload = rank.payload<float>();
  return payload.size() - static_cast<size_t>(std::count(payload.begin(), payload.end(), 0.0f));
}

// Without a residual, so that every step sees the distribution.
CompressionOptions options_of(const char* fit, double ratio) {
  return {.method = "sidco", .ratio = ratio, .fit = fit, .decay = 0};
}

float stages_of(Rank& rank) {
  return rank.state("compressor")[0];
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
    std::set<int> counts;
    for (uint64_t step = 0; step < 20; ++step) {
      const auto values = heavy(step);
      const int stages = step == 0 ? 3 : static_cast<int>(stages_of(rank));
      rank.compress(values);
      counts.insert(stages);
      ASSERT_EQ(rank.payload<float>(), slow_sidco(values, fit, 0.002, stages)) << fit << " " << step;
    }
    EXPECT_GT(counts.size(), 1u) << fit;
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

// Already in the first steps, of light and of heavy tails; one stage would pass 26 times as many of the last at 0.1 %, and 7 times of the first.
TEST(SidcoTest, PassesNotManyMoreOrLessInTheFirstSteps) {
  for (const int tail : {0, 1, 2}) {
    std::vector<std::vector<float>> steps;
    for (uint64_t step = 0; step < 5; ++step)
      steps.push_back(tail == 0 ? normal(step, 1) : tail == 1 ? exponential(step) : normal(step, 3));
    for (const double ratio : {0.1, 0.01, 0.001})
      for (const char* const fit : {"exponential", "pareto", "gamma"}) {
        Rank rank(*made(options_of(fit, ratio)), kCount);
        for (size_t step = 0; step < steps.size(); ++step) {
          rank.compress(steps[step]);
          const double found = static_cast<double>(sent_of(rank)) / (ratio * kCount);
          EXPECT_GT(found, 0.55) << fit << " " << ratio << " " << tail << " " << step;
          EXPECT_LT(found, 1.7) << fit << " " << ratio << " " << tail << " " << step;
        }
      }
  }
}

// More stages pass more of a normal distribution, and less of a heavy tail.
TEST(SidcoTest, StagesChangeUntilTheNumberIsRight) {
  for (const bool is_heavy : {false, true}) {
    const double ratio = is_heavy ? 0.03 : 0.01;
    Rank rank(*made(options_of(is_heavy ? "pareto" : "exponential", ratio)), kCount);
    double first = 0, last = 0;
    for (uint64_t step = 0; step < 60; ++step) {
      rank.compress(is_heavy ? heavy(step) : normal(step, 1));
      const double found = static_cast<double>(sent_of(rank)) / (ratio * kCount);
      if (step < 5) first += found / 5;
      if (step >= 50) last += found / 10;
    }
    EXPECT_LT(first, 0.8) << is_heavy;
    EXPECT_NEAR(last, 1, 0.2) << is_heavy;
    EXPECT_EQ(stages_of(rank), is_heavy ? 1 : 3);
  }
}

// 1, 2 and 3 stages pass 2.4, 0.8 and 0.55 of these.
TEST(SidcoTest, StagesStayAtTheBestNumberWhereNoneIsRight) {
  Rank rank(*made(options_of("exponential", 0.025)), kCount);
  std::set<int> counts;
  for (uint64_t step = 0; step < 60; ++step) {
    rank.compress(drawn(step, [](double u) { return std::pow(-std::log(u), 2.2); }));
    if (step < 20) {
      counts.insert(static_cast<int>(stages_of(rank)));
    } else {
      ASSERT_EQ(stages_of(rank), 2) << step;
    }
  }
  EXPECT_EQ(counts, (std::set<int>{1, 2, 3}));
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
}  // namespace netsum::compress::sidco_test
