#include "aggregator/slot/slot.h"

#include <gtest/gtest.h>

#include "aggregator/slot/slot_bench.h"

namespace netsum::slot_test {
namespace {

SlotOutcome dropped(uint8_t reason) {
  return {NETSUM_ACT_DROP, reason};
}
SlotOutcome reply_result(uint32_t round) {
  return {NETSUM_ACT_REPLY_RESULT, NETSUM_DROP_NONE, static_cast<uint8_t>(round & 1)};
}
SlotOutcome tells(uint32_t round, uint64_t seen, bool again) {
  return {NETSUM_ACT_REPLY_STATUS, NETSUM_DROP_NONE, static_cast<uint8_t>(round & 1),
          static_cast<uint8_t>(again ? NETSUM_FLAG_AGAIN : 0), seen};
}

// --- What SwitchML's switch program is tested for (its PTF list) -------------------------------------------

TEST(Slot, CompletesWithTheLastMemberWhateverTheirNumber) {
  for (uint16_t members = 1; members <= NETSUM_MAX_MEMBERS; ++members) {
    SlotBench bench(members);
    for (uint16_t m = 0; m < members; ++m) {
      ASSERT_EQ(bench.contribute(m, 1, 1).completed, m + 1 == members) << m << " of " << members;
    }
    EXPECT_EQ(bench.lane(1), members);
  }
}

TEST(Slot, BasicReduction) {
  SlotBench bench(3);
  EXPECT_EQ(bench.contribute(0, 1, 10, 1).action, NETSUM_ACT_STORE);
  EXPECT_FALSE(bench.contribute(1, 1, 20, 2).completed);
  EXPECT_TRUE(bench.contribute(2, 1, -5, 3).completed);
  EXPECT_EQ(bench.lane(1, 0), 25);
  EXPECT_EQ(bench.lane(1, 1), 6);
}

TEST(Slot, RetransmitAfterReduction) {
  SlotBench bench(2);
  bench.contribute(0, 1, 10);
  bench.contribute(1, 1, 20);
  EXPECT_EQ(bench.contribute(0, 1, 10), reply_result(1));
  EXPECT_EQ(bench.contribute(1, 1, 20), reply_result(1));
  EXPECT_EQ(bench.lane(1), 30);
}

TEST(Slot, OtherSetReduction) {
  SlotBench bench(2);
  for (uint32_t round = 1; round <= 2; ++round) {
    bench.contribute(0, round, 10);
    EXPECT_TRUE(bench.contribute(1, round, 20).completed);
  }
  EXPECT_EQ(bench.lane(2), 30);
}

TEST(Slot, BothSetsReduction) {
  SlotBench bench(2);
  bench.contribute(0, 1, 1);
  bench.contribute(1, 1, 2);
  bench.contribute(0, 2, 100);
  EXPECT_EQ(bench.lane(1), 3);  // the finished round keeps its lanes while the next one fills
  EXPECT_EQ(bench.contribute(1, 1, 2), reply_result(1));
  EXPECT_TRUE(bench.contribute(1, 2, 200).completed);
  EXPECT_EQ(bench.lane(1), 3);
  EXPECT_EQ(bench.lane(2), 300);
}

TEST(Slot, SlotReuse) {
  SlotBench bench(2);
  for (uint32_t round = 1; round <= 9; ++round) {
    EXPECT_EQ(bench.contribute(round & 1, round, 7).action, NETSUM_ACT_STORE) << round;
    EXPECT_TRUE(bench.contribute((round & 1) ^ 1, round, static_cast<int32_t>(round)).completed);
    EXPECT_EQ(bench.lane(round), 7 + static_cast<int32_t>(round));
  }
}

TEST(Slot, IgnoreRetransmissions) {
  SlotBench bench(2);
  bench.contribute(0, 1, 10);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(bench.contribute(0, 1, 10), dropped(NETSUM_DROP_DUPLICATE));
  EXPECT_EQ(bench.lane(1), 10);
  EXPECT_TRUE(bench.contribute(1, 1, 20).completed);
  EXPECT_EQ(bench.lane(1), 30);
}

TEST(Slot, RetransmitFromPreviousSet) {
  SlotBench bench(3);
  for (uint16_t member = 0; member < 3; ++member) bench.contribute(member, 1, 5);
  bench.contribute(0, 2, 50);
  // Members 1 and 2 have not moved on, so the result of round 1 is still owed to them; member 0 has it.
  EXPECT_EQ(bench.contribute(1, 1, 5), reply_result(1));
  EXPECT_EQ(bench.probe(2, 1), tells(1, 7, true));
  EXPECT_EQ(bench.contribute(0, 1, 5), dropped(NETSUM_DROP_STALE_ROUND));
  EXPECT_EQ(bench.probe(0, 1), dropped(NETSUM_DROP_STALE_ROUND));
}

TEST(Slot, SlotReuseAndRetransmit) {
  SlotBench bench(2);
  for (uint32_t round = 1; round <= 5; ++round) {
    bench.contribute(0, round, 1);
    EXPECT_EQ(bench.contribute(0, round, 1), dropped(NETSUM_DROP_DUPLICATE));
    if (round > 1) {
      EXPECT_EQ(bench.contribute(1, round - 1, 2), reply_result(round - 1));
    }
    bench.contribute(1, round, 2);
    EXPECT_EQ(bench.contribute(1, round, 2), reply_result(round));
    EXPECT_EQ(bench.lane(round), 3);
  }
}

TEST(Slot, MembersMayArriveInAnyOrder) {
  const uint16_t orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  for (const auto& order : orders) {
    SlotBench bench(3);
    for (uint16_t member : order) bench.contribute(member, 1, 1 << (4 * member));
    EXPECT_EQ(bench.lane(1), 0x111);
  }
}

// --- What SwitchML gets wrong ------------------------------------------------------------------------------

// There, a delayed copy clears its sender's bit in the other set, and may be added as new data.
TEST(Slot, StaleDuplicateNeverClearsTheOtherRound) {
  SlotBench bench(2);
  for (uint32_t round = 1; round <= 6; ++round) {
    bench.contribute(0, round, 1);
    if (round == 6) break;
    bench.contribute(1, round, 2);
  }
  const netsum_slot before = bench.slot();
  for (uint32_t round = 0; round <= 6; ++round) {
    EXPECT_EQ(bench.contribute(0, round, 999).action, NETSUM_ACT_DROP) << round;
  }
  for (uint32_t round = 1; round <= 4; ++round) {
    EXPECT_EQ(bench.contribute(1, round, 999), dropped(NETSUM_DROP_STALE_ROUND));
  }
  EXPECT_EQ(std::memcmp(&before, &bench.slot(), sizeof before), 0);
  EXPECT_TRUE(bench.contribute(1, 6, 2).completed);
  EXPECT_EQ(bench.lane(6), 3);
  EXPECT_EQ(bench.lane(5), 3);
}

TEST(Slot, SecondJobCannotTouchFirst) {
  SlotBench first(2);
  first.contribute(0, 1, 10);
  const netsum_slot before = first.slot();
  netsum_fields f = first.contribution(1, 1);
  const uint8_t payload[8] = {99};
  f.epoch = 2;  // the same index, granted again
  EXPECT_EQ(first.feed(f, payload), dropped(NETSUM_DROP_STALE_EPOCH));
  EXPECT_EQ(std::memcmp(&before, &first.slot(), sizeof before), 0);
  // A job that is gone has no members.
  first.rules().members = 0;
  EXPECT_EQ(first.feed(first.contribution(1, 1), payload), dropped(NETSUM_DROP_UNKNOWN_JOB));
}

TEST(Slot, SlotIndexIsBoundsChecked) {
  SlotBench bench(2, 3);
  EXPECT_EQ(bench.contribute(0, 1, 10, 0, 2).action, NETSUM_ACT_STORE);
  for (uint32_t slot : {3u, 4u, 8192u, 65535u}) {
    EXPECT_EQ(bench.contribute(0, 1, 10, 0, slot), dropped(NETSUM_DROP_BAD_SLOT));
    EXPECT_EQ(bench.probe(0, 1, slot), dropped(NETSUM_DROP_BAD_SLOT));
  }
}

TEST(Slot, MemberIndexIsBoundsChecked) {
  SlotBench bench(2);
  for (uint16_t member : {2, 63, 64, 0xFFFF}) {
    EXPECT_EQ(bench.contribute(member, 1, 10), dropped(NETSUM_DROP_BAD_MEMBER));
  }
}

TEST(Slot, PayloadIsBoundedByTheJob) {
  SlotBench bench(2, 1, 64);
  netsum_fields f = bench.contribution(0, 1);
  f.payload_bytes = 72;
  EXPECT_EQ(bench.feed(f, std::vector<uint8_t>(72)), dropped(NETSUM_DROP_BAD_LENGTH));
}

// There, ranks that submit tensors in different orders get the sum of different tensors.
TEST(Slot, OrderMismatchIsReported) {
  using Change = void (*)(netsum_fields*);
  const Change changes[] = {
      [](netsum_fields* f) { f->chunk += 1; },
      [](netsum_fields* f) { f->signature ^= 1; },
      [](netsum_fields* f) { f->format = NETSUM_FORMAT_SUM_I64; },
      [](netsum_fields* f) { f->format = NETSUM_FORMAT_MAX_U8; },
      [](netsum_fields* f) { f->payload_bytes = 16; },
      [](netsum_fields* f) { f->flags = NETSUM_FLAG_PART; },
  };
  const uint8_t payload[16] = {1};
  for (const Change& change : changes) {
    SlotBench bench(3);
    bench.contribute(0, 1, 10);
    netsum_fields f = bench.contribution(2, 1);
    change(&f);
    EXPECT_EQ(bench.feed(f, payload).action, NETSUM_ACT_ERROR_ALL);
    EXPECT_EQ(bench.slot().rounds[1].blamed, 2);
    EXPECT_EQ(bench.lane(1), 10) << "the odd one out is never summed";
    // From now on everybody hears of it, whatever is asked, and nothing can be added.
    EXPECT_EQ(bench.contribute(1, 1, 20).action, NETSUM_ACT_REPLY_ERROR);
    EXPECT_EQ(bench.feed(f, payload).action, NETSUM_ACT_REPLY_ERROR);
    EXPECT_EQ(bench.probe(0, 1).action, NETSUM_ACT_REPLY_ERROR);
    EXPECT_EQ(bench.contribute(0, 2, 10), dropped(NETSUM_DROP_FUTURE_ROUND));
    EXPECT_EQ(bench.lane(1), 10);
  }
}

TEST(Slot, AFailedRoundStillOwesTheResultBeforeIt) {
  SlotBench bench(3);
  for (uint16_t member = 0; member < 3; ++member) bench.contribute(member, 1, 5);
  bench.contribute(0, 2, 1);
  netsum_fields f = bench.contribution(1, 2);
  f.chunk = 777;
  const uint8_t payload[8] = {};
  ASSERT_EQ(bench.feed(f, payload).action, NETSUM_ACT_ERROR_ALL);
  EXPECT_EQ(bench.contribute(2, 1, 5), reply_result(1));
}

TEST(Slot, IntegerOverflowIsFlagged) {
  const int32_t kMax = INT32_MAX, kMin = INT32_MIN;
  struct {
    int32_t a, b;
    uint8_t flagged;
  } const cases[] = {{kMax, 1, 1},          {kMin, -1, 1},
                     {kMax, kMax, 1},       {kMin, kMin, 1},
                     {kMax - 1, 1, 0},      {kMin + 1, -1, 0},
                     {kMax, kMin, 0},       {kMax, -1, 0},
                     {1 << 30, 1 << 30, 1}, {-(1 << 30), -(1 << 30), 0}};
  for (const auto& c : cases) {
    SlotBench bench(2);
    bench.contribute(0, 1, 0, c.a);
    bench.contribute(1, 1, 0, c.b);
    EXPECT_EQ(bench.slot().rounds[1].overflow, c.flagged) << c.a << " + " << c.b;
    // The flag belongs to the round, not to the slot.
    bench.contribute(0, 2, 1);
    bench.contribute(1, 2, 1);
    bench.contribute(0, 3, 1);
    bench.contribute(1, 3, 1);
    EXPECT_EQ(bench.slot().rounds[1].overflow, 0);
  }
}

TEST(Slot, OverflowOfAChildIsPassedOn) {
  for (uint16_t child : {0, 1}) {
    SlotBench bench(2);
    const uint8_t payload[8] = {1};
    for (uint16_t member : {0, 1}) {
      netsum_fields f = bench.contribution(member, 1);
      if (member == child) f.flags = NETSUM_FLAG_OVERFLOW;
      EXPECT_EQ(bench.feed(f, payload).completed, member == 1);
    }
    EXPECT_EQ(bench.slot().rounds[1].overflow, 1);
    EXPECT_EQ(bench.slot().rounds[1].flags, 0);
  }
}

// --- Rules -------------------------------------------------------------------------------------------------

TEST(Slot, OneMemberCompletesAtOnce) {
  SlotBench bench(1);
  for (uint32_t round = 1; round <= 4; ++round) {
    const SlotOutcome outcome = bench.contribute(0, round, static_cast<int32_t>(round));
    EXPECT_EQ(outcome.action, NETSUM_ACT_STORE);
    EXPECT_TRUE(outcome.completed);
    EXPECT_EQ(bench.contribute(0, round, 0), reply_result(round));
    EXPECT_EQ(bench.lane(round), static_cast<int32_t>(round));
  }
}

TEST(Slot, SixtyFourMembersFillTheBitmap) {
  SlotBench bench(64);
  for (uint16_t member = 0; member < 64; ++member) {
    EXPECT_EQ(bench.contribute(member, 1, member).completed, member == 63);
  }
  EXPECT_EQ(bench.lane(1), 63 * 64 / 2);
  EXPECT_EQ(bench.slot().rounds[1].seen, ~0ull);
}

TEST(Slot, AFreshSlotTakesRoundOneOnly) {
  for (uint32_t round : {0u, 2u, 3u, 0x7FFFFFFFu, 0x80000000u, 0xFFFFFFFEu, 0xFFFFFFFFu}) {
    SlotBench bench(2);
    EXPECT_EQ(bench.contribute(0, round, 1).action, NETSUM_ACT_DROP) << round;
    EXPECT_EQ(bench.probe(0, round).action, NETSUM_ACT_DROP) << round;
    EXPECT_EQ(bench.contribute(0, 1, 1).action, NETSUM_ACT_STORE);
  }
}

TEST(Slot, ARoundOpensOnlyAfterTheOneBefore) {
  SlotBench bench(2);
  bench.contribute(0, 1, 1);
  EXPECT_EQ(bench.contribute(1, 2, 1), dropped(NETSUM_DROP_FUTURE_ROUND));
  EXPECT_EQ(bench.probe(1, 2), dropped(NETSUM_DROP_FUTURE_ROUND));
  bench.contribute(1, 1, 1);
  EXPECT_EQ(bench.contribute(1, 3, 1), dropped(NETSUM_DROP_FUTURE_ROUND));
  EXPECT_EQ(bench.contribute(1, 2, 1).action, NETSUM_ACT_STORE);
}

TEST(Slot, ProbesAnswerInEveryState) {
  SlotBench bench(2);
  EXPECT_EQ(bench.probe(0, 1), tells(1, 0, true));  // never used: nobody has contributed
  bench.contribute(1, 1, 1);
  EXPECT_EQ(bench.probe(0, 1), tells(1, 2, true));  // open: the asker's own contribution was lost
  EXPECT_EQ(bench.probe(1, 1), tells(1, 2, false));
  bench.contribute(0, 1, 1);
  EXPECT_EQ(bench.probe(0, 1), tells(1, 3, true));  // complete
  EXPECT_EQ(bench.probe(0, 2), tells(2, 0, true));  // the next has not begun
  bench.contribute(0, 2, 1);
  EXPECT_EQ(bench.probe(1, 1), tells(1, 3, true));  // previous, still owed
  EXPECT_EQ(bench.probe(1, 2), tells(2, 1, true));
  bench.contribute(1, 2, 1);
  EXPECT_EQ(bench.probe(1, 1), dropped(NETSUM_DROP_STALE_ROUND));
}

TEST(Slot, ProbesChangeNothing) {
  SlotBench bench(2);
  for (uint32_t round = 1; round <= 3; ++round) {
    for (uint16_t member = 0; member < 2; ++member) {
      const netsum_slot before = bench.slot();
      for (uint32_t asked = 0; asked <= 5; ++asked) bench.probe(member, asked);
      EXPECT_EQ(std::memcmp(&before, &bench.slot(), sizeof before), 0);
      bench.contribute(member, round, 1);
    }
  }
}

// 2^32 rounds of one slot take a day at 20 microseconds each: it will happen.
TEST(Slot, RoundsWrap) {
  SlotBench bench(2);
  bench.slot().current = 0xFFFFFFFDu;
  bench.slot().rounds[1].state = NETSUM_ROUND_COMPLETE;
  uint32_t round = 0xFFFFFFFEu;
  for (int i = 0; i < 5; ++i, ++round) {
    EXPECT_EQ(bench.contribute(0, round, 1).action, NETSUM_ACT_STORE) << round;
    if (i > 0) {
      EXPECT_EQ(bench.contribute(1, round - 1, 2), reply_result(round - 1)) << round;
      EXPECT_EQ(bench.probe(1, round - 1), tells(round - 1, 3, true)) << round;
      EXPECT_EQ(bench.contribute(1, round - 2, 2), dropped(NETSUM_DROP_STALE_ROUND)) << round;
    }
    EXPECT_TRUE(bench.contribute(1, round, 2).completed) << round;
    EXPECT_EQ(bench.lane(round), 3);
  }
}

// --- Contributions without lanes ---------------------------------------------------------------------------

TEST(SlotWithoutLanes, CountsAsZeros) {
  SlotBench bench(3);
  EXPECT_EQ(bench.contribute(0, 1, 7).action, NETSUM_ACT_STORE);  // what is there before
  bench.contribute(1, 1, 7);
  bench.contribute(2, 1, 7);
  EXPECT_EQ(bench.contribute(1, 2, 9).action, NETSUM_ACT_STORE);
  bench.contribute(0, 2, 9);
  bench.contribute(2, 2, 9);
  EXPECT_EQ(bench.contribute_nothing(0, 3).action, NETSUM_ACT_CLEAR);
  EXPECT_EQ(bench.contribute(2, 3, 5, -6).action, NETSUM_ACT_ADD);
  const SlotOutcome last = bench.contribute_nothing(1, 3);
  EXPECT_EQ(last.action, NETSUM_ACT_COUNT);
  EXPECT_TRUE(last.completed);
  EXPECT_EQ(last.asked, NETSUM_MEMBER_ALL);
  EXPECT_EQ(bench.lane(3, 0), 5);
  EXPECT_EQ(bench.lane(3, 1), -6);
}

TEST(SlotWithoutLanes, MustAgreeInTheLengthThatItLeavesOut) {
  SlotBench bench(2);
  netsum_fields f = bench.contribution(0, 1);
  f.flags = NETSUM_FLAG_EMPTY;
  f.absent_bytes = 16;
  EXPECT_EQ(bench.feed(f, std::vector<uint8_t>(8)).action, NETSUM_ACT_CLEAR);
  EXPECT_EQ(bench.contribute(1, 1, 1).action, NETSUM_ACT_ERROR_ALL) << "8 bytes";
}

TEST(SlotWithoutLanes, LengthsThatNoLanesHaveAreRefused) {
  SlotBench bench(2, 1, 64);
  for (const uint32_t bytes : {0u, 4u, 12u, 72u, 0xFFFFFFFFu}) {
    netsum_fields f = bench.contribution(0, 1);
    f.flags = NETSUM_FLAG_EMPTY;
    f.absent_bytes = bytes;
    EXPECT_EQ(bench.feed(f, std::vector<uint8_t>(8)).drop, NETSUM_DROP_BAD_LENGTH) << bytes;
  }
}

TEST(SlotWithoutLanes, IsNeverAnsweredByAResult) {
  SlotBench bench(2);
  bench.contribute_nothing(0, 1);
  EXPECT_EQ(bench.contribute_nothing(0, 1).drop, NETSUM_DROP_DUPLICATE);
  EXPECT_TRUE(bench.contribute(1, 1, 5).completed);
  EXPECT_EQ(bench.contribute_nothing(0, 1).drop, NETSUM_DROP_DUPLICATE);
  EXPECT_EQ(bench.contribute(0, 1, 0).action, NETSUM_ACT_REPLY_RESULT) << "zeros, with room for the answer";
  bench.contribute(1, 2, 5);
  EXPECT_EQ(bench.contribute_nothing(0, 1).drop, NETSUM_DROP_STALE_ROUND);
  EXPECT_EQ(bench.contribute(0, 1, 0).action, NETSUM_ACT_REPLY_RESULT);
}

// A dataplane that cannot lengthen packets asks the member that contributed lanes last for one with room.
TEST(SlotWithoutLanes, AResultWithoutRoomWaitsForAContributionWithLanes) {
  SlotBench bench(3, 1, 64, false, /*lengthens=*/false);
  bench.contribute(1, 1, 5);
  bench.contribute_nothing(0, 1);
  const SlotOutcome last = bench.contribute_nothing(2, 1);
  EXPECT_TRUE(last.completed);
  EXPECT_EQ(last.asked, 1);
  EXPECT_EQ(bench.contribute_nothing(0, 1).drop, NETSUM_DROP_DUPLICATE);
  EXPECT_EQ(bench.probe(0, 1).flags, NETSUM_FLAG_AGAIN);
  EXPECT_EQ(bench.contribute(1, 1, 5).action, NETSUM_ACT_RESULT_ALL);
  EXPECT_EQ(bench.lane(1), 5);
  EXPECT_EQ(bench.contribute(1, 1, 5).action, NETSUM_ACT_REPLY_RESULT) << "once only";
  // With the lanes last, nobody needs to be asked.
  bench.contribute_nothing(0, 2);
  bench.contribute_nothing(1, 2);
  EXPECT_EQ(bench.contribute(2, 2, 1).asked, NETSUM_MEMBER_ALL);
  // Nor if there are none.
  bench.contribute_nothing(0, 3);
  bench.contribute_nothing(1, 3);
  EXPECT_EQ(bench.contribute_nothing(2, 3).asked, NETSUM_MEMBER_ALL);
  EXPECT_EQ(bench.slot().rounds[1].filled, NETSUM_MEMBER_ALL);
}

TEST(SlotWithoutLanes, AMemberThatNeedsNoLanesIsAnsweredWithoutThem) {
  SlotBench bench(3, 1, 64, false, /*lengthens=*/false);
  netsum_fields f = bench.contribution(0, 1);
  f.flags = NETSUM_FLAG_NO_RESULT;
  const std::vector<uint8_t> lanes(8, 1);
  EXPECT_EQ(bench.feed(f, lanes).action, NETSUM_ACT_STORE);
  bench.contribute_nothing(1, 1);
  EXPECT_EQ(bench.contribute_nothing(2, 1).asked, 0) << "1 and 2 need the lanes";
  EXPECT_EQ(bench.slot().rounds[1].no_result, 0b001u);
  EXPECT_EQ(netsum_without_lanes(&bench.slot().rounds[1]), 0b001u);
  f.flags = NETSUM_FLAG_NO_RESULT | NETSUM_FLAG_EMPTY;
  f.absent_bytes = 8;
  EXPECT_EQ(bench.feed(f, lanes).action, NETSUM_ACT_REPLY_RESULT) << "as short as the request";
  f.flags = NETSUM_FLAG_NO_RESULT;
  EXPECT_EQ(bench.feed(f, lanes).action, NETSUM_ACT_RESULT_ALL);
  // Nobody needs the lanes: nobody is asked for them.
  for (uint16_t member = 0; member < 3; ++member) {
    f.round = 2;
    f.chunk = 20;
    f.member = member;
    f.flags = NETSUM_FLAG_NO_RESULT | (member > 0 ? NETSUM_FLAG_EMPTY : 0);
    EXPECT_EQ(bench.feed(f, lanes).asked, NETSUM_MEMBER_ALL);
  }
  EXPECT_EQ(bench.slot().rounds[0].state, NETSUM_ROUND_COMPLETE);
  EXPECT_EQ(bench.contribute(0, 3, 1).action, NETSUM_ACT_STORE);
  EXPECT_EQ(bench.slot().rounds[1].no_result, 0u) << "of the round before in this bank";
}

}  // namespace
}  // namespace netsum::slot_test
