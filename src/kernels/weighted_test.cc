#include "src/kernels/weighted.h"

#include <gmock/gmock.h>

#include <cstring>
#include <vector>

#include "src/kernels/test_data.h"
#include "wire/ids.h"

namespace netsum::kernels::weighted_test {
namespace {

class WeightedTest : public TargetTest {};

std::vector<int32_t> random_weights(size_t n, Rng& rng) {
  std::vector<int32_t> weights(n);
  for (int32_t& weight : weights) weight = static_cast<int32_t>(rng.next());
  return weights;
}

TEST_P(WeightedTest, SumsAreThoseOfThePlainReference) {
  const auto weights = random_weights(NETSUM_MAX_PAYLOAD, rng_);
  for (const size_t bytes : {size_t{1}, size_t{2}, size_t{4}, size_t{8}}) {
    for (size_t n = 0; n <= NETSUM_MAX_PAYLOAD / bytes; n += n < 140 ? 1 : 331) {
      std::vector<uint8_t> lanes(1 + n * bytes);  // at an odd address
      for (uint8_t& byte : lanes) byte = static_cast<uint8_t>(rng_.next());
      ASSERT_TRUE(weighted_sum(bytes, lanes.data() + 1, n, weights.data()) ==
                  plain::weighted_sum(bytes, lanes.data() + 1, n, weights.data()))
          << bytes << " bytes, " << n << " lanes";
    }
  }
}

// The largest magnitudes, of which each sum is far beyond 64 bits; and halves whose signs differ.
TEST_P(WeightedTest, ExtremesAreExact) {
  const int64_t extremes[] = {INT64_MIN,    INT64_MAX,         -1,        0,
                              0x80000000ll, INT32_MIN,         INT32_MAX, -0x80000001ll,
                              0xFFFFFFFF,   int64_t{-1} << 32, 1,         0x7FFFFFFF80000000ll};
  for (const int32_t weight : {INT32_MIN, INT32_MAX, -1, 1, 12345}) {
    const std::vector<int32_t> weights(1116, weight);
    for (const int64_t extreme : extremes) {
      const std::vector<int64_t> lanes(1116, extreme);
      for (const size_t n : {size_t{1}, size_t{7}, size_t{1116}}) {
        const auto* from = reinterpret_cast<const uint8_t*>(lanes.data());
        const auto exact =
            static_cast<Uint128>(static_cast<__int128>(extreme) * weight * static_cast<int>(n));
        EXPECT_TRUE(weighted_sum(8, from, n, weights.data()) == (exact & ((Uint128{1} << 96) - 1)))
            << extreme << " * " << weight << " * " << n;
        EXPECT_TRUE(weighted_sum(4, from, n, weights.data()) ==
                    plain::weighted_sum(4, from, n, weights.data()));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, WeightedTest, testing::ValuesIn(all_targets()), target_name);

}  // namespace
}  // namespace netsum::kernels::weighted_test
