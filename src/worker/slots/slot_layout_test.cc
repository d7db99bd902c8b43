#include "src/worker/slots/slot_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace netsum::slot_layout_test {
namespace {

TEST(SlotLayoutTest, EverySlotHasOneUse) {
  for (uint32_t data = 1; data <= 256; ++data) {
    for (uint32_t scale = 1; scale <= 40; ++scale) {
      const SlotLayout layout(data, scale);
      std::vector<int> uses(data + scale);
      const auto use = [&](const SlotRange& range, uint32_t begin, uint32_t end) {
        for (uint32_t n = 0; n < range.count; ++n) {
          ASSERT_GE(range.slot(n), begin);
          ASSERT_LT(range.slot(n), end);
          ++uses[range.slot(n)];
        }
      };
      for (size_t stream = 0; stream < SlotLayout::kStreams; ++stream) {
        use(layout.data(stream), 0, data);
        use(layout.later_groups(stream), data, data + scale);
        EXPECT_EQ(layout.later_groups(stream).count > 0, layout.divides());
      }
      use(layout.first_groups(), data, data + scale);
      EXPECT_TRUE(std::all_of(uses.begin(), uses.end(), [](int n) { return n == 1; }))
          << data << " " << scale;
      EXPECT_GT(layout.data(SlotLayout::kSums).count, 0u);
      EXPECT_GT(layout.first_groups().count, 0u);
      EXPECT_EQ(layout.divides(), data >= 4 && scale >= 8);
    }
  }
}

// All ranks of a job must agree on it: whoever changes it changes kSlotLayout of operation.cc.
TEST(SlotLayoutTest, OfAUsualJob) {
  constexpr SlotLayout kLayout(256, 16);
  EXPECT_EQ(kLayout.data(SlotLayout::kSums).first, 0u);
  EXPECT_EQ(kLayout.data(SlotLayout::kSums).count, 192u);
  EXPECT_EQ(kLayout.data(SlotLayout::kMoves).first, 192u);
  EXPECT_EQ(kLayout.data(SlotLayout::kMoves).count, 64u);
  EXPECT_EQ(kLayout.first_groups().first, 256u);
  EXPECT_EQ(kLayout.first_groups().count, 12u);
  EXPECT_EQ(kLayout.later_groups(SlotLayout::kSums).first, 268u);
  EXPECT_EQ(kLayout.later_groups(SlotLayout::kSums).count, 2u);
  EXPECT_EQ(kLayout.later_groups(SlotLayout::kMoves).first, 270u);
  EXPECT_EQ(kLayout.later_groups(SlotLayout::kMoves).count, 2u);
}

TEST(SlotRangeTest, SlotsAreUsedInTurn) {
  constexpr SlotRange kRange{10, 3};
  for (uint64_t n = 0; n < 12; ++n) EXPECT_EQ(kRange.slot(n), 10 + n % 3);
}

}  // namespace
}  // namespace netsum::slot_layout_test
