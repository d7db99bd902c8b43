#include "aggregator/slot/progress.h"

#include <gtest/gtest.h>

#include <array>

namespace netsum::progress_test {
namespace {

constexpr uint32_t kDataSlots = 2;
constexpr uint16_t kMembers = 3;
constexpr netsum_job_rules kRules{.members = kMembers};

class SlotProgressTest : public ::testing::Test {
 protected:
  void contribute(size_t slot, uint32_t round, uint16_t member, uint32_t chunk = 0) {
    netsum_fields fields{};
    fields.member = member;
    fields.round = round;
    fields.chunk = chunk;
    const netsum_verdict verdict = netsum_slot_contribute(&slots_[slot], &fields);
    if (verdict.action == NETSUM_ACT_STORE || verdict.action == NETSUM_ACT_ADD)
      netsum_slot_added(&slots_[slot], verdict.bank, 0, &kRules);
  }
  void complete(size_t slot, uint32_t round) {
    for (uint16_t member = 0; member < kMembers; ++member) contribute(slot, round, member);
  }
  SlotProgress look() const { return slot_progress(slots_, kDataSlots, kMembers); }

  std::array<netsum_slot, 4> slots_{};  // two of data, two of scales
};

TEST_F(SlotProgressTest, NothingHasHappened) {
  EXPECT_EQ(look().rounds, 0u);
  EXPECT_EQ(look().open_slots, 0u);
  EXPECT_EQ(look().missing, 0u);
}

TEST_F(SlotProgressTest, CompleteRoundsCountAndNobodyIsMissing) {
  for (uint32_t round = 1; round <= 3; ++round) complete(0, round);
  complete(1, 1);
  EXPECT_EQ(look().rounds, 4u);
  EXPECT_EQ(look().missing, 0u);
}

TEST_F(SlotProgressTest, TheOldestOpenStepSaysWhoIsMissing) {
  complete(0, 1);
  complete(1, 1);
  contribute(0, 2, 0);  // step 2 lacks members 1 and 2
  contribute(0, 2, 1);  // ... now only 2
  contribute(1, 2, 0);  // step 3 lacks more
  EXPECT_EQ(look().rounds, 2u);
  EXPECT_EQ(look().open_slots, 2u);
  EXPECT_EQ(look().missing, 0b100u);
  const uint64_t oldest = look().oldest;
  contribute(0, 2, 2);
  EXPECT_EQ(look().missing, 0b110u);
  EXPECT_NE(look().oldest, oldest);
}

TEST_F(SlotProgressTest, AnOlderStepMayLieInALaterSlot) {
  complete(0, 1);
  contribute(1, 1, 0);  // step 1
  contribute(0, 2, 1);  // step 2
  EXPECT_EQ(look().missing, 0b110u);
}

TEST_F(SlotProgressTest, DataComesBeforeScales) {
  contribute(2, 1, 0);
  EXPECT_EQ(look().missing, 0b110u) << "only scales are under way";
  const uint64_t scales = look().oldest;
  contribute(1, 1, 2);
  EXPECT_EQ(look().missing, 0b011u);
  EXPECT_NE(look().oldest, scales);
}

TEST_F(SlotProgressTest, AFailedRoundIsNeitherCompleteNorUnderWay) {
  contribute(0, 1, 0, 7);
  contribute(0, 1, 1, 8);
  EXPECT_EQ(look().rounds, 0u);
  EXPECT_EQ(look().open_slots, 0u);
}

}  // namespace
}  // namespace netsum::progress_test
