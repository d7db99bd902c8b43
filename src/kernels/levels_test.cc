#include "src/kernels/levels.h"

#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "src/kernels/half.h"
#include "src/kernels/test_data.h"

namespace netsum::kernels::levels_test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class LevelsTest : public TargetTest {};

// Up to a scale: any value, halves between levels, levels, and zeros of both signs.
std::vector<float> values_of(Rng& rng, size_t n, float scale, uint32_t levels) {
  std::vector<float> values(n);
  for (float& value : values) {
    double share = 2 * rng.unit() - 1;
    if (rng.chance(0.2)) share = std::round(share * levels) / levels;
    if (rng.chance(0.2)) share = (std::round(share * levels) + 0.5) / levels;
    if (rng.chance(0.1)) share = std::copysign(0.0, share);
    value = static_cast<float>(std::clamp(share, -1.0, 1.0) * static_cast<double>(scale));
  }
  return values;
}

constexpr float kScales[] = {1, 3, 0.1f, 1e30f, 3.4028235e38f, 1e-30f, 1e-40f, 1.4e-45f};
constexpr uint32_t kLevels[] = {1, 2, 7, 15, 31, 127, 32767};

TEST_P(LevelsTest, RoundsAsThePlainReference) {
  for (const float scale : kScales) {
    for (const uint32_t levels : kLevels) {
      for (const size_t n : {0, 1, 3, 15, 16, 17, 64, 100}) {
        auto values = values_of(rng_, n, scale, levels);
        std::vector<int32_t> codes(n, 1 << 30), expected(n);
        to_nearest_levels(values.data(), n, scale, levels, codes.data());
        plain::to_nearest_levels(values.data(), n, scale, levels, expected.data());
        ASSERT_EQ(codes, expected) << scale << " " << levels;
        const RandomKey key = {static_cast<uint32_t>(rng_.next()), static_cast<uint32_t>(rng_.next())};
        const auto first = static_cast<uint32_t>(rng_.next());
        to_random_levels(values.data(), n, scale, levels, key, first, codes.data());
        plain::to_random_levels(values.data(), n, scale, levels, key, first, expected.data());
        ASSERT_EQ(codes, expected) << scale << " " << levels;
        const auto divisor = static_cast<float>(levels * 4);
        std::vector<float> out(n), expected_out(n);
        from_levels(codes.data(), n, divisor, scale, out.data());
        plain::from_levels(codes.data(), n, divisor, scale, expected_out.data());
        ASSERT_EQ(std::memcmp(out.data(), expected_out.data(), n * 4), 0);
        rest_of_levels(values.data(), codes.data(), n, divisor, scale, out.data());
        plain::rest_of_levels(values.data(), codes.data(), n, divisor, scale, expected_out.data());
        ASSERT_EQ(std::memcmp(out.data(), expected_out.data(), n * 4), 0);
        rest_of_levels(values.data(), codes.data(), n, divisor, scale, values.data());
        ASSERT_EQ(std::memcmp(values.data(), expected_out.data(), n * 4), 0) << "in place";
      }
    }
  }
}

// Against arithmetic in double, which the plain reference shares nothing with.
TEST_P(LevelsTest, RoundsToTheNearestLevelAndToNeighboursAtRandom) {
  for (const float scale : {1.0f, 3.0f, 1e-30f}) {
    for (const uint32_t levels : kLevels) {
      constexpr size_t kCount = 500;
      const auto values = values_of(rng_, kCount, scale, levels);
      std::vector<int32_t> nearest(kCount), random(kCount);
      to_nearest_levels(values.data(), kCount, scale, levels, nearest.data());
      to_random_levels(values.data(), kCount, scale, levels, {5, 6}, 7, random.data());
      for (size_t i = 0; i < kCount; ++i) {
        const double exact = static_cast<double>(values[i]) / static_cast<double>(scale) * levels;
        const double slack = levels * 0x1p-22;
        ASSERT_LE(std::fabs(nearest[i] - exact), 0.5 + slack);
        ASSERT_LT(std::fabs(random[i] - exact), 1 + slack);
        ASSERT_LE(std::abs(random[i]), static_cast<int32_t>(levels));
      }
    }
  }
}

TEST_P(LevelsTest, WhatIsALevelStaysExactForEveryKey) {
  std::vector<float> values;
  std::vector<int32_t> expected;
  for (int32_t code = -16; code <= 16; ++code) {
    values.push_back(static_cast<float>(code) * 0.375f);
    expected.push_back(code);
  }
  std::vector<int32_t> codes(values.size());
  for (uint32_t key = 0; key < 20'000; ++key) {
    to_random_levels(values.data(), values.size(), 6.0f, 16, {key, ~key}, key * 77, codes.data());
    ASSERT_EQ(codes, expected) << key;
  }
}

// The mean of many keys is within 6 standard deviations of the value: a rounding of the fraction f has a variance of f (1 - f).
TEST_P(LevelsTest, RoundingAtRandomIsUnbiased) {
  constexpr int kKeys = 20'000;
  constexpr size_t kCount = 37;
  std::vector<float> values(kCount);
  for (size_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(i) * 0.37f - 6.5f;
  std::vector<double> sums(kCount, 0);
  std::vector<int32_t> codes(kCount);
  const uint64_t seed = rng_.next();
  for (uint32_t k = 0; k < kKeys; ++k) {
    const RandomKey key = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32) + k};
    to_random_levels(values.data(), kCount, 7, 7, key, 0, codes.data());
    for (size_t i = 0; i < kCount; ++i) sums[i] += codes[i];
  }
  for (size_t i = 0; i < kCount; ++i) {
    const double fraction = static_cast<double>(values[i]) - std::floor(static_cast<double>(values[i]));
    const double bound = 6 * std::sqrt(fraction * (1 - fraction) / kKeys) + 1e-5;
    ASSERT_NEAR(sums[i] / kKeys, static_cast<double>(values[i]), bound) << i;
  }
}

// Numbers of neighbours, and those of keys that differ in one bit, are as independent as those of a fair coin.
TEST(RandomBitsTest, ElementsAndKeysAreIndependent) {
  constexpr int kCount = 100'000;
  const double bound = 6 * std::sqrt(kCount / 4.0);
  const auto agreeing = [&](auto&& one, auto&& other) {
    int same = 0;
    for (uint32_t i = 0; i < kCount; ++i) same += (one(i) >> 31) == (other(i) >> 31) ? 1 : 0;
    return std::fabs(same - kCount / 2.0);
  };
  const RandomKey key = {0x12345678, 0x9ABCDEF0};
  const auto mine = [&](uint32_t i) { return random_bits(key, i); };
  EXPECT_LT(agreeing(mine, [&](uint32_t i) { return random_bits(key, i + 1); }), bound);
  for (int bit = 0; bit < 32; ++bit) {
    const RandomKey first = {key.first ^ (1u << bit), key.second},
                    second = {key.first, key.second ^ (1u << bit)};
    EXPECT_LT(agreeing(mine, [&](uint32_t i) { return random_bits(first, i); }), bound) << bit;
    EXPECT_LT(agreeing(mine, [&](uint32_t i) { return random_bits(second, i); }), bound) << bit;
  }
}

TEST_P(LevelsTest, CodesOfAnythingAreInRange) {
  const std::vector<float> values = {kNaN, kInfinity, -kInfinity, 1e38f, -1e38f, kNaN, 0, 1,
                                     kNaN, kInfinity, -kInfinity, 1e38f, -1e38f, kNaN, 0, 1};
  std::vector<int32_t> codes(values.size()), expected(values.size());
  to_nearest_levels(values.data(), values.size(), 1, 7, codes.data());
  plain::to_nearest_levels(values.data(), values.size(), 1, 7, expected.data());
  EXPECT_EQ(codes, expected);
  for (const int32_t code : codes) EXPECT_LE(std::abs(code), 7);
  to_random_levels(values.data(), values.size(), 1, 7, {1, 2}, 3, codes.data());
  for (const int32_t code : codes) EXPECT_LE(std::abs(code), 7);
}

TEST_P(LevelsTest, TheSumOfLargestElementsIsTheScaleItself) {
  const std::vector<int32_t> sums(40, 3 * 127);
  std::vector<float> out(40);
  for (const float scale : kScales) {
    from_levels(sums.data(), 40, 3 * 127, scale, out.data());
    EXPECT_THAT(out, testing::Each(scale));
  }
}

TEST_P(LevelsTest, LargestMagnitude) {
  for (size_t n = 0; n < 100; ++n) {
    auto values = values_of(rng_, n, 1e-3f, 100);
    ASSERT_EQ(largest_magnitude(values.data(), n), plain::largest_magnitude(values.data(), n));
    if (n == 0) continue;
    const size_t at = rng_.below(n);
    values[at] = -2;
    ASSERT_EQ(largest_magnitude(values.data(), n), 2);
    for (const float bad : {kNaN, kInfinity, -kInfinity}) {
      values[at] = bad;
      ASSERT_TRUE(std::isnan(largest_magnitude(values.data(), n))) << n;
    }
  }
}

TEST_P(LevelsTest, HadamardsMatrix) {
  for (size_t n = 1; n <= 256; n *= 2) {
    const auto values = values_of(rng_, n, 1, 100);
    auto found = values, expected = values;
    hadamard(found.data(), n);
    plain::hadamard(expected.data(), n);
    ASSERT_EQ(std::memcmp(found.data(), expected.data(), n * 4), 0) << n;
    for (size_t row = 0; row < n; ++row) {
      double sum = 0;
      for (size_t i = 0; i < n; ++i)
        sum += static_cast<double>(values[i]) * (std::popcount(row & i) % 2 == 0 ? 1 : -1);
      ASSERT_NEAR(static_cast<double>(found[row]), sum, 1e-5 * static_cast<double>(n));
    }
  }
}

TEST_P(LevelsTest, SumsOfRowsAreThoseOfThePlainReference) {
  for (const size_t n : {1, 5, 16, 63, 64, 65, 128, 200}) {
    for (const size_t rows : {0, 1, 2, 33}) {
      const size_t stride = n + 3;
      const auto matrix = values_of(rng_, rows * stride, 3, 100);
      const auto factors = values_of(rng_, rows, 1e-3f, 100);  // zeros among them
      std::vector<float> found(n, -1), expected(n);
      sum_rows(factors.data(), rows, matrix.data(), stride, n, found.data());
      plain::sum_rows(factors.data(), rows, matrix.data(), stride, n, expected.data());
      ASSERT_EQ(std::memcmp(found.data(), expected.data(), n * 4), 0) << n << " " << rows;
      for (size_t j = 0; j < n; ++j) {
        double sum = 0;
        for (size_t r = 0; r < rows; ++r)
          sum += static_cast<double>(factors[r]) * static_cast<double>(matrix[r * stride + j]);
        ASSERT_NEAR(static_cast<double>(found[j]), sum, 1e-7);
      }
    }
  }
}

TEST_P(LevelsTest, FlipsTheSignsOfSetBits) {
  for (const size_t n : {1, 5, 16, 63, 64, 65, 128, 200}) {
    const auto values = values_of(rng_, n, 1, 100);
    std::vector<uint64_t> bits((n + 63) / 64);
    for (uint64_t& word : bits) word = rng_.next();
    auto found = values, expected = values;
    flip_signs(found.data(), n, bits.data());
    plain::flip_signs(expected.data(), n, bits.data());
    ASSERT_EQ(std::memcmp(found.data(), expected.data(), n * 4), 0) << n;
    for (size_t i = 0; i < n; ++i) {
      const float expected_value = (bits[i / 64] >> (i % 64) & 1) != 0 ? -values[i] : values[i];
      ASSERT_EQ(std::bit_cast<uint32_t>(found[i]), std::bit_cast<uint32_t>(expected_value));
    }
  }
}

// Lanes of several ranks are added as the network does; the sums of the fields come out, and nothing is written behind the lanes.
TEST_P(LevelsTest, FieldsOfLanesAddUp) {
  for (uint32_t bits = 1; bits <= 32; ++bits) {
    const uint32_t fields = 32 / bits;
    const int64_t offset = (int64_t{1} << (bits - 1)) - (bits == 1 ? 0 : 1);
    const uint32_t low = bits == 1 ? 0 : static_cast<uint32_t>(offset);
    for (const size_t n : {size_t{1}, size_t{fields}, size_t{fields} * 7 + 1, size_t{fields} * 16,
                           size_t{fields} * 37, size_t{fields} * 64 - 1, size_t{fields} * 64}) {
      const size_t count = (n + fields - 1) / fields;
      std::vector<uint32_t> lanes(count, 0);
      std::vector<int32_t> sums(n, 0), mine(count + 1), plain_lanes(count), codes(n);
      for (int rank = 0; rank < 3; ++rank) {
        for (size_t i = 0; i < n; ++i) {
          // A third of the range for each rank, and its ends often.
          const int64_t least = -int64_t{low} / 3, most = bits == 1 ? (rank == 0 ? 1 : 0) : offset / 3;
          const double share = rng_.chance(0.3) ? (rng_.chance(0.5) ? 0.0 : 1.0) : rng_.unit();
          codes[i] = static_cast<int32_t>(least + std::llround(share * static_cast<double>(most - least)));
          sums[i] += codes[i];
        }
        mine[count] = 12345;
        pack_fields(codes.data(), n, bits, fields, mine.data());
        plain::pack_fields(codes.data(), n, bits, fields, plain_lanes.data());
        ASSERT_TRUE(std::equal(plain_lanes.begin(), plain_lanes.end(), mine.begin())) << bits << " " << n;
        ASSERT_EQ(mine[count], 12345);
        for (size_t j = 0; j < count; ++j) lanes[j] += static_cast<uint32_t>(mine[j]);
      }
      std::vector<int32_t> received(count), found(n), expected(n);
      std::memcpy(received.data(), lanes.data(), count * 4);
      unpack_fields(received.data(), n, bits, fields, low, found.data());
      plain::unpack_fields(received.data(), n, bits, fields, low, expected.data());
      ASSERT_EQ(found, sums) << bits << " " << n;
      ASSERT_EQ(expected, sums) << bits << " " << n;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, LevelsTest, testing::ValuesIn(all_targets()), target_name);

}  // namespace
}  // namespace netsum::kernels::levels_test
