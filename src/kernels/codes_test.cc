#include "src/kernels/codes.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "src/kernels/test_data.h"

namespace netsum::kernels::codes_test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr size_t kSizes[] = {0, 1, 3, 15, 16, 17, 64, 100};

class CodesTest : public TargetTest {
 protected:
  // Of any magnitude, from subnormal ones to the largest, and zeros of both signs.
  std::vector<float> finite(size_t n) {
    std::vector<float> values(n);
    for (float& value : values) {
      const auto mantissa = static_cast<float>(2 * rng_.unit() - 1);
      value = std::ldexp(mantissa, static_cast<int>(rng_.below(277)) - 149);
      if (rng_.chance(0.1)) value = std::copysign(0.0f, value);
      if (rng_.chance(0.1)) value = std::copysign(std::exp2(static_cast<float>(rng_.below(40)) - 20), value);
    }
    return values;
  }
  std::vector<float> any(size_t n) {
    std::vector<float> values = finite(n);
    for (float& value : values) {
      if (!rng_.chance(0.1)) continue;
      value = rng_.chance(0.5) ? kNaN : kInfinity;
      if (rng_.chance(0.5)) value = -value;
    }
    return values;
  }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) return false;
  }
  return a.size() == b.size();
}

TEST_P(CodesTest, IntervalsAreThoseOfThePlainReference) {
  for (uint32_t bits = 1; bits <= 8; ++bits) {
    for (const size_t n : kSizes) {
      const auto values = any(n);
      auto borders = finite((size_t{1} << bits) - 1);
      // Borders that are values, equal ones, and infinities behind them.
      for (size_t b = 0; b < borders.size() && n > 0; b += 3) borders[b] = finite(1)[0];
      for (size_t b = 0; b < borders.size() && n > 0; b += 2)
        if (!std::isnan(values[b % n])) borders[b] = values[b % n];
      if (rng_.chance(0.5)) borders.back() = kInfinity;
      std::sort(borders.begin(), borders.end());
      std::vector<uint8_t> codes(n, 200), expected(n);
      to_intervals(values.data(), n, borders.data(), bits, codes.data());
      plain::to_intervals(values.data(), n, borders.data(), bits, expected.data());
      ASSERT_EQ(codes, expected) << bits << " " << n;
      for (size_t i = 0; i < n; ++i)
        ASSERT_EQ(codes[i], std::count_if(borders.begin(), borders.end(),
                                          [&](float border) { return border < values[i]; }));
    }
  }
}

TEST_P(CodesTest, SignedIntervalsAreThoseOfThePlainReference) {
  for (const float scale : {1.0f, 0.3f, 1e-40f, 3e38f}) {
    for (const size_t n : kSizes) {
      auto values = finite(n);
      // Of two in three ranges, one each.
      std::array<float, IndexedBorders::kCount> given{};
      const auto first =
          static_cast<int32_t>(rng_.below(IndexedBorders::kLast - IndexedBorders::kFirst - 200));
      for (size_t b = 0; b < given.size(); ++b) {
        const auto range =
            static_cast<uint32_t>(IndexedBorders::kFirst + first) + static_cast<uint32_t>(b * 3 / 2);
        given[b] = std::bit_cast<float>((range << IndexedBorders::kShift) +
                                        static_cast<uint32_t>(rng_.below(1 << IndexedBorders::kShift)));
      }
      const IndexedBorders borders = IndexedBorders::make(given);
      ASSERT_TRUE(borders.is_valid());
      for (float& value : values) {
        if (!(std::fabs(value) <= scale)) value = static_cast<float>(2 * rng_.unit() - 1) * scale;
        if (rng_.chance(0.3)) value = borders.numbers[rng_.below(127)] * scale;
        if (rng_.chance(0.1)) value = -scale;
      }
      std::vector<uint8_t> codes(n, 200), expected(n);
      to_signed_intervals(values.data(), n, scale, borders, codes.data());
      plain::to_signed_intervals(values.data(), n, scale, borders, expected.data());
      ASSERT_EQ(codes, expected) << scale << " " << n;
      for (size_t i = 0; i < n; ++i) {
        ASSERT_EQ(codes[i] >> 7, std::signbit(values[i]) ? 1 : 0);
        ASSERT_EQ(codes[i] & 127, std::count_if(given.begin(), given.end(), [&](float border) {
                    return border < std::fabs(values[i]) / scale;
                  }));
      }
    }
  }
}

TEST_P(CodesTest, PowersAreThoseOfThePlainReference) {
  for (const int top : {-148, -147, -100, -24, -1, 0, 1, 60, 126, 127}) {
    for (const size_t n : kSizes) {
      const auto values = any(n);
      std::vector<uint8_t> codes(n, 200), expected(n);
      to_powers(values.data(), n, top, codes.data());
      plain::to_powers(values.data(), n, top, expected.data());
      ASSERT_EQ(codes, expected) << top << " " << n;
      const RandomKey key = {static_cast<uint32_t>(rng_.next()), static_cast<uint32_t>(rng_.next())};
      const auto first = static_cast<uint32_t>(rng_.next());
      to_random_powers(values.data(), n, top, key, first, codes.data());
      plain::to_random_powers(values.data(), n, top, key, first, expected.data());
      ASSERT_EQ(codes, expected) << top << " " << n;
    }
  }
}

// Against logarithms in double, with which the plain reference shares nothing.
TEST_P(CodesTest, PowersAreTheNearestOrNeighbours) {
  constexpr int kTop = 20;
  auto values = finite(2000);
  std::vector<uint8_t> nearest(values.size()), random(values.size());
  to_powers(values.data(), values.size(), kTop, nearest.data());
  to_random_powers(values.data(), values.size(), kTop, {3, 4}, 5, random.data());
  const auto number_of = [](uint8_t code) { return code == 0 ? 0 : std::exp2(kTop + 1 - code); };
  for (size_t i = 0; i < values.size(); ++i) {
    const double magnitude = std::fabs(static_cast<double>(values[i]));
    if (magnitude > std::exp2(kTop)) continue;
    const double least = std::exp2(kTop + 1 - kMostPowers);
    const double below = magnitude < least ? 0 : std::exp2(std::floor(std::log2(magnitude)));
    const double above = magnitude == below ? below : magnitude < least ? least : 2 * below;
    const double sent = number_of(nearest[i] & 127), either = number_of(random[i] & 127);
    ASSERT_TRUE(either == below || either == above) << values[i];
    ASSERT_EQ(std::fabs(sent - magnitude), std::min(magnitude - below, above - magnitude)) << values[i];
  }
}

// The mean of many keys is within 6 standard deviations of the value.
TEST_P(CodesTest, RandomPowersAreUnbiased) {
  constexpr int kKeys = 20'000;
  constexpr size_t kCount = 37;
  std::vector<float> values(kCount);
  for (size_t i = 0; i < kCount; ++i) values[i] = 1 + static_cast<float>(i) * 0.2f;
  std::vector<double> sums(kCount, 0);
  std::vector<uint8_t> codes(kCount);
  const auto seed = static_cast<uint32_t>(rng_.next());
  for (uint32_t k = 0; k < kKeys; ++k) {
    to_random_powers(values.data(), kCount, 10, {seed, seed + k}, 0, codes.data());
    for (size_t i = 0; i < kCount; ++i) sums[i] += std::exp2(11 - codes[i]);
  }
  for (size_t i = 0; i < kCount; ++i) {
    const double below = std::exp2(std::floor(std::log2(values[i]))), over = values[i] - below;
    ASSERT_NEAR(sums[i] / kKeys, values[i], 6 * std::sqrt(over * (below - over) / kKeys) + 1e-5) << i;
  }
}

TEST_P(CodesTest, NumbersOfCodesAreThoseOfThePlainReference) {
  auto table = any(256);
  for (const size_t n : kSizes) {
    std::vector<uint8_t> codes(n);
    for (uint8_t& code : codes) code = static_cast<uint8_t>(rng_.below(256));
    for (const float scale : {1.0f, 0.37f, 1e-30f}) {
      std::vector<float> out(n, -1), expected(n);
      from_codes(codes.data(), n, table.data(), scale, 3, out.data());
      plain::from_codes(codes.data(), n, table.data(), scale, 3, expected.data());
      ASSERT_TRUE(same_bits(out, expected)) << n;
      auto values = any(n);
      rest_of_codes(values.data(), codes.data(), n, table.data(), scale, out.data());
      plain::rest_of_codes(values.data(), codes.data(), n, table.data(), scale, expected.data());
      ASSERT_TRUE(same_bits(out, expected)) << n;
      rest_of_codes(values.data(), codes.data(), n, table.data(), scale, values.data());
      ASSERT_TRUE(same_bits(values, expected)) << "in place";
    }
  }
}

TEST_P(CodesTest, ShortNumbersAreThoseOfThePlainReference) {
  for (const float step : {1.0f, 0.001f, 1e-38f, 1e33f}) {
    for (const size_t n : kSizes) {
      auto values = any(n);
      // At the borders of the lengths, and halves.
      for (float& value : values) {
        if (!rng_.chance(0.5)) continue;
        const float steps[] = {0.5f, 1.5f, 127, 127.5f, 128, 32767, 32767.5f, 32768, 40000};
        value = (rng_.chance(0.5) ? 1.0f : -1.0f) * steps[rng_.below(9)] * step;
      }
      std::vector<uint8_t> lengths(n, 200), expected_lengths(n);
      std::vector<uint32_t> words(n), expected_words(n);
      std::vector<float> rest(n, -1), expected_rest(n), out(n), expected_out(n);
      to_short_numbers(values.data(), n, step, lengths.data(), words.data(), rest.data());
      plain::to_short_numbers(values.data(), n, step, expected_lengths.data(), expected_words.data(),
                              expected_rest.data());
      ASSERT_EQ(lengths, expected_lengths) << step;
      ASSERT_EQ(words, expected_words) << step;
      ASSERT_TRUE(same_bits(rest, expected_rest)) << step;
      // Bytes that are not part of a number belong to the next one.
      for (size_t i = 0; i < n; ++i)
        if (lengths[i] < 2) words[i] ^= static_cast<uint32_t>(rng_.next()) << (8 * lengths[i]);
      from_short_numbers(lengths.data(), words.data(), n, step, 2, out.data());
      plain::from_short_numbers(lengths.data(), words.data(), n, step, 2, expected_out.data());
      ASSERT_TRUE(same_bits(out, expected_out)) << step;
      for (size_t i = 0; i < n; ++i) {
        const float sent = std::isfinite(values[i]) ? values[i] - rest[i] : values[i];
        if (std::isnan(values[i])) {
          ASSERT_TRUE(std::isnan(out[i]));
        } else if (std::isinf(values[i])) {
          ASSERT_EQ(out[i], values[i]);
        } else {
          ASSERT_NEAR(out[i], sent / 2, std::fabs(sent) * 1e-6f) << values[i];
        }
      }
      to_short_numbers(values.data(), n, step, lengths.data(), words.data(), nullptr);
      ASSERT_EQ(lengths, expected_lengths) << "without a rest";
      to_short_numbers(values.data(), n, step, lengths.data(), words.data(), values.data());
      ASSERT_TRUE(same_bits(values, expected_rest)) << "in place";
    }
  }
}

TEST_P(CodesTest, CellsAreThoseOfThePlainReference) {
  for (const uint32_t width : {1u, 2u, 10u, 1000u, 0x7FFFFFFFu}) {
    for (const size_t n : kSizes) {
      const RandomKey key = {static_cast<uint32_t>(rng_.next()), static_cast<uint32_t>(rng_.next())};
      const auto first = static_cast<uint32_t>(rng_.next());
      std::vector<uint32_t> cells(n + 1, 5), expected(n + 1, 5);
      random_cells(key, first, n, width, cells.data());
      plain::random_cells(key, first, n, width, expected.data());
      ASSERT_EQ(cells, expected) << width << " " << n;
      for (size_t i = 0; i < n; ++i) ASSERT_LT(cells[i] & 0x7FFFFFFF, width);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, CodesTest, testing::ValuesIn(all_targets()), target_name);

}  // namespace
}  // namespace netsum::kernels::codes_test
