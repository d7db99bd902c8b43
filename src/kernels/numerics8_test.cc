// What docs/numerics.md promises of floating-point types in 8-bit lanes. The error bound itself is checked in
// numerics_test.cc, for all widths.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>

#include "src/kernels/kernels.h"
#include "src/kernels/test_data.h"

namespace netsum::kernels::numerics8_test {
namespace {

std::vector<float> values_of(DataType type, const Reduced& reduced) {
  std::vector<float> values;
  for (size_t i = 0; i < reduced.out.size() / size_of(type); ++i)
    values.push_back(element(type, reduced.out.data(), i));
  return values;
}

// So that votes and counts come out right: a number of members that all have +-1, or 0.
TEST(Lanes8, APowerOfTwoThatIsTheLargestOfItsBlockIsExact) {
  for (const DataType type : kFloatTypes) {
    for (int members = 1; members <= kMaxMembers8; ++members) {
      for (const float one : {1.0f, 0x1p-14f, 0x1p9f}) {
        Blocks blocks;
        for (int member = 0; member < members; ++member)
          blocks.push_back(elements_of(type, std::vector<float>{one, -one, 0, member % 2 == 0 ? one : -one}));
        const Reduced reduced = reduce(type, blocks, false, 8);
        ASSERT_FALSE(reduced.overflow);
        ASSERT_THAT(values_of(type, reduced),
                    testing::ElementsAre(one * static_cast<float>(members),
                                         -one * static_cast<float>(members), 0, members % 2 == 0 ? 0 : one))
            << data_type_name(type) << ", " << members << " members";
      }
    }
  }
}

// The largest number below a power of two is limited, so that the sum of all members fits.
TEST(Lanes8, TheLargestOfAllMembersFit) {
  for (int members = 1; members <= kMaxMembers8; ++members) {
    const float largest = std::nextafter(2.0f, 0.0f);
    const Blocks blocks(static_cast<size_t>(members),
                        elements_of(DataType::kFloat32, std::vector<float>{largest, -largest}));
    const Reduced reduced = reduce(DataType::kFloat32, blocks, false, 8);
    ASSERT_FALSE(reduced.overflow) << members;
    const float quantum = std::ldexp(2.0f, -quantum_bits(members, 8));
    const auto lane = static_cast<float>(std::min(1 << quantum_bits(members, 8), 127 / members));
    const float expected = static_cast<float>(members) * lane * quantum;
    ASSERT_THAT(values_of(DataType::kFloat32, reduced), testing::ElementsAre(expected, -expected)) << members;
  }
}

TEST(Lanes8, LoseWhatIsFarBelowTheLargestOfTheBlock) {
  // 8 members have a quantum of 2^-3 beside 1.
  const std::vector<float> block = {1.0f, 0x1p-4f, 0x1.2p-4f, 0x1p-3f, -0x1p-4f};
  const Reduced reduced =
      reduce(DataType::kFloat32, Blocks(8, elements_of(DataType::kFloat32, block)), false, 8);
  EXPECT_THAT(values_of(DataType::kFloat32, reduced), testing::ElementsAre(8.0f, 0.0f, 1.0f, 1.0f, 0.0f));
}

// Every pair of a number, zero, infinities and NaN, and numbers beside them as without them.
TEST(Lanes8, SpecialsSumAsInFloatsAndChangeNothingBesideThem) {
  const float kinds[] = {1.5f, 0.0f, -0.0f, INFINITY, -INFINITY, NAN, -NAN};
  for (const DataType type : kFloatTypes) {
    for (const bool average : {false, true}) {
      std::vector<float> first, second;
      for (const float x : kinds) {
        for (const float y : kinds) {
          first.push_back(x);
          second.push_back(y);
        }
      }
      const std::vector<float> got =
          values_of(type, reduce(type, {elements_of(type, first), elements_of(type, second)}, average, 8));
      for (size_t i = 0; i < got.size(); ++i) {
        const float sum = first[i] + second[i];
        const float expected = average ? sum / 2 : sum;
        ASSERT_TRUE(std::isnan(expected) ? std::isnan(got[i]) : got[i] == expected)
            << first[i] << " + " << second[i] << " = " << got[i];
        ASSERT_FALSE(got[i] == 0 && std::signbit(got[i]));
      }
    }
  }
}

TEST(Lanes8, MarksBeginAnywhereAndAddUp) {
  const std::vector<float> block = {INFINITY, 1.0f, -INFINITY, NAN, 0.0f};
  for (const DataType type : kFloatTypes) {
    const auto elements = elements_of(type, block);
    for (size_t first = 0; first < 9; ++first) {
      std::vector<uint8_t> marks(5);
      mark_specials(type, elements.data(), block.size(), first, marks.data());
      mark_specials(type, elements_of(type, std::vector<float>{-INFINITY}).data(), 1, first, marks.data());
      const uint8_t expected[] = {3, 0, 2, 3, 0};
      for (size_t i = 0; i < 20; ++i) {
        const bool inside = i >= first && i < first + block.size();
        ASSERT_EQ(marks[i / 4] >> i % 4 * 2 & 3, inside ? expected[i - first] : 0) << first << " " << i;
      }
      auto out = elements_of(type, std::vector<float>(block.size(), 7.0f));
      put_specials(type, marks.data(), first, block.size(), out.data());
      EXPECT_THAT(std::vector<float>({element(type, out.data(), 1), element(type, out.data(), 2),
                                      element(type, out.data(), 4)}),
                  testing::ElementsAre(7.0f, -INFINITY, 7.0f));
      EXPECT_TRUE(std::isnan(element(type, out.data(), 0)) && std::isnan(element(type, out.data(), 3)));
    }
  }
}

// The figures in docs/numerics.md: normally distributed elements, as gradients are. Each member's rounding is uniform over a
// quantum.
TEST(Lanes8, TypicalErrorIsAsPredicted) {
  Rng rng(test_seed());
  for (const int members : {2, 3, 4, 8, 16, 64}) {
    constexpr size_t kCount = 1440;
    constexpr int kBlocks = 20;
    double predicted = 0, squares = 0;
    for (int block = 0; block < kBlocks; ++block) {
      Blocks blocks;
      std::vector<double> sums(kCount);
      double largest = 0;
      for (int member = 0; member < members; ++member) {
        std::vector<float> values(kCount);
        for (size_t i = 0; i < kCount; ++i) {
          const double radius = std::sqrt(-2 * std::log(1 - rng.unit()));
          values[i] = static_cast<float>(radius * std::cos(2 * M_PI * rng.unit()));
          sums[i] += values[i];
          largest = std::max(largest, static_cast<double>(std::fabs(values[i])));
        }
        blocks.push_back(elements_of(DataType::kFloat32, values));
      }
      const double quantum = std::ldexp(1.0, std::ilogb(largest) + 1 - quantum_bits(members, 8));
      predicted += members / 12.0 * std::pow(quantum / largest, 2) * kCount;
      const Reduced reduced = reduce(DataType::kFloat32, blocks, false, 8);
      for (size_t i = 0; i < kCount; ++i)
        squares += std::pow((element(DataType::kFloat32, reduced.out.data(), i) - sums[i]) / largest, 2);
    }
    const double rms = std::sqrt(squares / (kBlocks * kCount));
    std::cout << members << " members: rms error / block's largest: 8-bit lanes " << rms << "\n";
    const double expected = std::sqrt(predicted / (kBlocks * kCount));
    // From 33 members on, a quantum is wider than the distribution, and its values are not uniform within it.
    if (members <= 16) {
      EXPECT_NEAR(rms, expected, 0.1 * expected) << members;
    }
  }
}

}  // namespace
}  // namespace netsum::kernels::numerics8_test
