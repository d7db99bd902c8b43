#include "src/collective/finished_everywhere.h"

#include <gtest/gtest.h>

namespace netsum {
namespace {

constexpr uint32_t kPayload = 1440;

FinishedEverywhere ledger(size_t stripes, uint64_t first_number = 0) {
  return FinishedEverywhere({.stripes = stripes, .data = 8, .scale = 4, .payload_bytes = kPayload},
                            first_number);
}

TEST(FinishedEverywhereTest, SmallOperationsAreKnownAfterATurnOfTheScaleSlots) {
  FinishedEverywhere known = ledger(1);
  for (uint64_t i = 0; i < 20; ++i) {
    known.submitted(100);
    known.ended();
    EXPECT_EQ(known.count(), i < 4 ? 0 : i - 3);
  }
}

TEST(FinishedEverywhereTest, LargeOperationsAreKnownAfterATurnOfTheDataSlots) {
  FinishedEverywhere known = ledger(1);
  known.submitted(100 * kPayload);
  known.submitted(7 * kPayload);
  known.submitted(1);
  known.ended();
  EXPECT_EQ(known.count(), 0u) << "another rank may still wait for its last results";
  known.ended();
  EXPECT_EQ(known.count(), 0u);
  known.ended();
  EXPECT_EQ(known.count(), 1u);
}

TEST(FinishedEverywhereTest, EveryStripeOfAnOperationMustHaveTurned) {
  FinishedEverywhere known = ledger(2, 1);
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

TEST(FinishedEverywhereTest, OperationsWithoutElementsFollowTheOnesBefore) {
  FinishedEverywhere known = ledger(1);
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
