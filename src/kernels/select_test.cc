#include "src/kernels/select.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "src/kernels/half.h"
#include "src/kernels/test_data.h"

namespace netsum::kernels::select_test {
namespace {

class SelectTest : public TargetTest {};

// Bits, because NaN is not equal to itself and -0 is equal to 0.
std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

// Numbers of all magnitudes, zeros, infinities, NaNs, and many that are equal.
std::vector<float> values_of(size_t n, Rng& rng) {
  std::vector<float> values(n);
  for (float& value : values) {
    auto bits = static_cast<uint32_t>(rng.next());
    if (rng.chance(0.3)) bits = 0x3F800000 | (bits & 0x80000000);
    if (rng.chance(0.1)) bits &= 0x80000000;
    if (rng.chance(0.02)) bits = kInfinityBits | (bits & 0x80000000);
    value = std::bit_cast<float>(bits);
  }
  return values;
}

TEST_P(SelectTest, SelectsAsThePlainReference) {
  for (size_t n = 0; n < 300; n += n < 70 ? 1 : 13) {
    const auto values = values_of(n, rng_);
    for (const uint32_t bits : {1u, 0x3F800000u, 0x3F800001u, kInfinityBits, kNaNBits + 1, 0x80000000u}) {
      std::vector<float> sent(n), rest(n), expected_sent(n), expected_rest(n);
      const size_t count = select(values.data(), n, bits, sent.data(), rest.data());
      EXPECT_EQ(count, plain::select(values.data(), n, bits, expected_sent.data(), expected_rest.data()));
      ASSERT_EQ(bits_of(sent), bits_of(expected_sent));
      ASSERT_EQ(bits_of(rest), bits_of(expected_rest));
      auto in_place = values;
      std::vector<float> other(n);
      select(in_place.data(), n, bits, other.data(), in_place.data());
      ASSERT_EQ(bits_of(other), bits_of(sent));
      ASSERT_EQ(bits_of(in_place), bits_of(rest));
      EXPECT_EQ(select(values.data(), n, bits, other.data(), nullptr), count);
      ASSERT_EQ(bits_of(other), bits_of(sent));
    }
  }
}

// The sum is rounded as by accumulate(), and NaN may have other bits.
TEST_P(SelectTest, SelectsOfSumsAsThePlainReference) {
  for (size_t n = 0; n < 300; n += n < 70 ? 1 : 13) {
    const auto values = values_of(n, rng_), memory = values_of(n, rng_);
    for (const float decay : {1.0f, 0.3f, 0.0f}) {
      for (const uint32_t bits : {1u, 0x3F800000u, kInfinityBits, 0x80000000u}) {
        std::vector<float> sent(n), rest = memory, two_passes(n), expected_rest = memory;
        const size_t count = select_added(decay, values.data(), n, bits, sent.data(), rest.data());
        accumulate(decay, values.data(), n, expected_rest.data());
        EXPECT_EQ(count, select(expected_rest.data(), n, bits, two_passes.data(), expected_rest.data()));
        for (size_t i = 0; i < n; ++i) {
          ASSERT_EQ(std::isnan(sent[i]), std::isnan(two_passes[i]));
          if (!std::isnan(sent[i])) ASSERT_EQ(bits_of({sent[i]}), bits_of({two_passes[i]}));
        }
        ASSERT_EQ(bits_of(rest), bits_of(expected_rest));
        auto plain_rest = memory;
        EXPECT_EQ(plain::select_added(decay, values.data(), n, bits, sent.data(), plain_rest.data()), count);
        ASSERT_EQ(bits_of(plain_rest), bits_of(expected_rest));
      }
    }
  }
}

TEST_P(SelectTest, ConvertsAsThePlainReference) {
  for (const DataType type : {DataType::kFloat16, DataType::kBFloat16}) {
    for (size_t n = 0; n < 300; n += n < 70 ? 1 : 13) {
      auto values = values_of(n, rng_);
      if (type == DataType::kFloat16)
        for (float& value : values) value = std::ldexp(value, -static_cast<int>(rng_.below(4)) * 20);
      std::vector<uint16_t> halves(n), expected(n);
      to_halves(type, values.data(), n, halves.data());
      plain::to_halves(type, values.data(), n, expected.data());
      ASSERT_EQ(halves, expected) << data_type_name(type);
      std::vector<float> back(n), expected_back(n);
      for (uint16_t& half : halves)
        if (rng_.chance(0.5)) half = static_cast<uint16_t>(rng_.next());
      from_halves(type, halves.data(), n, back.data());
      plain::from_halves(type, halves.data(), n, expected_back.data());
      for (size_t i = 0; i < n; ++i) {
        const bool is_nan = std::isnan(expected_back[i]);
        ASSERT_EQ(std::bit_cast<uint32_t>(back[i]),
                  is_nan ? kNaNBits : std::bit_cast<uint32_t>(expected_back[i]));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, SelectTest, testing::ValuesIn(all_targets()), target_name);

TEST(KthMagnitudeTest, IsThatOfASortedCopy) {
  Rng rng(3);
  for (const size_t n : {size_t{1}, size_t{2}, size_t{17}, size_t{500}}) {
    for (int round = 0; round < 20; ++round) {
      const auto values = values_of(n, rng);
      std::vector<uint32_t> sorted;
      for (const float value : values) sorted.push_back(magnitude_bits(value));
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      for (size_t k = 1; k <= n; k += 1 + n / 50) {
        const KthMagnitude kth = kth_magnitude(values.data(), n, k);
        ASSERT_EQ(kth.bits, sorted[k - 1]);
        const auto above =
            std::count_if(sorted.begin(), sorted.end(), [&](uint32_t b) { return b > kth.bits; });
        ASSERT_EQ(kth.above, static_cast<size_t>(above));
        ASSERT_EQ(kth.equal, static_cast<size_t>(std::count(sorted.begin(), sorted.end(), kth.bits)));
      }
    }
  }
}

// The sampled threshold passes between 0.95 and 1.05 times as many values as wanted, for distributions of all shapes: 6 standard
// deviations of a sample that has 16 000 or more of the values to send.
TEST(SampledMagnitudeTest, PassesAboutAsManyValuesAsWanted) {
  constexpr size_t kCount = 4'000'000;
  constexpr size_t kColumns = 512;
  std::vector<float> values(kCount);
  for (int shape = 0; shape < 5; ++shape) {
    Rng rng(5);
    for (size_t i = 0; i < kCount; ++i) {
      const double u = 2 * rng.unit() - 1;
      float& value = values[i];
      if (shape == 0) value = static_cast<float>(u);
      if (shape == 1) value = static_cast<float>(std::copysign(std::log1p(-std::fabs(u)), u));  // Laplace
      if (shape == 2) value = static_cast<float>(std::pow(u, 9));
      if (shape == 3) value = static_cast<float>(rng.chance(0.95) ? 0.001 * u : u);  // two scales
      // Some columns of a matrix are larger.
      if (shape == 4) value = static_cast<float>(i % kColumns < 24 ? u : 0.01 * u);
    }
    for (const double share : {0.01, 0.02, 0.1}) {
      const auto wanted = static_cast<size_t>(share * kCount);
      const uint32_t bits = sampled_magnitude(values.data(), kCount, wanted);
      const auto passed =
          std::count_if(values.begin(), values.end(), [&](float v) { return magnitude_bits(v) >= bits; });
      EXPECT_NEAR(static_cast<double>(passed) / static_cast<double>(wanted), 1, 0.05)
          << shape << " " << share;
    }
  }
}

TEST(SampledMagnitudeTest, OfSumsIsThatOfTheSums) {
  Rng rng(9);
  std::vector<float> values(500'000), memory(values.size());
  for (float& value : values) value = static_cast<float>(rng.unit());
  for (float& value : memory) value = static_cast<float>(rng.unit());
  const uint32_t bits = sampled_magnitude_added(0.5f, values.data(), memory.data(), values.size(), 100'000);
  accumulate(0.5f, values.data(), values.size(), memory.data());
  EXPECT_EQ(bits, sampled_magnitude(memory.data(), memory.size(), 100'000));
}

TEST(SampledMagnitudeTest, ThereIsNoSampleOfFewValues) {
  const std::vector<float> values(100'000, 1.0f);
  EXPECT_EQ(sampled_magnitude(values.data(), values.size(), 31'999), 0u);
  EXPECT_GT(sampled_magnitude(values.data(), values.size(), 32'000), 0u);
}

TEST(SampledMagnitudeTest, ConstantsAndZerosAndNumbersThatAreNotFinite) {
  std::vector<float> values(1'000'000, 0.5f);
  uint32_t bits = sampled_magnitude(values.data(), values.size(), 100'000);
  EXPECT_LE(bits, magnitude_bits(0.5f) + (1 << 16));
  std::fill(values.begin(), values.end(), 0.0f);
  EXPECT_GE(sampled_magnitude(values.data(), values.size(), 100'000), 1u);
  std::fill(values.begin(), values.end(), std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(sampled_magnitude(values.data(), values.size(), 100'000), kInfinityBits);
}

}  // namespace
}  // namespace netsum::kernels::select_test
