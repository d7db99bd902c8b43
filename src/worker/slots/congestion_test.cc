#include "src/worker/slots/congestion.h"

#include <gtest/gtest.h>

namespace netsum::congestion_test {
namespace {

TEST(RoundTrip, StartsWithACautiousTimeout) {
  EXPECT_EQ(RoundTrip().timeout_us(), RoundTrip::kInitialTimeoutUs);
}

TEST(RoundTrip, FollowsTheSamples) {
  RoundTrip rtt;
  rtt.sample(10'000);
  EXPECT_EQ(rtt.srtt_us(), 10'000);
  EXPECT_EQ(rtt.timeout_us(), 30'000);  // RFC 6298: srtt + 4 * rtt / 2
  for (int i = 0; i < 100; ++i) rtt.sample(10'000);
  EXPECT_NEAR(static_cast<double>(rtt.timeout_us()), 10'000, 10);
  for (int i = 0; i < 100; ++i) rtt.sample(40'000);
  EXPECT_NEAR(rtt.srtt_us(), 40'000, 10);
}

TEST(RoundTrip, TimeoutHasBounds) {
  RoundTrip fast, slow;
  fast.sample(0);
  EXPECT_GE(fast.srtt_us(), 1);
  EXPECT_EQ(fast.timeout_us(), RoundTrip::kMinTimeoutUs);
  slow.sample(100'000'000);
  EXPECT_EQ(slow.timeout_us(), RoundTrip::kMaxSlowTimeoutUs);
}

TEST(RoundTrip, TheTimeoutOfASlowPathIsLongerThanItsRoundTrip) {
  RoundTrip rtt;
  rtt.sample(300'000);
  EXPECT_EQ(rtt.timeout_us(), RoundTrip::kMaxTimeoutUs);
  for (int i = 0; i < 100; ++i) rtt.sample(i % 2 == 0 ? 900'000 : 1'100'000);
  EXPECT_GT(rtt.timeout_us(), 1'100'000);
}

TEST(RoundTrip, WhatWasOvertakenIsAskedForSooner) {
  RoundTrip rtt;
  for (int i = 0; i < 100; ++i) rtt.sample(1'000);
  EXPECT_EQ(rtt.timeout_us(), RoundTrip::kMinTimeoutUs);
  EXPECT_NEAR(static_cast<double>(rtt.overtaken_us()), 1'000, 10);
  for (int i = 0; i < 100; ++i) rtt.sample(1);
  EXPECT_EQ(rtt.overtaken_us(), RoundTrip::kMinOvertakenUs);
}

TEST(RoundTrip, AQueueIsWhatThePathDoesNotTakeByItself) {
  RoundTrip rtt;
  EXPECT_FALSE(rtt.queues());
  for (int i = 0; i < 100; ++i) rtt.sample(20'000);
  EXPECT_FALSE(rtt.queues());
  rtt.sample(10'000);
  for (int i = 0; i < 100; ++i) rtt.sample(13'900);
  EXPECT_FALSE(rtt.queues());
  for (int i = 0; i < 100; ++i) rtt.sample(14'100);
  EXPECT_TRUE(rtt.queues());
  for (int i = 0; i < 100; ++i) rtt.sample(10'000);
  EXPECT_FALSE(rtt.queues());
}

TEST(RoundTrip, RepairsOfSomePacketsAreNoQueueOfAll) {
  RoundTrip rtt;
  EXPECT_FALSE(rtt.all_queue());
  for (int i = 0; i < 100; ++i) rtt.sample(i % 16 == 0 ? 1'000 : 20'000);
  EXPECT_TRUE(rtt.queues());
  EXPECT_FALSE(rtt.all_queue());
  for (int i = 0; i < 40; ++i) rtt.sample(5'100);
  EXPECT_TRUE(rtt.all_queue());
  rtt.sample(4'900);
  for (uint32_t i = 0; i < RoundTrip::kRecentSamples - 1; ++i) {
    EXPECT_FALSE(rtt.all_queue());
    rtt.sample(5'100);
  }
  for (uint32_t i = 0; i < RoundTrip::kRecentSamples; ++i) rtt.sample(5'100);
  EXPECT_TRUE(rtt.all_queue());
}

TEST(CongestionWindow, DoesNotGrowIntoAQueue) {
  CongestionWindow window(256);
  for (int i = 0; i < 1000; ++i) window.on_result(true);
  EXPECT_EQ(window.packets(), 32u);
  window.on_result(false);
  EXPECT_EQ(window.packets(), 33u);
}

TEST(CongestionWindow, StripesShareTheFirstPackets) {
  EXPECT_EQ(CongestionWindow(256, 1.0 / 4, 1.0 / 4).packets(), 32u);
  EXPECT_EQ(CongestionWindow(256, 1.0 / 8, 1.0 / 8).packets(), 16u);
  EXPECT_EQ(CongestionWindow(256, 1.0 / 64, 1.0 / 64).packets(), 4u);
  EXPECT_EQ(CongestionWindow(2, 1.0 / 64, 1.0 / 64).packets(), 2u);
  EXPECT_EQ(CongestionWindow(256, 0.2, 0.2).packets(), 25u) << "a spare host ...";
  EXPECT_EQ(CongestionWindow(256, 0.1, 0.2).packets(), 12u) << "... and shards";
  EXPECT_EQ(CongestionWindow(256, 0.64, 0.64).packets(), 32u);
}

TEST(CongestionWindow, SlowStartThenOnePacketPerWindow) {
  CongestionWindow window(256);
  EXPECT_EQ(window.packets(), 32u);
  for (int i = 0; i < 32; ++i) window.on_result();
  EXPECT_EQ(window.packets(), 64u);
  window.on_loss();
  EXPECT_EQ(window.packets(), 63u);
  for (int i = 0; i < 64; ++i) window.on_result();
  EXPECT_EQ(window.packets(), 64u);
}

TEST(CongestionWindow, ShrinksInProportionToWhatIsLost) {
  CongestionWindow window(256);
  for (int i = 0; i < 68; ++i) window.on_result();
  ASSERT_EQ(window.packets(), 100u);
  for (int i = 0; i < 50; ++i) window.on_loss();  // half of it
  EXPECT_EQ(window.packets(), 75u);
}

TEST(CongestionWindow, LossesInAQueueShrinkItFasterToTheInitialOne) {
  CongestionWindow window(256);
  for (int i = 0; i < 68; ++i) window.on_result();
  for (int i = 0; i < 10; ++i) window.on_loss(true);
  EXPECT_EQ(window.packets(), 60u);
  for (int i = 0; i < 7 + 20; ++i) window.on_loss(true);
  EXPECT_EQ(window.packets(), 22u);
  for (int i = 0; i < 1000; ++i) window.on_result(true);
  EXPECT_EQ(window.packets(), 32u);
}

TEST(CongestionWindow, SettlesWhereGrowthAndLossAreEqual) {
  CongestionWindow window(256);
  for (int i = 0; i < 100'000; ++i) i % 50 == 0 ? window.on_loss() : window.on_result();
  EXPECT_NEAR(window.packets(), 2 / 0.02, 2);
}

TEST(CongestionWindow, HalfOfTheSlotsStayFreeForGoingOnPastALoss) {
  CongestionWindow window(256);
  for (int i = 0; i < 1000; ++i) window.on_result();
  ASSERT_EQ(window.packets(), 256u);
  window.on_loss();
  EXPECT_EQ(window.packets(), 128u);
}

TEST(CongestionWindow, StaysBetweenItsFloorAndTheSlotsGranted) {
  for (const uint32_t slots : {1u, 2u, 3u, 4u, 100u}) {
    CongestionWindow window(slots);
    for (int i = 0; i < 1000; ++i) window.on_result();
    EXPECT_EQ(window.packets(), slots);
    for (int i = 0; i < 1000; ++i) window.on_loss();
    EXPECT_EQ(window.packets(), slots < 4 ? slots : 4u);
  }
}

}  // namespace
}  // namespace netsum::congestion_test
