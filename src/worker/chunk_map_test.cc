#include "src/worker/chunk_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "src/base/rng.h"
#include "src/base/soak.h"

namespace netsum::chunk_map_test {
namespace {

using Weights = std::vector<uint32_t>;

std::vector<size_t> period_of(const ChunkMap& map) {
  return {map.period().begin(), map.period().end()};
}

// The lookups, against a walk through the chunks one by one.
void expect_lookups(const ChunkMap& map, uint64_t number, size_t chunks) {
  std::vector<std::vector<size_t>> chunks_of(map.stripes());
  for (size_t i = 0; i < chunks; ++i) {
    const size_t stripe = map.period()[(i + number % map.period().size()) % map.period().size()];
    ASSERT_EQ(map.stripe_of(number, i), stripe);
    chunks_of[stripe].push_back(i);
  }
  for (size_t stripe = 0; stripe < map.stripes(); ++stripe) {
    ASSERT_EQ(map.count(number, chunks, stripe), chunks_of[stripe].size());
    for (size_t k = 0; k < chunks_of[stripe].size(); ++k) {
      ASSERT_EQ(map.chunk(number, stripe, k), chunks_of[stripe][k])
          << "stripe " << stripe << ", its chunk " << k;
    }
  }
}

TEST(ChunkMap, EqualWeightsDealChunksRound) {
  for (const size_t stripes : {1, 2, 3, 7, 64, 300, 512}) {
    const ChunkMap equal(stripes);
    const ChunkMap weighted(Weights(stripes, 17));
    EXPECT_EQ(period_of(equal), period_of(weighted));
    for (const uint64_t number : {uint64_t{0}, uint64_t{1}, uint64_t{5}, uint64_t{1'000'003}, UINT64_MAX}) {
      for (const size_t chunks : {0, 1, 2, 100, 1025}) expect_lookups(equal, number, chunks);
      for (size_t i = 0; i < 1025; ++i)
        ASSERT_EQ(equal.stripe_of(number, i), (i + number % stripes) % stripes);
    }
  }
}

TEST(ChunkMap, SmallRatiosAreExact) {
  EXPECT_EQ(period_of(ChunkMap(Weights{2, 1})), (std::vector<size_t>{0, 0, 1}));
  EXPECT_EQ(period_of(ChunkMap(Weights{100, 300})), (std::vector<size_t>{1, 1, 0, 1}));
  EXPECT_EQ(period_of(ChunkMap(Weights{0, 5, 0, 5})), (std::vector<size_t>{1, 3}));
  EXPECT_EQ(period_of(ChunkMap(Weights{0, 0, 9})), (std::vector<size_t>{2}));
}

TEST(ChunkMap, LargeWeightsAreRoundedAndNoneIsLost) {
  const ChunkMap map(Weights{UINT32_MAX, 1, 0, UINT32_MAX / 2});
  EXPECT_EQ(map.period().size(), ChunkMap::kMaxPeriod);
  std::vector<size_t> places(4);
  for (const uint16_t stripe : map.period()) ++places[stripe];
  // 16381 places beside one for each: two thirds, nothing, one third.
  EXPECT_EQ(places, (std::vector<size_t>{10922, 1, 0, 5461}));
  EXPECT_EQ(period_of(ChunkMap(Weights{20000, 100, 1})).size(), ChunkMap::kMaxPeriod);
}

// The shards of 512 ranks with two rates, and 64 aggregators of 2 cores: more stripes than weights have small ratios.
TEST(ChunkMap, TheLargestGroupsKeepTheirWeights) {
  Weights weights(64 * 2, 9);
  for (size_t rank = 0; rank < 512; ++rank) weights.push_back(rank % 2 == 0 ? 5 : 12);
  const ChunkMap map(weights);
  EXPECT_EQ(map.period().size(), std::accumulate(weights.begin(), weights.end(), size_t{0}));
  constexpr size_t kChunks = 11585;  // of 16 MiB
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t stripe = 0; stripe < weights.size(); ++stripe) {
    ASSERT_NEAR(static_cast<double>(map.count(0, kChunks, stripe)), kChunks * weights[stripe] / sum, 1)
        << stripe;
  }
  expect_lookups(map, 77, kChunks);
}

TEST(ChunkMap, RandomWeightsKeepTheirSharesOnEveryStretch) {
  Rng rng(20261122);
  for (int run = 0; run < (soak() ? 300 : 50); ++run) {
    Weights weights(1 + rng.below(run % 10 == 0 ? 400 : 9));
    for (uint32_t& weight : weights) {
      weight = rng.chance(0.2) ? 0 : static_cast<uint32_t>(1 + rng.below(rng.chance(0.5) ? 8 : 1'000'000));
    }
    weights[rng.below(weights.size())] = 3;
    const ChunkMap map(weights);
    const size_t length = map.period().size();
    std::vector<size_t> places(weights.size());
    for (const uint16_t stripe : map.period()) ++places[stripe];
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (size_t stripe = 0; stripe < weights.size(); ++stripe) {
      ASSERT_EQ(places[stripe] == 0, weights[stripe] == 0);
      // Of every stripe's one sure place, the others get at most all but one.
      ASSERT_NEAR(static_cast<double>(places[stripe]), static_cast<double>(length) * weights[stripe] / sum,
                  1.0 + static_cast<double>(weights.size()));
    }
    std::vector<size_t> so_far(weights.size());
    for (size_t p = 0; p < length; ++p) {
      ++so_far[map.period()[p]];
      for (size_t stripe = 0; stripe < weights.size(); ++stripe) {
        // |count - (p + 1) * places / length| < 1
        const auto difference =
            static_cast<int64_t>(so_far[stripe] * length) - static_cast<int64_t>((p + 1) * places[stripe]);
        if (std::abs(difference) < static_cast<int64_t>(length)) continue;
        FAIL() << "stripe " << stripe << " at " << p;
      }
    }
    expect_lookups(map, rng.next(), rng.below(3 * length + 2));
  }
}

TEST(TakeTurns, EveryChunkHasOnePlaceAndPartsFollowEachOther) {
  for (size_t parts = 1; parts <= 9; ++parts) {
    for (size_t count = 0; count <= 50; ++count) {
      std::vector<size_t> order;
      for (size_t n = 0; n < count; ++n) order.push_back(take_turns(n, count, parts));
      // Part p has the chunks from starts[p] on.
      std::vector<size_t> starts;
      for (size_t part = 0, at = 0; part < parts; at += count / parts + (part++ < count % parts))
        starts.push_back(at);
      for (size_t n = 0; n < count; ++n) {
        const auto next = std::upper_bound(starts.begin(), starts.end(), order[n]);
        if (count >= parts) {
          EXPECT_EQ(static_cast<size_t>(next - starts.begin()) - 1, n % parts) << count << " in " << parts;
        }
      }
      std::sort(order.begin(), order.end());
      for (size_t n = 0; n < count; ++n) EXPECT_EQ(order[n], n) << count << " in " << parts;
    }
  }
}

}  // namespace
}  // namespace netsum::chunk_map_test
