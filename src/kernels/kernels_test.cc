// The vector kernels against the plain ones, bit for bit, on every target this CPU has; and the plain ones
// against answers worked out by hand or by other arithmetic.
#include "src/kernels/kernels.h"

#include <gmock/gmock.h>

#include <bit>
#include <cfenv>
#include <cmath>
#include <limits>

#include "src/kernels/float_mode.h"
#include "src/kernels/half.h"
#include "src/kernels/test_data.h"
#include "wire/ids.h"

namespace netsum::kernels::kernels_test {
namespace {

constexpr int kMembers[] = {1, 2, 3, 4, 7, 8, 16, 33, 64, 129, 255, 256, 511, 512};

// The four ways to write floating-point elements as lanes, each in its vector and its plain form.
using ToLanes = void (*)(DataType, const void*, size_t, uint8_t, int, uint8_t*);
using FromLanes = bool (*)(DataType, const uint8_t*, size_t, uint8_t, int, bool, void*);

// from_lanes64() alone can fail.
template <void (*kFunction)(DataType, const uint8_t*, size_t, uint8_t, int, bool, void*)>
bool never_fails(DataType type, const uint8_t* lanes, size_t n, uint8_t exponent, int members, bool average,
                 void* out) {
  kFunction(type, lanes, n, exponent, members, average, out);
  return true;
}

struct LaneKind {
  const char* name;
  size_t bytes;
  int quantum_lane_bits;  // lanes whose quantum_bits hold
  bool wide;
  ToLanes to, plain_to;
  FromLanes from, plain_from;
  bool takes_specials() const { return wide || bytes == 1; }
  bool takes(DataType type, int members) const {
    if (quantum_lane_bits == 8) return fits_lanes8(type, members);
    return quantum_lane_bits == 16 ? fits_lanes16(type, members) : wide || type != DataType::kInt64;
  }
};
const LaneKind kLaneKinds[] = {
    {"8", 1, 8, false, to_lanes8, plain::to_lanes8, never_fails<from_lanes8>,
     never_fails<plain::from_lanes8>},
    {"16", 2, 16, false, to_lanes16, plain::to_lanes16, never_fails<from_lanes16>,
     never_fails<plain::from_lanes16>},
    {"32", 4, 32, false, to_lanes32, plain::to_lanes32, never_fails<from_lanes32>,
     never_fails<plain::from_lanes32>},
    {"wide 32", 4, 16, true, to_wide_lanes32, plain::to_wide_lanes32, never_fails<from_wide_lanes32>,
     never_fails<plain::from_wide_lanes32>},
    {"wide 64", 8, 32, true, to_lanes64, plain::to_lanes64, from_lanes64, plain::from_lanes64}};

// --- half.h, exhaustively
// ------------------------------------------------------------------------------------------

// Between each two neighbours: below the midpoint goes down, above goes up, the midpoint to the even one.
void check_rounding(uint16_t infinity, float past_largest, float (*widen)(uint16_t),
                    uint16_t (*narrow)(float)) {
  for (uint16_t low = 0; low < infinity; ++low) {
    const uint16_t high = low + 1;
    const double upper = high == infinity ? past_largest : widen(high);
    const double middle = (widen(low) + upper) / 2;
    const auto midpoint = static_cast<float>(middle);
    ASSERT_EQ(midpoint, middle) << low;
    ASSERT_EQ(narrow(widen(low)), low);
    ASSERT_EQ(narrow(std::nextafter(midpoint, 0.0f)), low);
    ASSERT_EQ(narrow(midpoint), low % 2 == 0 ? low : high) << low;
    ASSERT_EQ(narrow(std::nextafter(midpoint, INFINITY)), high);
    ASSERT_EQ(narrow(-midpoint), narrow(midpoint) | 0x8000);
  }
  EXPECT_EQ(narrow(INFINITY), infinity);
  EXPECT_EQ(widen(infinity), INFINITY);
  EXPECT_EQ(narrow(-INFINITY), infinity | 0x8000);
  EXPECT_TRUE(std::isnan(widen(infinity + 1)));
  EXPECT_TRUE(std::isnan(widen(narrow(NAN))));
}

TEST(Half, Float16RoundsToNearestEven) {
  check_rounding(0x7C00, 65536.0f, float16_to_float, float_to_float16);
}

TEST(Half, BFloat16RoundsToNearestEvenAndOverflowsToInfinity) {
  EXPECT_EQ(float_to_bfloat16(std::numeric_limits<float>::max()), 0x7F80);
  // The last midpoint is past any float's neighbour, so this loop stops at the largest finite number.
  for (uint16_t low = 0; low < 0x7F7F; ++low) {
    const uint32_t bits = uint32_t{low} << 16;
    ASSERT_EQ(float_to_bfloat16(std::bit_cast<float>(bits)), low);
    ASSERT_EQ(float_to_bfloat16(std::bit_cast<float>(bits | 0x7FFF)), low);
    ASSERT_EQ(float_to_bfloat16(std::bit_cast<float>(bits | 0x8000)), low % 2 == 0 ? low : low + 1);
    ASSERT_EQ(float_to_bfloat16(std::bit_cast<float>(bits | 0x8001)), low + 1);
  }
  EXPECT_EQ(float_to_bfloat16(-NAN), 0x7FC0);
  EXPECT_EQ(float_to_float16(-NAN), 0x7E00);
}

// --- The plain kernels, by hand
// --------------------------------------------------------------------------------------

TEST(Plain, QuantumBitsLeaveRoomForTheSum) {
  EXPECT_EQ(quantum_bits(1), 31);
  EXPECT_EQ(quantum_bits(2), 30);
  EXPECT_EQ(quantum_bits(3), 29);
  EXPECT_EQ(quantum_bits(4), 29);
  EXPECT_EQ(quantum_bits(5), 28);
  EXPECT_EQ(quantum_bits(64), 25);
  EXPECT_EQ(quantum_bits(128), 24);
  EXPECT_EQ(quantum_bits(255), 23);
  EXPECT_EQ(quantum_bits(256), 22);  // not 23: the largest float32 is rounded up to 2^23 units
  EXPECT_EQ(quantum_bits(257), 22);
  EXPECT_EQ(quantum_bits(511), 22);
  EXPECT_EQ(quantum_bits(512), 21);
  EXPECT_EQ(quantum_bits(1, 16), 15);
  EXPECT_EQ(quantum_bits(8, 16), 12);
  EXPECT_EQ(quantum_bits(9, 16), 11);
  EXPECT_EQ(quantum_bits(1, 8), 7);
  EXPECT_EQ(quantum_bits(2, 8), 6);
  EXPECT_EQ(quantum_bits(8, 8), 4);
  EXPECT_EQ(quantum_bits(9, 8), 3);
  EXPECT_EQ(quantum_bits(64, 8), 1);
  for (int members = 1; members <= kMaxMembers8; ++members) {
    EXPECT_LE(members * largest_lane8(members), 127);
    EXPECT_GE(largest_lane8(members), (1 << quantum_bits(members, 8)) - 1) << "a quantum is cut off at most";
  }
  EXPECT_TRUE(fits_lanes8(DataType::kFloat32, 64) && fits_lanes8(DataType::kFloat16, 1));
  EXPECT_FALSE(fits_lanes8(DataType::kFloat32, 65) || fits_lanes8(DataType::kInt32, 2));
  EXPECT_EQ(narrow_lane_bits(DataType::kFloat32, 64, 8), 8);
  EXPECT_EQ(narrow_lane_bits(DataType::kInt32, 2, 8), 32);
  EXPECT_EQ(narrow_lane_bits(DataType::kInt64, 2, 8), 64);
  EXPECT_TRUE(fits_lanes16(DataType::kBFloat16, 16) && fits_lanes16(DataType::kFloat16, 1));
  EXPECT_FALSE(fits_lanes16(DataType::kBFloat16, 17) || fits_lanes16(DataType::kFloat32, 2));
}

TEST(Plain, ScanFindsTheLargestFiniteExponent) {
  const auto scan_floats = [](std::vector<float> v) {
    return plain::scan(DataType::kFloat32, v.data(), v.size(), 4);
  };
  EXPECT_EQ(scan_floats({}), (BlockScale{0, 0}));
  EXPECT_EQ(scan_floats({0.0f, -0.0f}), (BlockScale{0, 0}));
  EXPECT_EQ(scan_floats({1.0f, -1.5f, 0.1f}), (BlockScale{127, 0}));
  EXPECT_EQ(scan_floats({std::numeric_limits<float>::denorm_min()}), (BlockScale{1, 0}));
  EXPECT_EQ(scan_floats({std::numeric_limits<float>::max()}), (BlockScale{254, 0}));
  EXPECT_EQ(scan_floats({INFINITY, 2.0f}), (BlockScale{128, 1}));
  EXPECT_EQ(scan_floats({-NAN, -INFINITY}), (BlockScale{0, 1}));
}

TEST(Plain, ScanOfIntegersAsksForWideLanesWhereTheSumMightNotFit) {
  const auto scan32 = [](int32_t x, int members) {
    return plain::scan(DataType::kInt32, &x, 1, members).wide;
  };
  EXPECT_EQ(scan32(std::numeric_limits<int32_t>::max(), 1), 0);
  EXPECT_EQ(scan32(std::numeric_limits<int32_t>::min(), 2), 1);
  EXPECT_EQ(scan32(536870911, 4), 0);
  EXPECT_EQ(scan32(536870912, 4), 1);
  EXPECT_EQ(scan32(-536870912, 4), 1);
  const auto scan64 = [](int64_t x, int members) {
    return plain::scan(DataType::kInt64, &x, 1, members).wide;
  };
  EXPECT_EQ(scan64(std::numeric_limits<int64_t>::max() / 64, 64), 0);
  EXPECT_EQ(scan64(std::numeric_limits<int64_t>::max() / 64 + 1, 64), 1);
}

TEST(Plain, QuantisesToTheNearestMultipleWithTiesToEven) {
  // Exponent 127, 4 members: one unit is 2^(127 - 126 - 29) = 2^-28.
  const float in[] = {1.0f, -1.0f, 0x1p-28f, 0x1p-29f, 0x3p-29f, 0x5p-29f, -0x3p-29f, 0x1.000002p-29f, -0.0f};
  int32_t lanes[9];
  plain::to_lanes32(DataType::kFloat32, in, 9, 127, 4, reinterpret_cast<uint8_t*>(lanes));
  EXPECT_THAT(lanes, testing::ElementsAre(1 << 28, -(1 << 28), 1, 0, 2, 2, -2, 1, 0));
}

TEST(Plain, DequantisesWithOneRounding) {
  // 2^24 + 1 and + 3 units are not floats: ties to even. Exponent 154 with 4 members has a unit of 0.5.
  const int32_t lanes[] = {(1 << 24) + 1, (1 << 24) + 3, -1, 0, 7};
  float out[5];
  plain::from_lanes32(DataType::kFloat32, reinterpret_cast<const uint8_t*>(lanes), 5, 154, 4, false, out);
  EXPECT_THAT(out, testing::ElementsAre(8388608.0f, 8388610.0f, -0.5f, 0.0f, 3.5f));
  plain::from_lanes32(DataType::kFloat32, reinterpret_cast<const uint8_t*>(lanes), 5, 154, 4, true, out);
  EXPECT_THAT(out, testing::ElementsAre(2097152.0f, 2097152.5f, -0.125f, 0.0f, 0.875f));
}

TEST(Plain, QuantisesTo16BitLanes) {
  // Exponent 127, 8 members: 12 bits, one unit is 2^(127 - 126 - 12) = 2^-11.
  const float in[] = {1.0f, -1.9921875f, 0x1p-11f, 0x1p-12f, 0x3p-12f, -0x3p-12f, 0x1p-13f, -0.0f};
  const auto elements = elements_of(DataType::kBFloat16, in);
  int16_t lanes[8];
  plain::to_lanes16(DataType::kBFloat16, elements.data(), 8, 127, 8, reinterpret_cast<uint8_t*>(lanes));
  EXPECT_THAT(lanes, testing::ElementsAre(2048, -4080, 1, 0, 2, -2, 0, 0));
  const int16_t sums[] = {16384, -32640, 1, 2049};
  uint8_t out[8];
  plain::from_lanes16(DataType::kFloat16, reinterpret_cast<const uint8_t*>(sums), 4, 127, 8, false, out);
  EXPECT_EQ(element(DataType::kFloat16, out, 0), 8.0f);
  EXPECT_EQ(element(DataType::kFloat16, out, 1), -15.9375f);
  EXPECT_EQ(element(DataType::kFloat16, out, 2), 0x1p-11f);
  EXPECT_EQ(element(DataType::kFloat16, out, 3), 1.0f);  // 2049 units: a tie, to even
}

TEST(Plain, WideLanesOf16BitBlocksCountSpecials) {
  const float in[] = {1.0f, INFINITY, -INFINITY, NAN, -0x1p-11f};
  const auto elements = elements_of(DataType::kFloat16, in);
  int32_t lanes[5];
  plain::to_wide_lanes32(DataType::kFloat16, elements.data(), 5, 127, 8, reinterpret_cast<uint8_t*>(lanes));
  EXPECT_THAT(lanes, testing::ElementsAre(2048, 1 << 16, 1 << 21, (1 << 16) + (1 << 21), -1));
}

TEST(Plain, NhMatchesItsDefinition) {
  const uint32_t payload[] = {1, 2, 0xFFFFFFFF, 5};
  const uint32_t key[] = {10, 20, 3, 0};
  // (1 + 10)(2 + 20) + (2^32 - 1 + 3 mod 2^32)(5 + 0)
  EXPECT_EQ(plain::nh(reinterpret_cast<const uint8_t*>(payload), 16, key), 11u * 22 + 2 * 5);
}

// --- Vector against plain
// --------------------------------------------------------------------------------------------

class KernelTest : public TargetTest {
 protected:
  void expect_same_to_lanes(DataType type, const std::vector<uint8_t>& elements, uint8_t exponent,
                            int members, const LaneKind& kind, size_t misalignment) {
    const size_t n = elements.size() / size_of(type);
    GuardedBytes in(elements.size(), misalignment * 7 % 16);
    in.fill(elements);
    GuardedBytes expected(n * kind.bytes, misalignment);
    GuardedBytes actual(n * kind.bytes, misalignment);
    kind.plain_to(type, in.data(), n, exponent, members, expected.data());
    kind.to(type, in.data(), n, exponent, members, actual.data());
    ASSERT_EQ(expected, actual) << data_type_name(type) << " n=" << n << " exponent=" << int{exponent}
                                << " members=" << members << " lanes=" << kind.name << " at=" << misalignment;
  }

  void expect_same_from_lanes(DataType type, const std::vector<uint8_t>& lanes, uint8_t exponent, int members,
                              bool average, const LaneKind& kind, size_t misalignment) {
    const size_t n = lanes.size() / kind.bytes;
    GuardedBytes in(lanes.size(), misalignment);
    in.fill(lanes);
    GuardedBytes expected(n * size_of(type), misalignment * 5 % 16);
    GuardedBytes actual(n * size_of(type), misalignment * 5 % 16);
    const bool fits = kind.plain_from(type, in.data(), n, exponent, members, average, expected.data());
    ASSERT_EQ(kind.from(type, in.data(), n, exponent, members, average, actual.data()), fits);
    ASSERT_EQ(expected, actual) << data_type_name(type) << " n=" << n << " exponent=" << int{exponent}
                                << " members=" << members << " lanes=" << kind.name << " average=" << average;
  }

  // Lanes of every magnitude, as plain sums or with counts of specials above them.
  std::vector<uint8_t> random_lanes(size_t n, const LaneKind& kind) {
    const int value_bits = kind.quantum_lane_bits == 16 ? 16 : 34;
    const int count_bits = kind.quantum_lane_bits == 16 ? 5 : 10;
    const uint64_t largest_count = kind.quantum_lane_bits == 16 ? 16 : 512;
    std::vector<uint8_t> lanes(n * kind.bytes);
    for (size_t i = 0; i < n; ++i) {
      int64_t value = static_cast<int32_t>(rng_.next());
      if (kind.quantum_lane_bits == 16) value = static_cast<int16_t>(value);
      value >>= rng_.below(32);
      uint64_t counts = 0;
      for (int count = 0; count < 2; ++count) {
        if (rng_.chance(0.2)) counts += (1 + rng_.below(largest_count)) << (value_bits + count * count_bits);
      }
      const uint64_t lane = (kind.wide ? counts : 0) + static_cast<uint64_t>(value);
      std::memcpy(&lanes[i * kind.bytes], &lane, kind.bytes);
    }
    return lanes;
  }

  int random_members() { return kMembers[rng_.below(std::size(kMembers))]; }
};

TEST_P(KernelTest, ScanAgreesOnRandomBitsAtEverySizeAndAlignment) {
  for (const DataType type : kAllTypes) {
    for (const size_t n : interesting_sizes()) {
      GuardedBytes in(n * size_of(type), n % 16);
      in.fill(random_bytes(rng_, in.size()));
      const int members = random_members();
      ASSERT_EQ(scan(type, in.data(), n, members), plain::scan(type, in.data(), n, members))
          << data_type_name(type) << " n=" << n;
    }
  }
}

TEST_P(KernelTest, ScanSeesOneElementAnywhere) {
  for (const DataType type : kFloatTypes) {
    for (const float value : {1.0f, -65504.0f, 0x1p-14f, 0x1p-24f, -INFINITY, NAN}) {
      for (size_t at = 0; at < 67; ++at) {
        std::vector<float> values(67);
        values[at] = value;
        const auto in = elements_of(type, values);
        const BlockScale scale = scan(type, in.data(), 67, 4);
        ASSERT_EQ(scale, plain::scan(type, in.data(), 67, 4)) << at;
        ASSERT_EQ(scale.wide, std::isfinite(value) ? 0 : 1);
        ASSERT_EQ(scale.exponent != 0, std::isfinite(value) && element(type, in.data(), at) != 0);
      }
    }
  }
}

TEST_P(KernelTest, ScanOfIntegersAgreesAroundTheLimit) {
  for (const int members : kMembers) {
    const int64_t limit32 = std::numeric_limits<int32_t>::max() / members;
    const int64_t limit64 = std::numeric_limits<int64_t>::max() / members;
    for (const int sign : {1, -1}) {
      for (const int beyond : {0, 1}) {
        std::vector<int32_t> in32(37);
        std::vector<int64_t> in64(37);
        const size_t at = rng_.below(37);
        in32[at] = static_cast<int32_t>(static_cast<uint32_t>(sign * (limit32 + beyond)));
        in64[at] = static_cast<int64_t>(static_cast<uint64_t>(sign) *
                                        (static_cast<uint64_t>(limit64) + static_cast<uint64_t>(beyond)));
        ASSERT_EQ(scan(DataType::kInt32, in32.data(), 37, members).wide, beyond) << members;
        ASSERT_EQ(scan(DataType::kInt64, in64.data(), 37, members).wide, beyond) << members;
      }
    }
  }
}

TEST_P(KernelTest, ToLanesAgreesForEveryExponent) {
  for (const DataType type : kFloatTypes) {
    for (int exponent = 0; exponent <= 254; ++exponent) {
      for (const int members : kMembers) {
        const auto biased = static_cast<uint8_t>(exponent);
        for (const LaneKind& kind : kLaneKinds) {
          if (!kind.takes(type, members)) continue;
          auto elements = finite_elements(rng_, type, 101, biased, members, kind.quantum_lane_bits);
          if (kind.takes_specials()) sprinkle_specials(rng_, type, elements);
          expect_same_to_lanes(type, elements, biased, members, kind, rng_.below(16));
        }
      }
    }
  }
}

TEST_P(KernelTest, ToLanesAgreesForEverySizeAndAlignment) {
  for (const DataType type : kAllTypes) {
    for (const size_t n : interesting_sizes()) {
      for (const size_t misalignment : {0, 1, 3, 4, 8, 15}) {
        const auto exponent = static_cast<uint8_t>(1 + rng_.below(254));
        const int members = random_members();
        for (const LaneKind& kind : kLaneKinds) {
          if (!kind.takes(type, members)) continue;
          auto elements = is_floating(type)
                              ? finite_elements(rng_, type, n, exponent, members, kind.quantum_lane_bits)
                              : random_bytes(rng_, n * size_of(type));
          if (is_floating(type) && kind.takes_specials()) sprinkle_specials(rng_, type, elements);
          expect_same_to_lanes(type, elements, exponent, members, kind, misalignment);
        }
      }
    }
  }
}

TEST_P(KernelTest, FromLanesAgreesForEveryExponent) {
  for (const DataType type : kFloatTypes) {
    for (int exponent = 0; exponent <= 255; ++exponent) {
      for (const int members : kMembers) {
        for (const LaneKind& kind : kLaneKinds) {
          // Its quantum would be no binary32 number; no scan gives that exponent.
          if (kind.bytes == 1 && exponent == 255) continue;
          if (!kind.takes(type, members)) continue;
          for (const bool average : {false, true}) {
            expect_same_from_lanes(type, random_lanes(101, kind), static_cast<uint8_t>(exponent), members,
                                   average, kind, rng_.below(16));
          }
        }
      }
    }
  }
}

// What docs/numerics.md proves: no number of members overflows a lane, whatever they hold. All members hold
// the same, which is the most that a sum can be.
TEST_P(KernelTest, NoNumberOfMembersOverflowsALane) {
  for (const DataType type : kFloatTypes) {
    const float largest = type == DataType::kFloat32    ? 0x1.FFFFFEp0f
                          : type == DataType::kBFloat16 ? 0x1.FEp0f
                                                        : 0x1.FFCp0f;
    const float finite[] = {largest, -largest, 1.0f, -0.0f, 0x1p-20f};
    const float any[] = {largest, -largest, NAN, INFINITY, -INFINITY, -NAN, 1.0f};
    for (const LaneKind& kind : kLaneKinds) {
      const auto elements = kind.wide ? elements_of(type, any) : elements_of(type, finite);
      const size_t n = elements.size() / size_of(type);
      for (int members = 1; members <= 512 && kind.takes(type, members); ++members) {
        std::vector<uint8_t> lanes(n * kind.bytes), plain_lanes(lanes), sum(lanes), plain_sum(lanes);
        kind.to(type, elements.data(), n, 127, members, lanes.data());
        kind.plain_to(type, elements.data(), n, 127, members, plain_lanes.data());
        ASSERT_EQ(lanes, plain_lanes);
        const auto add = kind.bytes == 1   ? add_lanes8
                         : kind.bytes == 2 ? add_lanes16
                         : kind.bytes == 4 ? add_lanes32
                                           : add_lanes64;
        const auto plain_add = kind.bytes == 1   ? plain::add_lanes8
                               : kind.bytes == 2 ? plain::add_lanes16
                               : kind.bytes == 4 ? plain::add_lanes32
                                                 : plain::add_lanes64;
        for (int member = 0; member < members; ++member) {
          ASSERT_FALSE(add(sum.data(), lanes.data(), n)) << kind.name << " " << members << " members";
          ASSERT_FALSE(plain_add(plain_sum.data(), lanes.data(), n)) << kind.name << " " << members;
        }
        ASSERT_EQ(sum, plain_sum);
        std::vector<uint8_t> out(elements.size()), plain_out(out);
        ASSERT_TRUE(kind.from(type, sum.data(), n, 127, members, true, out.data()));
        ASSERT_TRUE(kind.plain_from(type, sum.data(), n, 127, members, true, plain_out.data()));
        ASSERT_EQ(out, plain_out);
        // The average of equal numbers, within half a quantum, or one where the largest are clamped.
        for (size_t i = 0; i < n; ++i) {
          const float in = element(type, elements.data(), i), got = element(type, out.data(), i);
          const double bound =
              std::ldexp(kind.bytes == 1 ? 2.0 : 1.0, -quantum_bits(members, kind.quantum_lane_bits)) +
              std::fabs(in) * (type == DataType::kFloat32 ? 0x1p-23 : 0x1p-8);
          ASSERT_TRUE(std::isnan(in) ? std::isnan(got) : in == got || std::fabs(in - got) <= bound)
              << data_type_name(type) << " " << kind.name << " " << members << ": " << got << " for " << in;
        }
      }
    }
  }
}

TEST_P(KernelTest, FromLanesAgreesForEverySizeAndAlignment) {
  for (const DataType type : kAllTypes) {
    for (const size_t n : interesting_sizes()) {
      for (const size_t misalignment : {0, 1, 3, 4, 8, 15}) {
        const auto exponent = static_cast<uint8_t>(1 + rng_.below(254));
        const int members = random_members();
        const bool average = is_floating(type) && rng_.chance(0.5);
        for (const LaneKind& kind : kLaneKinds) {
          if (!kind.takes(type, members)) continue;
          expect_same_from_lanes(type, random_bytes(rng_, n * kind.bytes), exponent, members, average, kind,
                                 misalignment);
        }
      }
    }
  }
}

TEST_P(KernelTest, AddLanesAgreesAndReportsOverflow) {
  for (const size_t n : interesting_sizes()) {
    const auto first = random_bytes(rng_, n * 8);
    const auto second = random_bytes(rng_, n * 8);
    GuardedBytes lanes(n * 8, n % 13);
    lanes.fill(second);
    for (const size_t width : {1, 2, 4, 8}) {
      GuardedBytes expected(n * 8, n % 16);
      GuardedBytes actual(n * 8, n % 16);
      expected.fill(first);
      actual.fill(first);
      const auto reference = width == 1   ? plain::add_lanes8
                             : width == 2 ? plain::add_lanes16
                             : width == 4 ? plain::add_lanes32
                                          : plain::add_lanes64;
      const auto kernel = width == 1   ? add_lanes8
                          : width == 2 ? add_lanes16
                          : width == 4 ? add_lanes32
                                       : add_lanes64;
      const size_t count = n * 8 / width;
      const bool overflow = reference(expected.data(), lanes.data(), count);
      ASSERT_EQ(kernel(actual.data(), lanes.data(), count), overflow) << n;
      ASSERT_EQ(expected, actual) << n;
    }
  }
}

template <typename T>
void check_single_overflows(bool (*add_lanes)(uint8_t*, const uint8_t*, size_t)) {
  constexpr size_t kLanes = 85;  // more than a vector of the narrowest lanes
  for (size_t at = 0; at < kLanes; ++at) {
    for (const int sign : {1, -1}) {
      std::vector<T> acc(kLanes, 1), lanes(kLanes, -1);
      acc[at] = sign > 0 ? std::numeric_limits<T>::max() : std::numeric_limits<T>::min();
      const auto overflows = [&](int by) {
        lanes[at] = static_cast<T>(by);
        auto sum = acc;
        return add_lanes(reinterpret_cast<uint8_t*>(sum.data()), reinterpret_cast<uint8_t*>(lanes.data()),
                         kLanes);
      };
      ASSERT_TRUE(overflows(sign)) << at;
      ASSERT_FALSE(overflows(0)) << at;
      ASSERT_FALSE(overflows(-sign)) << at;
    }
  }
}

TEST_P(KernelTest, AddLanesReportsASingleOverflowAnywhere) {
  check_single_overflows<int8_t>(add_lanes8);
  check_single_overflows<int16_t>(add_lanes16);
  check_single_overflows<int32_t>(add_lanes32);
  check_single_overflows<int64_t>(add_lanes64);
}

TEST_P(KernelTest, AddLanesEndsWithTheLastLane) {
  for (const size_t lane_bytes : {1, 2, 4, 8}) {
    GuardedBytes lanes(24, 0), sum(24, 0);
    lanes.fill(random_bytes(rng_, 24));
    sum.fill(std::vector<uint8_t>(24));
    ASSERT_FALSE(add_lanes(lane_bytes, sum.data(), lanes.data(), 24)) << lane_bytes;
    ASSERT_EQ(sum, lanes) << lane_bytes;
  }
}

TEST_P(KernelTest, MaximaOrAndXorAgree) {
  struct Case {
    size_t bytes;  // of a lane
    void (*plain)(uint8_t*, const uint8_t*, size_t);
    void (*kernel)(uint8_t*, const uint8_t*, size_t);
    uint8_t format;
  };
  const Case cases[] = {{1, plain::max_lanes8, max_lanes8, NETSUM_FORMAT_MAX_U8},
                        {2, plain::max_lanes16, max_lanes16, NETSUM_FORMAT_MAX_U16},
                        {4, plain::max_lanes32, max_lanes32, NETSUM_FORMAT_MAX_U32},
                        {8, plain::max_lanes64, max_lanes64, NETSUM_FORMAT_MAX_U64},
                        {1, plain::or_lanes, or_lanes, NETSUM_FORMAT_OR_U64},
                        {1, plain::xor_lanes, xor_lanes, NETSUM_FORMAT_XOR_U64}};
  for (const size_t n : interesting_sizes()) {
    const auto first = random_bytes(rng_, n * 8);
    GuardedBytes lanes(n * 8, n % 13);
    lanes.fill(random_bytes(rng_, n * 8));
    for (const Case& one : cases) {
      const size_t bytes = n * one.bytes;  // not only whole 64-bit words
      GuardedBytes expected(n * 8, n % 16), actual(n * 8, n % 16), combined(n * 8, n % 16);
      for (GuardedBytes* acc : {&expected, &actual, &combined}) acc->fill(first);
      one.plain(expected.data(), lanes.data(), n);
      one.kernel(actual.data(), lanes.data(), n);
      ASSERT_EQ(expected, actual) << n << " lanes, format " << int{one.format};
      ASSERT_FALSE(combine_lanes(one.format, combined.data(), lanes.data(), bytes));
      ASSERT_EQ(expected, combined) << n << " lanes, format " << int{one.format};
    }
  }
}

TEST_P(KernelTest, CombineLanesAddsAndReportsOverflow) {
  const auto overflows = [](uint8_t format, auto acc, auto lane) {
    auto sum = acc;
    const bool overflow = combine_lanes(format, reinterpret_cast<uint8_t*>(&sum),
                                        reinterpret_cast<const uint8_t*>(&lane), sizeof lane);
    const auto expected =
        static_cast<decltype(acc)>(static_cast<uint64_t>(acc) + static_cast<uint64_t>(lane));
    EXPECT_EQ(sum, expected);
    return overflow;
  };
  EXPECT_TRUE(overflows(NETSUM_FORMAT_SUM_I8, int8_t{INT8_MAX}, int8_t{1}));
  EXPECT_FALSE(overflows(NETSUM_FORMAT_SUM_I8, int8_t{INT8_MAX}, int8_t{-1}));
  EXPECT_TRUE(overflows(NETSUM_FORMAT_SUM_I16, int16_t{INT16_MAX}, int16_t{1}));
  EXPECT_FALSE(overflows(NETSUM_FORMAT_SUM_I16, int16_t{INT16_MAX}, int16_t{-1}));
  EXPECT_TRUE(overflows(NETSUM_FORMAT_SUM_I32, int32_t{INT32_MIN}, int32_t{-1}));
  EXPECT_FALSE(overflows(NETSUM_FORMAT_SUM_I32, int32_t{INT16_MAX}, int32_t{1}));
  EXPECT_TRUE(overflows(NETSUM_FORMAT_SUM_I64, int64_t{INT64_MIN}, int64_t{-1}));
  EXPECT_FALSE(overflows(NETSUM_FORMAT_SUM_I64, int64_t{INT32_MAX}, int64_t{1}));
}

TEST_P(KernelTest, NhAgrees) {
  for (const size_t n : interesting_sizes()) {
    GuardedBytes payload(n * 8, n % 16);
    payload.fill(random_bytes(rng_, n * 8));
    std::vector<uint32_t> key(2 * n + 1);
    for (auto& word : key) word = static_cast<uint32_t>(rng_.next());
    ASSERT_EQ(nh(payload.data(), n * 8, key.data() + 1), plain::nh(payload.data(), n * 8, key.data() + 1))
        << n;
  }
}

TEST_P(KernelTest, CopyOutCopiesEverySizeAtEveryAlignment) {
  std::vector<size_t> sizes = interesting_sizes();
  for (const size_t beside : interesting_sizes())
    sizes.push_back(32'768 + beside);  // large ones go past the cache
  for (const size_t n : sizes) {
    GuardedBytes from(n, n % 16), to(n, n % 13);
    from.fill(random_bytes(rng_, n));
    copy_out(to.data(), from.data(), n);
    ASSERT_EQ(from, to) << n;
  }
}

// 64 members' halves, summed, against 128-bit sums.
TEST_P(KernelTest, Int64HalvesAddUpExactlyOrSayThatTheyDoNot) {
  for (const size_t n : interesting_sizes()) {
    for (const bool large : {false, true}) {
      std::vector<__int128> exact(n, 0);
      std::vector<int64_t> low(n), high(n), half(n);
      for (int member = 0; member < 64; ++member) {
        std::vector<int64_t> values(n);
        for (size_t i = 0; i < n; ++i) {
          values[i] = static_cast<int64_t>(rng_.next()) >> (large ? rng_.below(4) : 6);
          exact[i] += values[i];
        }
        for (auto* sums : {&low, &high}) {
          int64_to_half_lanes(values.data(), n, sums == &high ? 1 : 0,
                              reinterpret_cast<uint8_t*>(half.data()));
          ASSERT_FALSE(add_lanes64(reinterpret_cast<uint8_t*>(sums->data()),
                                   reinterpret_cast<const uint8_t*>(half.data()), n));
        }
      }
      bool all_fit = true;
      for (const auto sum : exact) all_fit &= sum == static_cast<int64_t>(sum);
      ASSERT_TRUE(all_fit || large);
      std::vector<int64_t> out(n);
      const auto* low_bytes = reinterpret_cast<const uint8_t*>(low.data());
      const auto* high_bytes = reinterpret_cast<const uint8_t*>(high.data());
      ASSERT_EQ(int64_from_half_lanes(low_bytes, high_bytes, n, out.data()), all_fit) << n;
      for (size_t i = 0; i < n; ++i) {
        const auto wrapped = static_cast<int64_t>(exact[i]);
        if (exact[i] == wrapped) {
          ASSERT_EQ(out[i], wrapped) << i;
        }
      }
      ASSERT_EQ(int64_from_half_lanes(low_bytes, high_bytes, n, low.data()), all_fit);
      ASSERT_EQ(low, out) << "in place";
    }
  }
}

TEST_P(KernelTest, EmptyBlocksMayHaveNoMemory) {
  for (const DataType type : kAllTypes) {
    EXPECT_EQ(scan(type, nullptr, 0, 4), BlockScale{});
    to_lanes64(type, nullptr, 0, 1, 4, nullptr);
    EXPECT_TRUE(from_lanes64(type, nullptr, 0, 1, 4, false, nullptr));
    if (type == DataType::kInt64) continue;
    to_lanes32(type, nullptr, 0, 1, 4, nullptr);
    from_lanes32(type, nullptr, 0, 1, 4, false, nullptr);
    if (size_of(type) != 2) continue;
    to_lanes8(type, nullptr, 0, 1, 4, nullptr);
    from_lanes8(type, nullptr, 0, 1, 4, false, nullptr);
    mark_specials(type, nullptr, 0, 3, nullptr);
    put_specials(type, nullptr, 3, 0, nullptr);
    to_lanes16(type, nullptr, 0, 1, 4, nullptr);
    from_lanes16(type, nullptr, 0, 1, 4, false, nullptr);
  }
  EXPECT_FALSE(add_lanes32(nullptr, nullptr, 0));
  EXPECT_EQ(nh(nullptr, 0, nullptr), 0u);
  EXPECT_TRUE(int64_from_half_lanes(nullptr, nullptr, 0, nullptr));
}

// What torch.set_flush_denormal(True) or fesetround() did to the calling thread must not reach the sums, nor
// may the kernels undo it.
TEST_P(KernelTest, TheCallersFloatingPointModeDoesNotMatter) {
  const auto elements = finite_elements(rng_, DataType::kFloat32, 360, 1, 4);
  const auto sums = random_lanes(360, kLaneKinds[1]);
  std::vector<uint8_t> lanes(1440), expected_lanes(1440), out(1440), expected_out(1440);
  plain::to_lanes32(DataType::kFloat32, elements.data(), 360, 1, 4, expected_lanes.data());
  plain::from_lanes32(DataType::kFloat32, sums.data(), 360, 3, 4, true, expected_out.data());

  std::fenv_t saved;
  std::fegetenv(&saved);
  std::fesetround(FE_UPWARD);
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040);  // flush to zero, denormals are zero
  const unsigned mode = _mm_getcsr();
#endif
  to_lanes32(DataType::kFloat32, elements.data(), 360, 1, 4, lanes.data());
  from_lanes32(DataType::kFloat32, sums.data(), 360, 3, 4, true, out.data());
#if defined(__x86_64__)
  const unsigned mode_after = _mm_getcsr();
#endif
  const int rounding_after = std::fegetround();
  std::fesetenv(&saved);
#if defined(__x86_64__)
  EXPECT_EQ(mode_after & 0xFFC0, mode & 0xFFC0);
#endif
  EXPECT_EQ(rounding_after, FE_UPWARD);
  EXPECT_EQ(lanes, expected_lanes);
  EXPECT_EQ(out, expected_out);
}

INSTANTIATE_TEST_SUITE_P(Targets, KernelTest, testing::ValuesIn(all_targets()), target_name);

}  // namespace
}  // namespace netsum::kernels::kernels_test
