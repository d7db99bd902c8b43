// What docs/numerics.md promises, checked end to end: scan, agree on the scale, quantise, add, dequantise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iostream>
#include <limits>
#include <numeric>

#include "netsum/options.h"
#include "src/base/soak.h"
#include "src/kernels/half.h"
#include "src/kernels/kernels.h"
#include "src/kernels/test_data.h"

namespace netsum::kernels::numerics_test {
namespace {

std::vector<float> reduce_floats(const std::vector<std::vector<float>>& values, bool average = false) {
  Blocks blocks;
  for (const auto& v : values) blocks.push_back(to_bytes(std::span<const float>(v)));
  const Reduced reduced = reduce(DataType::kFloat32, blocks, average);
  EXPECT_FALSE(reduced.overflow);
  std::vector<float> out(values[0].size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = element(DataType::kFloat32, reduced.out.data(), i);
  return out;
}

// --- Blocks that SwitchML gets wrong: 4 members, all with the same 256 elements
// ------------------------------------

std::vector<float> reduce_four_equal(std::vector<float> block) {
  return reduce_floats({block, block, block, block});
}

TEST(SwitchMlBlocks, OneInfinityAmongOnesLeavesTheOnesAlone) {
  std::vector<float> block(256, 1.0f), expected(256, 4.0f);
  block[17] = expected[17] = INFINITY;
  EXPECT_EQ(reduce_four_equal(block), expected);
}

TEST(SwitchMlBlocks, OneNaNAmongOnesStaysVisible) {
  std::vector<float> block(256, 1.0f);
  block[17] = NAN;
  auto out = reduce_four_equal(block);
  EXPECT_TRUE(std::isnan(out[17]));
  out[17] = 4.0f;
  EXPECT_EQ(out, std::vector<float>(256, 4.0f));
}

TEST(SwitchMlBlocks, TinyValuesDoNotVanish) {
  for (const float tiny : {1e-30f, 1e-38f, 1e-45f}) {
    EXPECT_EQ(reduce_four_equal(std::vector<float>(256, tiny)), std::vector<float>(256, 4 * tiny)) << tiny;
  }
}

TEST(SwitchMlBlocks, OverflowGivesInfinity) {
  for (const float huge : {1.6e38f, 3e38f, -3e38f}) {
    EXPECT_EQ(reduce_four_equal(std::vector<float>(256, huge)),
              std::vector<float>(256, std::copysign(INFINITY, huge)));
  }
  // No partial sum can overflow: here every order of float additions but one pairs up badly.
  EXPECT_EQ(reduce_floats({{3e38f}, {3e38f}, {-3e38f}, {-3e38f}}), std::vector<float>{0.0f});
}

// 32 bits cannot hold both: the outlier's sum is exact, and the small ones' error is at most what the
// document states, 4 * 2^-29 of the outlier. It ends with the block.
TEST(SwitchMlBlocks, AnOutlierCostsItsNeighboursNoMoreThanTheBound) {
  std::vector<float> block(256, 1e-3f);
  block[17] = 1e6f;
  auto out = reduce_four_equal(block);
  EXPECT_EQ(out[17], 4e6f);
  out[17] = 4e-3f;
  for (const float sum : out) EXPECT_LE(std::fabs(sum - 4e-3), 4 * 0x1p-29 * 1e6);

  block[17] = 1e3f;
  out = reduce_four_equal(block);
  EXPECT_EQ(out[17], 4e3f);
  for (size_t i = 0; i < out.size(); ++i) {
    if (i != 17) {
      EXPECT_LE(std::fabs(out[i] - 4e-3), 4 * 0x1p-29 * 1e3);
    }
  }
}

// --- The error bound
// -----------------------------------------------------------------------------------------------

// Exact integers: everything in units of 2^-kFractionBits quanta.
constexpr int kFractionBits = 60;
using Exact = __int128;

Exact exact(float x, uint8_t exponent, int members, int lane_bits) {
  const double scaled =
      std::ldexp(static_cast<double>(x), quantum_bits(members, lane_bits) + 126 - exponent + kFractionBits);
  const auto result = static_cast<Exact>(scaled);
  EXPECT_EQ(static_cast<double>(result), scaled) << "test data too fine for its exact arithmetic";
  return result;
}

// Finite elements, none smaller than 2^-30 of the largest (but zeros), so that exact() can hold their sum.
std::vector<uint8_t> close_elements(Rng& rng, DataType type, size_t n, int exponent) {
  std::vector<float> values(n);
  for (auto& value : values) {
    const double spread = rng.chance(0.5) ? 0 : -static_cast<double>(rng.below(30));
    value = static_cast<float>(std::ldexp(2 * rng.unit() - 1, exponent - 127 + static_cast<int>(spread)));
    value = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & ~0x1Fu);
    if (std::fabs(value) < std::ldexp(1.0, exponent - 127 - 33)) value = 0;
  }
  return elements_of(type, values);
}

void check_bound(Rng& rng, DataType type, int members, bool average, int lane_bits) {
  // Away from both ends of the type's range, where overflow and subnormals have their own tests.
  const int exponent = type == DataType::kFloat16 ? 127 + static_cast<int>(rng.below(8))
                                                  : 70 + static_cast<int>(rng.below(150));
  constexpr size_t kCount = 50;
  Blocks blocks;
  for (int i = 0; i < members; ++i) blocks.push_back(close_elements(rng, type, kCount, exponent));
  const Reduced reduced = reduce(type, blocks, average, lane_bits);
  ASSERT_FALSE(reduced.overflow);
  ASSERT_EQ(reduced.scale.wide, 0);
  const int quantum = quantum_bits(members, lane_bits);

  const double unit_roundoff = type == DataType::kBFloat16  ? 0x1p-8
                               : type == DataType::kFloat16 ? 0x1p-11
                                                            : 0;
  const double roundings = std::pow(1 + 0x1p-24, average ? 2 : 1) * (1 + unit_roundoff) - 1;
  // A float16 result may be subnormal: its spacing is then fixed.
  const double smallest =
      type == DataType::kFloat16 ? std::ldexp(0x1p-25, quantum + 126 - reduced.scale.exponent) : 0;
  double largest = 0;  // magnitude in the block, in quanta
  for (size_t i = 0; i < kCount; ++i) {
    Exact sum = 0;
    for (const auto& block : blocks) {
      const Exact x = exact(element(type, block.data(), i), reduced.scale.exponent, members, lane_bits);
      sum += x;
      largest = std::max(largest, std::ldexp(std::fabs(static_cast<double>(x)), -kFractionBits));
    }
    const float out = element(type, reduced.out.data(), i);
    ASSERT_TRUE(std::isfinite(out));
    const double scaled_out = std::ldexp(static_cast<double>(out), quantum + 126 - reduced.scale.exponent);
    const double divisor = average ? members : 1;
    const double true_value = std::ldexp(static_cast<double>(sum), -kFractionBits) / divisor;
    // Half a quantum each; one where 8-bit lanes cut off the largest.
    const bool cut_off = lane_bits == 8 && std::has_single_bit(static_cast<unsigned>(members));
    const double quantised = members * (cut_off ? 1.0 : 0.5) / divisor;
    const double bound = quantised + roundings * (std::fabs(true_value) + quantised) + smallest;
    // The test's own double arithmetic errs by a few 2^-53 of the value.
    ASSERT_LE(std::fabs(scaled_out - true_value), bound + std::fabs(true_value) * 0x1p-50)
        << data_type_name(type) << " members=" << members << " average=" << average
        << " lane_bits=" << lane_bits;
  }
  // Half a quantum per member is at most 2^-quantum_bits of the block's largest magnitude.
  if (largest > 0) {
    ASSERT_LE(0.5, std::ldexp(largest, -quantum));
  }
}

TEST(ErrorBound, HoldsForEveryTypeOperationAndNumberOfMembers) {
  SCOPED_TRACE("NETSUM_TEST_SEED=" + std::to_string(test_seed()));
  Rng rng(test_seed());
  const int narrow_trials = soak() ? 16 : 1;
  for (const DataType type : kFloatTypes) {
    for (const bool average : {false, true}) {
      for (int members = 1; members <= kMaxRanks; ++members) {
        const int trials = members <= 64 ? std::max(1, narrow_trials / 4) : 1;
        for (int trial = 0; trial < trials; ++trial) check_bound(rng, type, members, average, 32);
        for (int trial = 0; trial < narrow_trials && fits_lanes8(type, members); ++trial)
          check_bound(rng, type, members, average, 8);
        if (!fits_lanes16(type, members)) continue;
        for (int trial = 0; trial < narrow_trials; ++trial) check_bound(rng, type, members, average, 16);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

// Every lane is within half a unit of its element, for every exponent and number of members, and `members` of
// the largest fit 31 bits.
TEST(ErrorBound, LanesAreNearestAndTheLargestSumFits) {
  SCOPED_TRACE("NETSUM_TEST_SEED=" + std::to_string(test_seed()));
  Rng rng(test_seed());
  for (int exponent = 1; exponent <= 254; ++exponent) {
    for (int members = 1; members <= kMaxRanks; ++members) {
      const auto biased = static_cast<uint8_t>(exponent);
      auto block = finite_elements(rng, DataType::kFloat32, 16, biased, members);
      const float top = std::nextafter(static_cast<float>(std::ldexp(1.0, exponent - 126)), 0.0f);
      const float largest = exponent == 254 ? std::numeric_limits<float>::max() : top;
      std::memcpy(block.data(), &largest, 4);
      int32_t lanes[16];
      to_lanes32(DataType::kFloat32, block.data(), 16, biased, members, reinterpret_cast<uint8_t*>(lanes));
      for (size_t i = 0; i < 16; ++i) {
        const double x = element(DataType::kFloat32, block.data(), i);
        const double scaled = std::ldexp(x, quantum_bits(members) + 126 - exponent);
        ASSERT_LE(std::fabs(scaled - lanes[i]), 0.5) << exponent << " " << members << " " << x;
      }
      if (quantum_bits(members) >= 24) {
        ASSERT_EQ(std::ldexp(static_cast<double>(lanes[0]), exponent - 126 - quantum_bits(members)), largest);
      }
      ASSERT_LT(int64_t{lanes[0]} * members, int64_t{1} << 31) << exponent << " " << members;
    }
  }
}

// The typical error: each member's is uniform over one quantum, so the sum's standard deviation is
// sqrt(members / 12) quanta. For data like gradients that is below what adding floats costs.
TEST(ErrorBound, TypicalErrorIsAsPredictedAndBelowThatOfFloatAdditions) {
  Rng rng(test_seed());
  for (const int members : {4, 8, 64}) {
    constexpr size_t kCount = 360;
    double fixed_squares = 0, float_squares = 0, predicted_squares = 0;
    size_t count = 0;
    for (int block = 0; block < 60; ++block) {
      std::vector<std::vector<float>> values(members, std::vector<float>(kCount));
      for (auto& v : values) {
        for (auto& x : v) {
          // Box-Muller: normally distributed, as sums of many samples' gradients are.
          const double radius = std::sqrt(-2 * std::log(1 - rng.unit()));
          x = static_cast<float>(radius * std::cos(2 * M_PI * rng.unit()));
        }
      }
      float largest = 0;
      for (const auto& v : values) {
        for (const float x : v) largest = std::max(largest, std::fabs(x));
      }
      const double quantum = std::ldexp(1.0, std::ilogb(largest) + 1 - quantum_bits(members));
      const auto out = reduce_floats(values);
      for (size_t i = 0; i < kCount; ++i) {
        double sum = 0;
        float float_sum = 0;
        for (const auto& v : values) {
          sum += v[i];
          float_sum += v[i];
        }
        fixed_squares += (out[i] - sum) * (out[i] - sum) / (largest * largest);
        float_squares += (float_sum - sum) * (float_sum - sum) / (largest * largest);
        // Only elements finer than the quantum are rounded, and the result once more to a float.
        const double result_ulp = std::ldexp(1.0, std::ilogb(sum) - 23);
        predicted_squares +=
            (members / 12.0 * quantum * quantum + result_ulp * result_ulp / 12) / (largest * largest);
        ++count;
      }
    }
    const double fixed_rms = std::sqrt(fixed_squares / static_cast<double>(count));
    const double float_rms = std::sqrt(float_squares / static_cast<double>(count));
    const double predicted_rms = std::sqrt(predicted_squares / static_cast<double>(count));
    std::cout << members << " members: rms error / block's largest: fixed point " << fixed_rms
              << " (predicted at most " << predicted_rms << "), float additions " << float_rms << "\n";
    // A tenth of slack: results on a coarse grid meet ties more often than uniform errors would.
    EXPECT_LT(fixed_rms, 1.1 * predicted_rms);
    EXPECT_LT(fixed_rms, float_rms);
  }
}

TEST(ErrorBound, SubnormalAndHugeSumsAreRoundedOnce) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(reduce_floats({{3 * tiny, tiny}, {2 * tiny, -tiny}, {tiny, tiny}}),
            (std::vector<float>{6 * tiny, tiny}));
  // 3 * 2^-149 / 2 is a tie between two subnormals: to the even one.
  EXPECT_EQ(reduce_floats({{3 * tiny}, {0}}, true), std::vector<float>{2 * tiny});
  const float top = std::numeric_limits<float>::max();
  EXPECT_EQ(reduce_floats({{top}, {top}, {-top}}), std::vector<float>{top});
  // The average is that of the sum as a float, as frameworks compute it: it overflows where the sum does.
  EXPECT_EQ(reduce_floats({{3e38f}, {3e38f}}, true), std::vector<float>{INFINITY});
}

// With more than 128 members a quantum of the smallest exponent is larger than the smallest subnormal.
TEST(ErrorBound, HoldsForSubnormalsOfEveryNumberOfMembers) {
  const double tiny = std::numeric_limits<float>::denorm_min();
  for (int members = 1; members <= kMaxRanks; ++members) {
    const float x = std::bit_cast<float>(0x7FFFFFu);  // the largest
    const auto out = reduce_floats(
        std::vector<std::vector<float>>(static_cast<size_t>(members), {x, 3 * std::bit_cast<float>(1u)}));
    const double half_quantum =
        quantum_bits(members) >= 24 ? 0 : std::ldexp(1.0, -126 - quantum_bits(members));
    for (const auto& [got, in] : {std::pair{out[0], static_cast<double>(x)}, {out[1], 3 * tiny}}) {
      const double sum = members * in;
      ASSERT_LE(std::fabs(got - sum), members * half_quantum + sum * 0x1p-24 + tiny / 2) << members;
    }
  }
}

TEST(ErrorBound, Float16BlocksWithModestMagnitudesAreExact) {
  // With 64 members a quantum is at most 2^-24, float16's finest step, where all magnitudes are below 2.
  SCOPED_TRACE("NETSUM_TEST_SEED=" + std::to_string(test_seed()));
  Rng rng(test_seed());
  Blocks blocks;
  std::vector<int64_t> sums(100, 0);  // in 2^-24
  for (int member = 0; member < 64; ++member) {
    std::vector<uint16_t> block(100);
    for (size_t i = 0; i < block.size(); ++i) {
      block[i] = static_cast<uint16_t>(rng.below(0x4000) | rng.below(2) << 15);
      sums[i] += static_cast<int64_t>(std::ldexp(float16_to_float(block[i]), 24));
    }
    blocks.push_back(to_bytes(std::span<const uint16_t>(block)));
  }
  const Reduced reduced = reduce(DataType::kFloat16, blocks);
  for (size_t i = 0; i < sums.size(); ++i) {
    const auto as_float = static_cast<float>(std::ldexp(static_cast<double>(sums[i]), -24));
    ASSERT_EQ(element(DataType::kFloat16, reduced.out.data(), i),
              float16_to_float(float_to_float16(as_float)));
  }
}

// --- Special values
// ----------------------------------------------------------------------------------------------------

// Whatever the members hold, the kind of the result is that of adding floats.
TEST(SpecialValues, ComeOutAsFloatAdditionWouldGiveThem) {
  SCOPED_TRACE("NETSUM_TEST_SEED=" + std::to_string(test_seed()));
  Rng rng(test_seed());
  const float choices[] = {1.0f, 1.0f, -2.0f, 0.0f, INFINITY, -INFINITY, NAN, -NAN};
  for (const DataType type : kFloatTypes) {
    for (const int members : {1, 2, 3, 5, 16, 64, 511, 512}) {
      for (const bool average : {false, true}) {
        constexpr size_t kCount = 500;
        std::vector<float> expected(kCount, 0.0f);
        Blocks blocks;
        // Few kinds per element, or nearly every sum of 64 would be NaN.
        std::vector<uint64_t> kinds(kCount);
        for (auto& kind : kinds) kind = rng.below(std::size(choices));
        for (int member = 0; member < members; ++member) {
          std::vector<float> block(kCount);
          for (size_t i = 0; i < kCount; ++i) {
            block[i] = choices[rng.chance(0.02) ? rng.below(std::size(choices)) : kinds[i]];
            expected[i] += block[i];
          }
          blocks.push_back(elements_of(type, block));
        }
        if (average) {
          for (auto& x : expected) x /= static_cast<float>(members);
        }
        const auto expected_bytes = elements_of(type, expected);
        for (const int lane_bits : {16, 32}) {
          if (lane_bits == 16 && !fits_lanes16(type, members)) continue;
          const Reduced reduced = reduce(type, blocks, average, lane_bits);
          ASSERT_EQ(reduced.scale.wide, 1);
          ASSERT_FALSE(reduced.overflow);
          for (size_t i = 0; i < kCount; ++i) {
            const float out = element(type, reduced.out.data(), i);
            const float wanted = element(type, expected_bytes.data(), i);
            ASSERT_TRUE(out == wanted || (std::isnan(out) && std::isnan(wanted))) << out << " for " << wanted;
          }
        }
      }
    }
  }
}

TEST(SpecialValues, EveryNaNIsTheCanonicalOne) {
  const uint32_t payload_nan = 0xFFABCDEF;
  const auto block = to_bytes(std::span<const uint32_t>(&payload_nan, 1));
  EXPECT_EQ(reduce(DataType::kFloat32, {block, block}).out,
            to_bytes(std::span<const uint32_t>(&kNaNBits, 1)));
  const uint16_t half_nan = 0xFFFF;
  const auto half = to_bytes(std::span<const uint16_t>(&half_nan, 1));
  EXPECT_EQ(reduce(DataType::kFloat16, {half}).out, to_bytes(std::span<const uint16_t>(&kFloat16NaNBits, 1)));
  EXPECT_EQ(reduce(DataType::kBFloat16, {half}).out,
            to_bytes(std::span<const uint16_t>(&kBFloat16NaNBits, 1)));
}

TEST(SpecialValues, AsManyAsThereCanBeOfEachKindDoNotSpillIntoTheNext) {
  for (const float special : {INFINITY, -INFINITY}) {
    // The sum beside the counts is as negative as it can be, and borrows from them.
    const std::vector<float> block{special, -std::numeric_limits<float>::max(), -1.0f};
    const auto out = reduce_floats(std::vector<std::vector<float>>(kMaxRanks, block), true);
    EXPECT_EQ(out[0], special);
    EXPECT_EQ(out[1], -INFINITY);
  }
  const auto out = reduce_floats(std::vector<std::vector<float>>(kMaxRanks, {NAN, -1.0f}));
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_EQ(out[1], -512.0f);
}

TEST(SpecialValues, ZerosHaveNoSign) {
  const auto out = reduce_floats({{-0.0f, -0.0f}, {-0.0f, 1.0f}});
  EXPECT_EQ(std::bit_cast<uint32_t>(out[0]), 0u);
  const auto all_zero = reduce_floats({{-0.0f}, {-0.0f}}, true);
  EXPECT_EQ(std::bit_cast<uint32_t>(all_zero[0]), 0u);
}

// --- Determinism and integers
// -----------------------------------------------------------------------------------------

TEST(Determinism, TheOrderOfMembersDoesNotMatter) {
  SCOPED_TRACE("NETSUM_TEST_SEED=" + std::to_string(test_seed()));
  Rng rng(test_seed());
  for (const DataType type : kAllTypes) {
    for (const bool specials : {false, true}) {
      Blocks blocks;
      for (int member = 0; member < 13; ++member) {
        if (is_floating(type)) {
          blocks.push_back(finite_elements(rng, type, 100, 130, 13));
          if (specials) sprinkle_specials(rng, type, blocks.back());
        } else {
          blocks.push_back(random_bytes(rng, 100 * size_of(type)));
        }
      }
      const Reduced first = reduce(type, blocks);
      for (int shuffle = 0; shuffle < 10; ++shuffle) {
        for (size_t i = blocks.size() - 1; i > 0; --i) std::swap(blocks[i], blocks[rng.below(i + 1)]);
        ASSERT_EQ(reduce(type, blocks).out, first.out) << data_type_name(type);
      }
    }
  }
}

template <typename T>
void check_integers(DataType type) {
  SCOPED_TRACE("NETSUM_TEST_SEED=" + std::to_string(test_seed()));
  Rng rng(test_seed());
  int overflows = 0, narrow = 0, wide_but_fitting = 0;
  for (int trial = 0; trial < 600; ++trial) {
    const int members = 1 + static_cast<int>(rng.below(trial % 2 == 0 ? 64 : kMaxRanks));
    // From far below to just above the magnitude at which the sum stops fitting.
    const auto shift = rng.below(12);
    std::vector<__int128> exact_sums(10, 0);
    Blocks blocks;
    for (int member = 0; member < members; ++member) {
      std::vector<T> block(10);
      for (size_t i = 0; i < block.size(); ++i) {
        block[i] = static_cast<T>(static_cast<T>(rng.next()) >> shift);
        exact_sums[i] += block[i];
      }
      blocks.push_back(to_bytes(std::span<const T>(block)));
    }
    const bool fits = std::all_of(exact_sums.begin(), exact_sums.end(),
                                  [](__int128 sum) { return sum == static_cast<T>(sum); });
    const Reduced reduced = reduce(type, blocks);
    ASSERT_EQ(reduced.overflow, !fits);
    for (size_t i = 0; i < exact_sums.size(); ++i) {
      T out;
      std::memcpy(&out, reduced.out.data() + i * sizeof(T), sizeof(T));
      const auto wrapped = static_cast<T>(exact_sums[i]);
      if (exact_sums[i] == wrapped) {
        ASSERT_EQ(out, wrapped);
      }
    }
    overflows += !fits;
    narrow += !reduced.scale.wide;
    wide_but_fitting += fits && reduced.scale.wide;
  }
  // Or the test would not have tested much.
  EXPECT_GT(overflows, 20);
  EXPECT_GT(narrow, 20);
  EXPECT_GT(wide_but_fitting, 20);
}

TEST(Integers, Int32SumsAreExactOrRefused) {
  check_integers<int32_t>(DataType::kInt32);
}
TEST(Integers, Int64SumsAreExactOrRefused) {
  check_integers<int64_t>(DataType::kInt64);
}

}  // namespace
}  // namespace netsum::kernels::numerics_test
