#include "aggregator/slot/rate.h"

#include <gtest/gtest.h>

namespace netsum::rate_test {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

// How many of the packets that come every `step_ns` for `span_ns` are let through.
uint64_t let_through(const netsum_rate& rate, uint64_t span_ns, uint64_t step_ns) {
  uint64_t taken = 0, spent_until_ns = 0;
  const uint64_t start_ns = 77 * kSecondNs;
  for (uint64_t now_ns = start_ns; now_ns < start_ns + span_ns; now_ns += step_ns) {
    if (netsum_rate_is_spent(&rate, spent_until_ns, now_ns)) continue;
    spent_until_ns = netsum_rate_take(&rate, spent_until_ns, now_ns);
    ++taken;
  }
  return taken;
}

TEST(Rate, LetsThroughTheRateAndWhatWasSavedUp) {
  // 0.1 s worth of packets at once, then the rate.
  EXPECT_NEAR(static_cast<double>(let_through(netsum_rate_of(10'000), 10 * kSecondNs, 20'000)), 101'000, 2);
  // All in one moment.
  EXPECT_NEAR(static_cast<double>(let_through(netsum_rate_of(10'000), 100'000, 1)), 1001, 2);
  // Low rates: 64 packets.
  EXPECT_NEAR(static_cast<double>(let_through(netsum_rate_of(10), 10 * kSecondNs, 1'000'000)), 164, 2);
}

TEST(Rate, WhoKeepsToItLosesNothing) {
  EXPECT_EQ(let_through(netsum_rate_of(1000), 10 * kSecondNs, 1'000'000), 10'000u);
}

TEST(Rate, SilenceSavesUpNoMoreThanTheBurst) {
  const netsum_rate rate = netsum_rate_of(1000);
  const uint64_t long_silent = 0;
  uint64_t spent_until_ns = long_silent, taken = 0;
  while (!netsum_rate_is_spent(&rate, spent_until_ns, 3600 * kSecondNs)) {
    spent_until_ns = netsum_rate_take(&rate, spent_until_ns, 3600 * kSecondNs);
    ++taken;
  }
  EXPECT_EQ(taken, 101u);
}

TEST(Rate, ZeroIsNoLimit) {
  EXPECT_EQ(let_through(netsum_rate_of(0), 1000, 1), 1000u);
}

class RateKind : public testing::Test {
 protected:
  static constexpr netsum_job_rules kRules{.epoch = 1, .members = 2, .slots = 1, .payload_bytes = 64};
  const netsum_rate rate_ = netsum_rate_of(10'000);
  netsum_slot slot_{};
  uint64_t now_ns_ = 77 * kSecondNs;

  static netsum_fields packet(uint8_t type, uint16_t member, uint32_t round) {
    netsum_fields f{};
    f.type = type;
    f.member = member;
    f.round = round;
    return f;
  }
  int kind(uint8_t type, uint16_t member, uint32_t round) const {
    const netsum_fields f = packet(type, member, round);
    return netsum_rate_kind(&rate_, &slot_, &f, now_ns_);
  }
  int contribution(uint16_t member, uint32_t round) const {
    return kind(NETSUM_TYPE_CONTRIBUTION, member, round);
  }
  int probe(uint16_t member, uint32_t round) const { return kind(NETSUM_TYPE_PROBE, member, round); }
  void contribute(uint16_t member, uint32_t round) {
    const netsum_fields f = packet(NETSUM_TYPE_CONTRIBUTION, member, round);
    const netsum_verdict verdict = netsum_slot_contribute(&slot_, &f);
    netsum_slot_added(&slot_, verdict.bank, 0, &kRules);
  }
};

TEST_F(RateKind, FollowsFromWhatThePacketIsToItsSlot) {
  EXPECT_EQ(contribution(0, 1), NETSUM_RATE_PROGRESS);
  EXPECT_EQ(probe(0, 1), NETSUM_RATE_ANSWERS);
  EXPECT_EQ(contribution(0, 2), NETSUM_RATE_REPEATS);
  EXPECT_EQ(contribution(0, 0), NETSUM_RATE_REPEATS);
  EXPECT_EQ(probe(0, 0), NETSUM_RATE_REPEATS);

  contribute(0, 1);  // open
  EXPECT_EQ(contribution(0, 1), NETSUM_RATE_REPEATS);
  EXPECT_EQ(contribution(1, 1), NETSUM_RATE_PROGRESS);
  EXPECT_EQ(contribution(1, 2), NETSUM_RATE_REPEATS);
  EXPECT_EQ(probe(0, 1), NETSUM_RATE_ANSWERS);

  contribute(1, 1);  // complete: a contribution is answered with the result
  EXPECT_EQ(contribution(0, 1), NETSUM_RATE_ANSWERS);
  EXPECT_EQ(contribution(0, 2), NETSUM_RATE_PROGRESS);

  contribute(0, 2);  // member 1 may still lack the result of round 1, member 0 has it
  EXPECT_EQ(contribution(1, 1), NETSUM_RATE_ANSWERS);
  EXPECT_EQ(probe(1, 1), NETSUM_RATE_ANSWERS);
  EXPECT_EQ(contribution(0, 1), NETSUM_RATE_REPEATS);
  EXPECT_EQ(contribution(0, 0xFFFFFFF0u), NETSUM_RATE_REPEATS);
  EXPECT_EQ(kind(NETSUM_TYPE_HELLO, 0, 12345), NETSUM_RATE_ANSWERS);
}

TEST_F(RateKind, IsARepeatForAMomentAfterTheAnswer) {
  contribute(0, 1);
  const netsum_fields request = packet(NETSUM_TYPE_PROBE, 0, 1);
  netsum_rate_note_answer(&slot_, &request, now_ns_);
  EXPECT_EQ(probe(0, 1), NETSUM_RATE_REPEATS);
  EXPECT_EQ(probe(1, 1), NETSUM_RATE_ANSWERS);
  EXPECT_EQ(kind(NETSUM_TYPE_HELLO, 0, 1), NETSUM_RATE_ANSWERS);
  EXPECT_EQ(contribution(1, 1), NETSUM_RATE_PROGRESS);
  now_ns_ += 2'000'000;
  EXPECT_EQ(probe(0, 1), NETSUM_RATE_REPEATS);
  now_ns_ += 3'000'000;  // members ask again after 5 ms at the earliest
  EXPECT_EQ(probe(0, 1), NETSUM_RATE_ANSWERS);

  const netsum_rate slow = netsum_rate_of(100);
  EXPECT_EQ(netsum_rate_kind(&slow, &slot_, &request, now_ns_), NETSUM_RATE_REPEATS);
  EXPECT_EQ(netsum_rate_kind(&slow, &slot_, &request, now_ns_ + 40'000'000), NETSUM_RATE_ANSWERS);
}

}  // namespace
}  // namespace netsum::rate_test
