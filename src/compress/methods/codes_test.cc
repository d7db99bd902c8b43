// Methods whose codes cannot be added, and adaq, against slow references and with unusual input.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "src/compress/testing.h"

namespace netsum::compress::codes_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> rest_of(const std::vector<float>& values, const std::vector<float>& sent) {
  std::vector<float> rest(values.size());
  for (size_t i = 0; i < values.size(); ++i) rest[i] = values[i] - sent[i];
  return rest;
}

// From 2^-140 to 2^10, and both zeros.
std::vector<float> wide_numbers(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(n);
  for (float& value : values)
    value = std::ldexp(static_cast<float>(2 * rng.unit() - 1), static_cast<int>(rng.below(150)) - 140);
  values[0] = 0;
  values[n - 1] = -0.0f;
  return values;
}

TEST(NaturalTest, EveryElementIsThePowerOfTwoBelowOrAbove) {
  constexpr size_t kCount = 2000;
  Rank random(*made({.method = "natural"}), kCount),
      nearest(*made({.method = "natural", .memory = "residual"}), kCount);
  const auto values = wide_numbers(kCount, 3);
  random.compress(values);
  nearest.compress(values);
  const auto either = random.decompress(), sent = nearest.decompress();
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  // The exponents that 126 codes reach below the one above the largest element.
  const float least = std::ldexp(1.0f, std::ilogb(largest) + 1 - 125);
  for (size_t i = 0; i < kCount; ++i) {
    const float magnitude = std::fabs(values[i]);
    const float below = magnitude < least ? 0 : std::exp2(std::floor(std::log2(magnitude)));
    const float above = magnitude == 0 ? 0 : magnitude < least ? least : 2 * below;
    const float exact = below == magnitude ? below : above;
    ASSERT_TRUE(std::fabs(either[i]) == below || std::fabs(either[i]) == exact)
        << values[i] << " " << either[i];
    ASSERT_EQ(std::fabs(sent[i]), magnitude - below <= above - magnitude ? below : above) << values[i];
    ASSERT_TRUE(either[i] == 0 || std::signbit(either[i]) == std::signbit(values[i]));
  }
  EXPECT_EQ(nearest.state("residual"), rest_of(values, sent));
  EXPECT_LE(squares(rest_of(values, sent)), squares(values) / 9 * (1 + 1e-6));
  EXPECT_EQ(random.tensor().shape().count, kCount + 4);
}

TEST(NaturalTest, RandomRoundingHasTheVarianceOfThePaper) {
  constexpr size_t kCount = 100'000;
  const auto values = numbers(kCount, 9);
  Rank rank(*made({.method = "natural"}), kCount);
  rank.compress(values);
  const auto first = rank.decompress();
  EXPECT_LE(squares(rest_of(values, first)), squares(values) / 8);
  rank.compress(values);
  EXPECT_NE(rank.decompress(), first);  // other numbers in another step
  Rank other(*made({.method = "natural"}), kCount, 1, 2);
  other.compress(values);
  EXPECT_NE(other.decompress(), first);  // and on another rank
}

TEST(NaturalTest, TheLargestAndTheSmallestNumbers) {
  const float largest = std::numeric_limits<float>::max(), least = std::numeric_limits<float>::denorm_min();
  Rank rank(*made({.method = "natural", .memory = "residual"}), 2);
  rank.compress({largest, -1024.0f});
  EXPECT_THAT(rank.decompress(), ElementsAre(0x1p127f, -1024.0f));
  Rank small(*made({.method = "natural", .memory = "residual"}), 2);
  small.compress({least, -3 * least});
  EXPECT_THAT(small.decompress(), ElementsAre(least, -2 * least));
}

// All 255 numbers of the code, in ascending order.
std::vector<float> tree_numbers() {
  std::vector<float> numbers = {0};
  for (int p = 0; p < 7; ++p)
    for (int f = 0; f < 1 << p; ++f)
      for (const double sign : {-1.0, 1.0})
        numbers.push_back(
            static_cast<float>(sign * std::pow(10.0, p - 6) * (0.1 + 0.9 * (f + 1) / (1 << p))));
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

TEST(DynamicTreeTest, EveryElementIsTheNearestNumberOfTheCode) {
  constexpr size_t kCount = 3000, kBlock = 100;
  const auto values = numbers(kCount, 5);
  Rank rank(*made({.method = "u8bit", .block = kBlock}), kCount);
  rank.compress(values);
  const auto sent = rank.decompress();
  const auto code = tree_numbers();
  ASSERT_EQ(code.size(), 255u);
  for (size_t b = 0; b < kCount; b += kBlock) {
    float scale = 0;
    for (size_t i = b; i < b + kBlock; ++i) scale = std::max(scale, std::fabs(values[i]));
    for (size_t i = b; i < b + kBlock; ++i) {
      float least = kInfinity;
      for (const float number : code) least = std::min(least, std::fabs(values[i] - number * scale));
      const float error = std::fabs(values[i] - sent[i]);
      ASSERT_LE(error, least + 1e-7f * scale) << values[i] << " of " << scale;
      ASSERT_LE(error, 0.0071f * scale);
      ASSERT_LE(error, std::fabs(values[i]));
      if (std::fabs(values[i]) == scale) ASSERT_EQ(sent[i], values[i]);
    }
  }
  EXPECT_EQ(rank.state("residual"), rest_of(values, sent));
  EXPECT_EQ(rank.tensor().shape().count, kCount + kCount / kBlock * 4);
}

// All finite numbers of a floating-point format, by its definition.
std::vector<double> float_numbers(int exponent_bits, int fraction_bits, double largest) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  std::vector<double> numbers;
  for (int e = 0; e < 1 << exponent_bits; ++e)
    for (int f = 0; f < 1 << fraction_bits; ++f) {
      const double fraction = std::ldexp(f, -fraction_bits);
      const double number = e == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, e - bias);
      if (number > largest) continue;  // infinities and NaN
      numbers.push_back(number);
      numbers.push_back(-number);
    }
  return numbers;
}

TEST(Fp8Test, EveryElementIsTheNearestNumberOfTheFormat) {
  constexpr size_t kCount = 3000, kBlock = 100;
  struct Format {
    const char* method;
    int exponent_bits, fraction_bits;
    double largest, relative;
  };
  for (const Format& format :
       {Format{"fp8_e4m3", 4, 3, 448, 0x1p-4}, Format{"fp8_e5m2", 5, 2, 57344, 0x1p-3}}) {
    auto values = numbers(kCount, 5);
    for (size_t i = 0; i < kCount; i += 3) values[i] *= 1e-4f;  // also subnormal ones
    const auto of_format = float_numbers(format.exponent_bits, format.fraction_bits, format.largest);
    EXPECT_EQ(*std::max_element(of_format.begin(), of_format.end()), format.largest);
    double smallest = format.largest;
    for (const double number : of_format)
      if (number > 0) smallest = std::min(smallest, number);
    Rank rank(*made({.method = format.method, .block = kBlock}), kCount);
    rank.compress(values);
    const auto sent = rank.decompress();
    for (size_t b = 0; b < kCount; b += kBlock) {
      float scale = 0;
      for (size_t i = b; i < b + kBlock; ++i) scale = std::max(scale, std::fabs(values[i]));
      const double unit = static_cast<double>(scale) / format.largest;
      for (size_t i = b; i < b + kBlock; ++i) {
        const double value = values[i];
        double least = kInfinity;
        for (const double number : of_format) least = std::min(least, std::fabs(value - number * unit));
        const double error = std::fabs(value - static_cast<double>(sent[i]));
        const double slack = 1e-6 * std::fabs(value);
        ASSERT_LE(error, least + slack) << format.method << " " << value << " of " << scale;
        ASSERT_LE(error, std::max(format.relative * std::fabs(value), smallest / 2 * unit) + slack);
        if (std::fabs(values[i]) == scale) ASSERT_EQ(sent[i], values[i]);
      }
    }
    EXPECT_EQ(rank.state("residual"), rest_of(values, sent));
    EXPECT_EQ(rank.tensor().shape().count, kCount + kCount / kBlock * 4);
  }
}

TEST(InceptionnTest, NoElementIsOffByMoreThanTheBoundAndTakesNoMoreBitsThanItNeeds) {
  for (const double bound : {1e-6, 0x1p-12, 0.1, 100.0}) {
    constexpr size_t kCount = 4001;
    auto values = numbers(kCount, 6);
    for (size_t i = 0; i < kCount; i += 7) values[i] *= 10'000;
    Rank rank(*made({.method = "inceptionn", .error_bound = bound}), kCount);
    rank.compress(values);
    const auto sent = rank.decompress();
    size_t bytes = 8 + (2 * kCount + 7) / 8;
    for (size_t i = 0; i < kCount; ++i) {
      const double magnitude = std::fabs(static_cast<double>(values[i])), step = 2 * bound;
      ASSERT_LE(std::fabs(static_cast<double>(values[i]) - static_cast<double>(sent[i])),
                bound * (1 + 1e-6) + magnitude * 1e-7);
      bytes += magnitude <= bound ? 0 : magnitude < 127.5 * step ? 1 : magnitude < 32767.5 * step ? 2 : 4;
      if (magnitude > 32768 * step) ASSERT_EQ(sent[i], values[i]);
    }
    EXPECT_EQ(rank.payload<uint64_t>()[0], bytes) << bound;
    EXPECT_EQ(rank.state("residual"), rest_of(values, sent));
  }
}

TEST(InceptionnTest, BytesOfAnotherTensorAreNoGradient) {
  Rank rank(*made({.method = "inceptionn"}), 100);
  rank.compress(numbers(100, 1));
  std::vector<uint8_t> payload(8 + 25, 0xFF);  // every element takes 32 bits that are not there
  const uint64_t length = payload.size();
  std::memcpy(payload.data(), &length, sizeof length);
  for (const float value : rank.decompress(payload.data(), nullptr, 1)) EXPECT_TRUE(std::isnan(value));
  const uint64_t none = 8;
  for (const float value : rank.decompress(&none, nullptr, 1)) EXPECT_TRUE(std::isnan(value));
}

// Up to 4096 elements, the sample is the tensor.
TEST(QuantileSketchTest, EveryElementIsTheMeanOfItsQuantileBucket) {
  for (const uint32_t buckets : {2u, 3u, 16u, 100u, 256u})
    for (const size_t n : {size_t{1}, size_t{2}, size_t{17}, size_t{3000}}) {
      const auto values = numbers(n, n);
      Rank rank(*made({.method = "sketch", .buckets = buckets}), n);
      rank.compress(values);
      const auto sent = rank.decompress();
      auto sorted = values;
      std::sort(sorted.begin(), sorted.end());
      std::vector<float> edges;
      for (size_t b = 1; b < buckets; ++b) edges.push_back(sorted[std::max<size_t>(1, b * n / buckets) - 1]);
      const auto bucket_of = [&](float value) {
        size_t bucket = 0;
        while (bucket + 1 < buckets && value > edges[bucket]) ++bucket;
        return bucket;
      };
      std::vector<double> sums(buckets, 0), counts(buckets, 0);
      for (const float value : values) {
        sums[bucket_of(value)] += value;
        ++counts[bucket_of(value)];
      }
      double kept = squares(values);
      for (size_t b = 0; b < buckets; ++b) kept -= counts[b] > 0 ? sums[b] * sums[b] / counts[b] : 0;
      for (size_t i = 0; i < n; ++i)
        ASSERT_EQ(sent[i], static_cast<float>(sums[bucket_of(values[i])] / counts[bucket_of(values[i])]))
            << i;
      EXPECT_EQ(rank.state("residual"), rest_of(values, sent));
      EXPECT_NEAR(squares(rest_of(values, sent)), kept, 1e-5 * squares(values) + 1e-12);
      if (buckets == 16) EXPECT_EQ(rank.tensor().shape().count, 64 + (n + 1) / 2);
    }
}

TEST(QuantileSketchTest, BucketsOfASampleAreAboutEven) {
  constexpr size_t kCount = 200'000, kBuckets = 8;
  const auto values = numbers(kCount, 2);
  Rank rank(*made({.method = "sketch", .buckets = kBuckets}), kCount);
  rank.compress(values);
  auto sent = rank.decompress();
  std::sort(sent.begin(), sent.end());
  for (size_t i = 0; i < kCount;) {
    const auto equal =
        static_cast<size_t>(std::upper_bound(sent.begin(), sent.end(), sent[i]) - sent.begin()) - i;
    EXPECT_NEAR(static_cast<double>(equal), kCount / kBuckets, 0.2 * kCount / kBuckets);
    i += equal;
  }
}

TEST(AdaptiveLevelsTest, TheLargestOfEachSignBecomeTheirMean) {
  for (const size_t n : {size_t{1}, size_t{10}, size_t{999}, size_t{4000}})
    for (const double ratio : {0.001, 0.05, 0.5, 1.0}) {
      const auto values = numbers(n, n);
      Rank rank(*made({.method = "adaq", .ratio = ratio}), n);
      rank.compress(values);
      std::vector<float> expected(n, 0.0f);
      for (const bool negative : {false, true}) {
        std::vector<float> side;
        for (const float value : values)
          if (std::signbit(value) == negative) side.push_back(value);
        if (side.empty()) continue;
        std::sort(side.begin(), side.end(), [](float a, float b) { return std::fabs(a) > std::fabs(b); });
        side.resize(std::max<size_t>(1, static_cast<size_t>(static_cast<double>(side.size()) * ratio)));
        double mean = 0;
        for (const float value : side) mean += static_cast<double>(value) / static_cast<double>(side.size());
        for (size_t i = 0; i < n; ++i)
          if (std::signbit(values[i]) == negative && std::fabs(values[i]) >= std::fabs(side.back()))
            expected[i] = static_cast<float>(mean);
      }
      const auto sent = rank.payload<float>();
      for (size_t i = 0; i < n; ++i) ASSERT_NEAR(sent[i], expected[i], 1e-6) << n << " " << ratio;
      EXPECT_EQ(rank.decompress(), sent);
      EXPECT_EQ(rank.state("residual"), rest_of(values, sent));
      double kept = squares(values) - squares(sent);
      EXPECT_NEAR(squares(rest_of(values, sent)), kept, 1e-5 * squares(values) + 1e-12);
    }
}

class CodesTest : public testing::TestWithParam<const char*> {
 protected:
  static std::shared_ptr<const Compression> compression() {
    return made({.method = GetParam(), .memory = "residual"});
  }
};
INSTANTIATE_TEST_SUITE_P(Methods, CodesTest,
                         testing::Values("natural", "u8bit", "fp8_e4m3", "fp8_e5m2", "inceptionn", "sketch",
                                         "adaq"),
                         [](const auto& param) { return std::string(param.param); });

TEST_P(CodesTest, ZerosAndNothing) {
  Rank nothing(*compression(), 0);
  nothing.compress({});
  EXPECT_TRUE(nothing.decompress().empty());
  for (const size_t n : {size_t{1}, size_t{7}, size_t{1000}}) {
    Rank rank(*compression(), n);
    rank.compress(std::vector<float>(n, 0.0f));
    EXPECT_THAT(rank.decompress(), Each(0.0f));
    EXPECT_THAT(rank.state("residual"), Each(0.0f));
  }
}

TEST_P(CodesTest, ConstantsAndOneElement) {
  for (const float value : {1.0f, -0.25f})  // powers of two, which all of these methods have
    for (const size_t n : {size_t{1}, size_t{300}}) {
      Rank rank(*compression(), n);
      rank.compress(std::vector<float>(n, value));
      EXPECT_THAT(rank.decompress(), Each(value));
      EXPECT_THAT(rank.state("residual"), Each(0.0f));
    }
}

TEST_P(CodesTest, NumbersThatAreNotFiniteArriveAndLeaveNothing) {
  for (const float special : {kNaN, kInfinity, -kInfinity})
    for (const size_t at : {size_t{0}, size_t{123}, size_t{999}}) {
      Rank rank(*compression(), 1000);
      auto values = numbers(1000, 1);
      values[at] = special;
      rank.compress(values);
      EXPECT_FALSE(std::isfinite(rank.decompress()[at]));
      for (const float value : rank.state("residual")) ASSERT_TRUE(std::isfinite(value));
      EXPECT_EQ(rank.state("residual")[at], 0);
      rank.compress(numbers(1000, 2));
      for (const float value : rank.decompress()) ASSERT_TRUE(std::isfinite(value));
    }
}

TEST_P(CodesTest, WhatIsSentAndWhatRemainsIsAll) {
  Rank rank(*compression(), 500);
  std::vector<double> all(500, 0);
  for (uint64_t step = 0; step < 20; ++step) {
    const auto gradient = numbers(500, step);
    rank.compress(gradient);
    const auto sent = rank.decompress();
    for (size_t i = 0; i < 500; ++i)
      all[i] += static_cast<double>(gradient[i]) - static_cast<double>(sent[i]);
  }
  const auto rest = rank.state("residual");
  for (size_t i = 0; i < 500; ++i) ASSERT_NEAR(rest[i], all[i], 1e-5);
}

}  // namespace
}  // namespace netsum::compress::codes_test
