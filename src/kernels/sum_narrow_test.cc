// The sum of several inputs in one pass, against the plain kernels' way by lanes, on every target this CPU has.
#include <gtest/gtest.h>

#include <algorithm>

#include "src/kernels/kernels.h"
#include "src/kernels/test_data.h"

namespace netsum::kernels::sum_narrow_test {
namespace {

// What sum_narrow() must give: by lanes, with the plain kernels.
std::vector<uint8_t> sum_by_lanes(DataType type, int lane_bits, const std::vector<GuardedBytes>& inputs,
                                  size_t n, uint8_t exponent, int members, bool average) {
  std::vector<uint8_t> out(n * size_of(type));
  if (type == DataType::kInt64) {
    std::vector<uint8_t> sum(n * 8);
    for (const GuardedBytes& input : inputs) plain::add_lanes64(sum.data(), input.data(), n);
    return sum;
  }
  const auto to = lane_bits == 8 ? plain::to_lanes8 : lane_bits == 16 ? plain::to_lanes16 : plain::to_lanes32;
  const auto add = lane_bits == 8    ? plain::add_lanes8
                   : lane_bits == 16 ? plain::add_lanes16
                                     : plain::add_lanes32;
  const auto from = lane_bits == 8    ? plain::from_lanes8
                    : lane_bits == 16 ? plain::from_lanes16
                                      : plain::from_lanes32;
  std::vector<uint8_t> sum(n * 4), lanes(n * 4);
  for (const GuardedBytes& input : inputs) {
    to(type, input.data(), n, exponent, members, lanes.data());
    add(sum.data(), lanes.data(), n);
  }
  from(type, sum.data(), n, exponent, members, average, out.data());
  return out;
}

}  // namespace

class SumNarrowTest : public TargetTest {};

TEST_P(SumNarrowTest, SumNarrowGivesTheBitsOfLanes) {
  for (const DataType type : kAllTypes) {
    for (const int lane_bits : {8, 16, 32}) {
      for (const int members : {1, 2, 7, 16, 130, 512}) {
        if (lane_bits == 8 && !fits_lanes8(type, members)) continue;
        if (lane_bits == 16 && !fits_lanes16(type, members)) continue;
        const size_t count = std::min(members, 9);
        for (const size_t n : interesting_sizes()) {
          const auto exponent = static_cast<uint8_t>(n % 5 == 0 ? rng_.below(3) : rng_.below(255));
          const bool average = is_floating(type) && n % 2 == 0;
          std::vector<GuardedBytes> inputs;
          std::vector<const uint8_t*> pointers;
          for (size_t i = 0; i < count; ++i) {
            inputs.emplace_back(n * size_of(type), (n + 3 * i) % 64);
            inputs.back().fill(is_floating(type)
                                   ? finite_elements(rng_, type, n, exponent, members, lane_bits)
                                   : random_bytes(rng_, n * size_of(type)));
          }
          for (const GuardedBytes& input : inputs) pointers.push_back(input.data());
          if (!can_sum_narrow(type, lane_bits, exponent, members)) continue;
          const std::vector<uint8_t> expected =
              sum_by_lanes(type, lane_bits, inputs, n, exponent, members, average);
          // Elsewhere, and over an input.
          GuardedBytes elsewhere(n * size_of(type), n % 64);
          for (GuardedBytes* out : {&elsewhere, &inputs.back()}) {
            sum_narrow(type, lane_bits, pointers, n, exponent, members, average, out->data());
            ASSERT_TRUE(out->guards_intact());
            ASSERT_TRUE(std::equal(expected.begin(), expected.end(), out->data()))
                << data_type_name(type) << ", " << lane_bits << " bits, " << members << " members, " << n
                << " elements, exponent " << int{exponent};
          }
        }
      }
    }
  }
}

// Only subnormal quanta are left to lanes.
TEST(SumNarrow, TakesAllButSubnormalQuanta) {
  for (const int members : {1, 8, 512}) {
    const auto least = static_cast<uint8_t>(quantum_bits(members));
    EXPECT_TRUE(can_sum_narrow(DataType::kFloat32, 32, 0, members));
    EXPECT_FALSE(can_sum_narrow(DataType::kFloat32, 32, 1, members));
    EXPECT_FALSE(can_sum_narrow(DataType::kFloat32, 32, least - 1, members));
    EXPECT_TRUE(can_sum_narrow(DataType::kFloat32, 32, least, members));
    EXPECT_TRUE(can_sum_narrow(DataType::kInt32, 32, 1, members));
  }
  EXPECT_TRUE(can_sum_narrow(DataType::kBFloat16, 16, 1, 16));
}

INSTANTIATE_TEST_SUITE_P(Targets, SumNarrowTest, testing::ValuesIn(all_targets()), target_name);

}  // namespace netsum::kernels::sum_narrow_test
