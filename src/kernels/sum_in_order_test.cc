// Sums in the order of the inputs: against the plain kernel on every target this CPU has, and against exact sums.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "src/kernels/half.h"
#include "src/kernels/kernels.h"
#include "src/kernels/test_data.h"

namespace netsum::kernels::sum_in_order_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kSmallest = std::numeric_limits<float>::denorm_min();

// The bits of the sum of one element of each rank.
uint32_t sum_of(const std::vector<float>& ranks, int divisor = 1) {
  std::vector<const uint8_t*> inputs;
  for (const float& value : ranks) inputs.push_back(reinterpret_cast<const uint8_t*>(&value));
  uint32_t bits = 0;
  sum_in_order(DataType::kFloat32, inputs, 1, divisor, DataType::kFloat32, &bits);
  return bits;
}

uint32_t bits_of(float value) {
  return std::bit_cast<uint32_t>(value);
}

}  // namespace

class SumInOrderTest : public TargetTest {};

TEST_P(SumInOrderTest, AllTargetsGiveTheBitsOfThePlainSum) {
  constexpr std::array<std::pair<DataType, DataType>, 7> kConversions{
      {{DataType::kFloat32, DataType::kFloat32},
       {DataType::kBFloat16, DataType::kBFloat16},
       {DataType::kFloat16, DataType::kFloat16},
       {DataType::kBFloat16, DataType::kFloat32},
       {DataType::kFloat16, DataType::kFloat32},
       {DataType::kFloat32, DataType::kBFloat16},
       {DataType::kFloat32, DataType::kFloat16}}};
  for (const auto& [type, to] : kConversions) {
    for (const size_t count : {1, 2, 3, 8, 64}) {
      for (const size_t n : interesting_sizes()) {
        const auto exponent = static_cast<uint8_t>(n % 5 == 0 ? rng_.below(3) : rng_.below(255));
        const int divisor = std::array{1, static_cast<int>(count), 8, 6}[rng_.below(4)];
        std::vector<GuardedBytes> inputs;
        std::vector<const uint8_t*> pointers;
        for (size_t i = 0; i < count; ++i) {
          inputs.emplace_back(n * size_of(type), (n + 3 * i) % 64);
          std::vector<uint8_t> elements = finite_elements(rng_, type, n, exponent, 1);
          if (n % 3 == 0) sprinkle_specials(rng_, type, elements);
          inputs.back().fill(elements);
        }
        for (const GuardedBytes& input : inputs) pointers.push_back(input.data());
        GuardedBytes out(n * size_of(to), n % 7), expected(n * size_of(to), n % 7);
        sum_in_order(type, pointers, n, divisor, to, out.data());
        plain::sum_in_order(type, pointers, n, divisor, to, expected.data());
        ASSERT_EQ(out, expected) << data_type_name(type) << " to " << data_type_name(to) << ", " << count
                                 << " inputs of " << n << ", divided by " << divisor;
        ASSERT_TRUE(out.guards_intact());
      }
    }
  }
}

// In any number of calls, in place or not.
TEST_P(SumInOrderTest, ASumInPartsHasTheBitsOfTheWhole) {
  for (const DataType type : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16}) {
    for (const size_t n : interesting_sizes()) {
      constexpr size_t kRanks = 5;
      std::vector<std::vector<uint8_t>> inputs;
      std::vector<const uint8_t*> pointers;
      for (size_t i = 0; i < kRanks; ++i) {
        inputs.push_back(
            finite_elements(rng_, type, n, static_cast<uint8_t>(n % 5 == 0 ? 2 : rng_.below(255)), 1));
        if (n % 3 == 0) sprinkle_specials(rng_, type, inputs.back());
      }
      for (const auto& input : inputs) pointers.push_back(input.data());
      std::vector<uint8_t> whole(n * size_of(type)), parts(n * size_of(type)), so_far(n * sizeof(float));
      sum_in_order(type, pointers, n, kRanks, type, whole.data());
      const std::span<const uint8_t* const> all(pointers);
      const size_t first = 1 + rng_.below(3);
      sum_in_order(type, all.first(first), n, 1, DataType::kFloat32, so_far.data());
      sum_in_order(type, all.subspan(first, 1), n, 1, DataType::kFloat32, so_far.data(), so_far.data());
      sum_in_order(type, all.subspan(first + 1), n, kRanks, type, parts.data(), so_far.data());
      ASSERT_EQ(parts, whole) << data_type_name(type) << ", " << n;
    }
  }
}

TEST_P(SumInOrderTest, EveryPositionOfSpecialValuesGivesWhatAdditionsInThisOrderGive) {
  EXPECT_EQ(sum_of({-0.0f, -0.0f, -0.0f}), bits_of(-0.0f));
  EXPECT_EQ(sum_of({-0.0f, 0.0f}), bits_of(0.0f));
  EXPECT_EQ(sum_of({0.0f, -0.0f}), bits_of(0.0f));
  EXPECT_EQ(sum_of({kSmallest, kSmallest, kSmallest}), bits_of(3 * kSmallest));
  EXPECT_EQ(sum_of({kSmallest, -kSmallest}), bits_of(0.0f));
  EXPECT_EQ(sum_of({3 * kSmallest, 0.0f}, 2), bits_of(2 * kSmallest)) << "a tie, to even";
  EXPECT_EQ(sum_of({3e38f, 3e38f, -3e38f}), bits_of(kInf)) << "a partial sum beyond the range";
  EXPECT_EQ(sum_of({3e38f, -3e38f, 3e38f}), bits_of(3e38f));
  EXPECT_EQ(sum_of({1e8f, -1e8f, 1e-3f}), bits_of(1e-3f));
  EXPECT_EQ(sum_of({1e-3f, 1e8f, -1e8f}), bits_of(0.0f)) << "in this order, and in no other";
  const std::vector<float> values = {kInf, -kInf, kNaN, -kNaN, 1.0f, -0.0f, kSmallest};
  for (const float a : values) {
    for (const float b : values) {
      for (const float c : values) {
        const float sum = a + b + c;
        EXPECT_EQ(sum_of({a, b, c}), std::isnan(sum) ? kNaNBits : bits_of(sum))
            << a << ", " << b << ", " << c;
      }
    }
  }
}

// Of N additions, each result is rounded once: at most (N - 1) 2^-24 of the sum of magnitudes, to first order.
TEST_P(SumInOrderTest, TheErrorIsAtMostThatOfTheAdditions) {
  for (const size_t ranks : {2, 8, 64}) {
    constexpr size_t kCount = 360;
    std::vector<std::vector<float>> inputs(ranks, std::vector<float>(kCount));
    std::vector<const uint8_t*> pointers;
    for (std::vector<float>& input : inputs) {
      for (float& value : input)
        value = static_cast<float>(std::pow(10.0, 17 * rng_.unit() - 8) * (rng_.chance(0.5) ? 1 : -1));
      pointers.push_back(reinterpret_cast<const uint8_t*>(input.data()));
    }
    std::vector<float> out(kCount);
    sum_in_order(DataType::kFloat32, pointers, kCount, 1, DataType::kFloat32, out.data());
    for (size_t i = 0; i < kCount; ++i) {
      long double sum = 0, magnitudes = 0;
      for (const std::vector<float>& input : inputs) {
        sum += input[i];
        magnitudes += std::fabs(input[i]);
      }
      EXPECT_LE(std::fabs(static_cast<long double>(out[i]) - sum),
                static_cast<long double>(ranks - 1) * 0x1p-24L * magnitudes)
          << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, SumInOrderTest, testing::ValuesIn(all_targets()), target_name);

}  // namespace netsum::kernels::sum_in_order_test
