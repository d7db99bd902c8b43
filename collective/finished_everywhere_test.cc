#include "collective/finished_everywhere.h"

#include <gtest/gtest.h>

namespace netsum {
namespace {

constexpr uint32_t kPayload = 1440;

// Operations that end in the order in which they are submitted.
class Ledger {
 public:
  explicit Ledger(const ChunkMap& chunk_map, uint64_t first_number = 0)
      : chunk_map_(chunk_map),
        known_({.stripes = chunk_map.stripes(), .scale = 4, .payload_bytes = kPayload}, first_number) {}
  void ended(uint64_t bytes) { known_.ended(bytes, chunk_map_); }
  void use(const ChunkMap& chunk_map) { chunk_map_ = chunk_map; }
  uint64_t count() const { return known_.count(); }

 private:
  ChunkMap chunk_map_;
  FinishedEverywhere known_;
};

TEST(FinishedEverywhereTest, SmallOperationsAreKnownAfterATurnOfTheScaleSlots) {
  Ledger known(ChunkMap(1));
  for (uint64_t i = 0; i < 20; ++i) {
    known.ended(100);
    EXPECT_EQ(known.count(), i < 4 ? 0 : i - 3);
  }
}

TEST(FinishedEverywhereTest, StepsOfDataSayNothing) {
  // They may have been values, or zeros.
  Ledger known(ChunkMap(1));
  for (int i = 0; i < 4; ++i) {
    known.ended(100 * kPayload);
    EXPECT_EQ(known.count(), 0u) << "another rank may still wait for its last results";
  }
  known.ended(1);
  EXPECT_EQ(known.count(), 1u);
}

TEST(FinishedEverywhereTest, AnOperationOfManyScaleGroupsTurnsTheScaleSlots) {
  Ledger known(ChunkMap(1));
  known.ended(100);
  known.ended(4 * (kPayload / 2) * kPayload);
  EXPECT_EQ(known.count(), 1u);
}

TEST(FinishedEverywhereTest, EveryStripeOfAnOperationMustHaveTurned) {
  Ledger known(ChunkMap(2), 1);
  known.ended(2 * kPayload);  // both stripes
  // One chunk each: even numbers fall on stripe 0, odd ones on stripe 1.
  for (int i = 0; i < 7; ++i) {
    known.ended(8);
    EXPECT_EQ(known.count(), 0u);
  }
  known.ended(8);
  EXPECT_EQ(known.count(), 1u);
}

TEST(FinishedEverywhereTest, AStripeOfSmallWeightTurnsRarely) {
  const std::vector<uint32_t> weights = {9, 1, 0};
  const ChunkMap map(weights);
  Ledger known(map);
  known.ended(10 * kPayload);  // stripes 0 and 1
  uint64_t number = 1;
  for (int on_stripe_1 = 0; on_stripe_1 < 4; ++number) {
    EXPECT_EQ(known.count(), 0u) << number;
    on_stripe_1 += map.stripe_of(number, 0) == 1;
    known.ended(8);
  }
  EXPECT_GT(number, 30u);
  EXPECT_GE(known.count(), 1u) << "after a turn of the scale slots of stripe 1";
}

TEST(FinishedEverywhereTest, EachOperationCountsByItsOwnMap) {
  const std::vector<uint32_t> first_only = {1, 0};
  Ledger known(ChunkMap(2), 0);
  known.ended(2 * kPayload);  // both stripes
  known.use(ChunkMap(first_only));
  for (int i = 0; i < 20; ++i) known.ended(2 * kPayload);
  EXPECT_EQ(known.count(), 0u) << "stripe 1 has had no step since";
  known.use(ChunkMap(2));
  for (int i = 0; i < 4; ++i) known.ended(2 * kPayload);
  EXPECT_GE(known.count(), 1u);
}

TEST(FinishedEverywhereTest, OperationsWithoutElementsFollowTheOnesBefore) {
  Ledger known(ChunkMap(1));
  known.ended(0);
  EXPECT_EQ(known.count(), 1u);
  known.ended(8);
  known.ended(0);
  EXPECT_EQ(known.count(), 1u);
}

}  // namespace
}  // namespace netsum
