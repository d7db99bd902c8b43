#include "collective/finished_everywhere.h"

#include <gtest/gtest.h>

namespace netsum {
namespace {

constexpr uint32_t kPayload = 1440;

FinishedEverywhere ledger(const ChunkMap& chunk_map, uint64_t first_number = 0) {
  return FinishedEverywhere({.chunk_map = chunk_map, .scale = 4, .payload_bytes = kPayload}, first_number);
}

TEST(FinishedEverywhereTest, SmallOperationsAreKnownAfterATurnOfTheScaleSlots) {
  FinishedEverywhere known = ledger(ChunkMap(1));
  for (uint64_t i = 0; i < 20; ++i) {
    known.submitted(100);
    known.ended();
    EXPECT_EQ(known.count(), i < 4 ? 0 : i - 3);
  }
}

TEST(FinishedEverywhereTest, StepsOfDataSayNothing) {
  // They may have been values, or zeros.
  FinishedEverywhere known = ledger(ChunkMap(1));
  for (int i = 0; i < 4; ++i) {
    known.submitted(100 * kPayload);
    known.ended();
    EXPECT_EQ(known.count(), 0u) << "another rank may still wait for its last results";
  }
  known.submitted(1);
  known.ended();
  EXPECT_EQ(known.count(), 1u);
}

TEST(FinishedEverywhereTest, AnOperationOfManyScaleGroupsTurnsTheScaleSlots) {
  FinishedEverywhere known = ledger(ChunkMap(1));
  known.submitted(100);
  known.ended();
  known.submitted(4 * (kPayload / 2) * kPayload);
  known.ended();
  EXPECT_EQ(known.count(), 1u);
}

TEST(FinishedEverywhereTest, EveryStripeOfAnOperationMustHaveTurned) {
  FinishedEverywhere known = ledger(ChunkMap(2), 1);
  known.submitted(2 * kPayload);  // both stripes
  known.ended();
  // One chunk each: even numbers fall on stripe 0, odd ones on stripe 1.
  for (int i = 0; i < 7; ++i) {
    known.submitted(8);
    known.ended();
    EXPECT_EQ(known.count(), 0u);
  }
  known.submitted(8);
  known.ended();
  EXPECT_EQ(known.count(), 1u);
}

TEST(FinishedEverywhereTest, AStripeOfSmallWeightTurnsRarely) {
  const std::vector<uint32_t> weights = {9, 1, 0};
  const ChunkMap map(weights);
  FinishedEverywhere known = ledger(map);
  known.submitted(10 * kPayload);  // stripes 0 and 1
  known.ended();
  uint64_t number = 1;
  for (int on_stripe_1 = 0; on_stripe_1 < 4; ++number) {
    EXPECT_EQ(known.count(), 0u) << number;
    on_stripe_1 += map.stripe_of(number, 0) == 1;
    known.submitted(8);
    known.ended();
  }
  EXPECT_GT(number, 30u);
  EXPECT_GE(known.count(), 1u) << "after a turn of the scale slots of stripe 1";
}

TEST(FinishedEverywhereTest, OperationsWithoutElementsFollowTheOnesBefore) {
  FinishedEverywhere known = ledger(ChunkMap(1));
  known.submitted(0);
  known.ended();
  EXPECT_EQ(known.count(), 1u);
  known.submitted(8);
  known.submitted(0);
  known.ended();
  known.ended();
  EXPECT_EQ(known.count(), 1u);
}

}  // namespace
}  // namespace netsum
