// What docs/numerics.md promises of bfloat16 and float16 in 16-bit lanes. The error bound itself is checked
// in numerics_test.cc, for both widths.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>

#include "src/kernels/kernels.h"
#include "src/kernels/test_data.h"

namespace netsum::kernels::numerics16_test {
namespace {

// With 16 bits the range is tight: the largest numbers of a block, of one sign or both, just fit, and are
// exact as long as their own last place is no finer than the quantum.
TEST(Lanes16, HoldTheLargestOfEveryExponentExactly) {
  for (const DataType type : {DataType::kBFloat16, DataType::kFloat16}) {
    const uint16_t infinity = type == DataType::kBFloat16 ? 0x7F80 : 0x7C00;
    for (int members = 1; members <= kMaxMembers16; ++members) {
      for (uint16_t bits = 1; bits < infinity; ++bits) {
        const uint16_t block[] = {bits, static_cast<uint16_t>(bits | 0x8000)};
        const BlockScale scale = scan(type, block, 2, members);
        int16_t lanes[2];
        to_lanes16(type, block, 2, scale.exponent, members, reinterpret_cast<uint8_t*>(lanes));
        ASSERT_LE(lanes[0] * members, std::numeric_limits<int16_t>::max()) << bits << " " << members;
        ASSERT_EQ(lanes[1], -lanes[0]);
        const double value = element(type, to_bytes(std::span<const uint16_t>(block)).data(), 0);
        ASSERT_EQ(std::ldexp(lanes[0], scale.exponent - 126 - quantum_bits(members, 16)), value);
      }
    }
  }
}

// What docs/numerics.md says of small elements: below half a quantum nothing of them is left.
TEST(Lanes16, LoseWhatIsFarBelowTheLargestOfTheBlock) {
  const std::vector<float> block = {1.0f, 0x1p-12f, 0x1.02p-12f, 0x1p-11f};  // a quantum of 2^-11
  const Blocks blocks(8, elements_of(DataType::kBFloat16, block));
  const Reduced narrow = reduce(DataType::kBFloat16, blocks, false, 16);
  const Reduced exact = reduce(DataType::kBFloat16, blocks, false, 32);
  const auto values = [](const Reduced& reduced) {
    std::vector<float> out;
    for (size_t i = 0; i < 4; ++i) out.push_back(element(DataType::kBFloat16, reduced.out.data(), i));
    return out;
  };
  EXPECT_THAT(values(narrow), testing::ElementsAre(8.0f, 0.0f, 0x1p-8f, 0x1p-8f));
  EXPECT_THAT(values(exact), testing::ElementsAre(8.0f, 0x1p-9f, 0x1.02p-9f, 0x1p-8f));
}

// The figures in docs/numerics.md: normally distributed elements, as gradients are. What 16 bits cost beside
// 32 is at most `members` roundings to a multiple of the quantum, each uniform.
TEST(Lanes16, TypicalErrorIsAsPredicted) {
  Rng rng(test_seed());
  for (const DataType type : {DataType::kBFloat16, DataType::kFloat16}) {
    for (const int members : {2, 8, 16}) {
      constexpr size_t kCount = 720;
      double predicted_squares = 0;
      double squares[3] = {};  // in 16-bit lanes, in 32-bit lanes, added in the type itself
      for (int block = 0; block < 30; ++block) {
        Blocks blocks;
        std::vector<double> sums(kCount);
        std::vector<float> rounded(kCount);
        double largest = 0;
        for (int member = 0; member < members; ++member) {
          std::vector<float> values(kCount);
          for (auto& x : values) {
            const double radius = std::sqrt(-2 * std::log(1 - rng.unit()));
            x = static_cast<float>(radius * std::cos(2 * M_PI * rng.unit()));
          }
          blocks.push_back(elements_of(type, values));
          for (size_t i = 0; i < kCount; ++i) {
            const float x = element(type, blocks.back().data(), i);
            sums[i] += x;
            rounded[i] = element(type, elements_of(type, std::vector<float>{rounded[i] + x}).data(), 0);
            largest = std::max(largest, static_cast<double>(std::fabs(x)));
          }
        }
        const double quantum = std::ldexp(1.0, std::ilogb(largest) + 1 - quantum_bits(members, 16));
        predicted_squares += members / 12.0 * std::pow(quantum / largest, 2) * kCount;
        const Reduced reduced[] = {reduce(type, blocks, false, 16), reduce(type, blocks, false, 32)};
        for (size_t i = 0; i < kCount; ++i) {
          const float out[] = {element(type, reduced[0].out.data(), i),
                               element(type, reduced[1].out.data(), i), rounded[i]};
          for (int way = 0; way < 3; ++way) squares[way] += std::pow((out[way] - sums[i]) / largest, 2);
        }
      }
      double rms[3];
      for (int way = 0; way < 3; ++way) rms[way] = std::sqrt(squares[way] / (30 * kCount));
      std::cout << data_type_name(type) << ", " << members << " members: rms error / block's largest: 16-bit "
                << "lanes " << rms[0] << ", 32-bit lanes " << rms[1] << ", adding in turn " << rms[2] << "\n";
      EXPECT_LT(rms[0], 1.1 * std::sqrt(rms[1] * rms[1] + predicted_squares / (30 * kCount)));
      // bfloat16 has no bits to lose: its own rounding of the result is nearly all of the error.
      if (type == DataType::kBFloat16) {
        EXPECT_LT(rms[0], 1.1 * rms[1]);
      }
    }
  }
}

TEST(Lanes16, SixteenOfEachKindFitThe32BitLanes) {
  for (const DataType type : {DataType::kBFloat16, DataType::kFloat16}) {
    const float largest = type == DataType::kBFloat16 ? 0x1.FEp127f : 65504.0f;
    const Blocks blocks(
        16, elements_of(type, std::vector<float>{INFINITY, -INFINITY, NAN, -largest, largest, 0}));
    const Reduced reduced = reduce(type, blocks, false, 16);
    ASSERT_FALSE(reduced.overflow);
    EXPECT_EQ(element(type, reduced.out.data(), 0), INFINITY);
    EXPECT_EQ(element(type, reduced.out.data(), 1), -INFINITY);
    EXPECT_TRUE(std::isnan(element(type, reduced.out.data(), 2)));
    EXPECT_EQ(element(type, reduced.out.data(), 3), -INFINITY);  // beyond the type's range
    EXPECT_EQ(element(type, reduced.out.data(), 4), INFINITY);
    EXPECT_EQ(element(type, reduced.out.data(), 5), 0.0f);
  }
}

// A block goes the wide way because of one element; the others must come out as without it.
TEST(Lanes16, FiniteElementsHaveTheSameBitsInWideAndNarrow16BitLanes) {
  SCOPED_TRACE("NETSUM_TEST_SEED=" + std::to_string(test_seed()));
  Rng rng(test_seed());
  for (const DataType type : {DataType::kBFloat16, DataType::kFloat16}) {
    for (int members = 1; members <= kMaxMembers16; ++members) {
      const auto exponent =
          static_cast<uint8_t>(type == DataType::kFloat16 ? 120 + rng.below(20) : 1 + rng.below(254));
      Blocks blocks;
      for (int i = 0; i < members; ++i) {
        blocks.push_back(finite_elements(rng, type, 101, exponent, members, 16));
        std::memset(blocks.back().data() + 200, 0, 2);
      }
      const Reduced narrow = reduce(type, blocks, false, 16);
      const auto nan = elements_of(type, std::vector<float>{NAN});
      std::copy(nan.begin(), nan.end(), blocks.back().begin() + 200);
      const Reduced wide = reduce(type, blocks, false, 16);
      ASSERT_NE(narrow.scale.wide, wide.scale.wide);
      ASSERT_EQ(std::memcmp(narrow.out.data(), wide.out.data(), 200), 0) << data_type_name(type);
    }
  }
}

}  // namespace
}  // namespace netsum::kernels::numerics16_test
