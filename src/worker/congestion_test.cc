#include "src/worker/congestion.h"

#include <gtest/gtest.h>

namespace netsum {
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
  EXPECT_EQ(slow.timeout_us(), RoundTrip::kMaxTimeoutUs);
}

TEST(CongestionWindow, SlowStartThenOnePacketPerWindow) {
  CongestionWindow window(256);
  EXPECT_EQ(window.packets(), 32u);
  for (int i = 0; i < 32; ++i) window.on_result();
  EXPECT_EQ(window.packets(), 64u);
  window.on_loss(1'000, 100);
  EXPECT_EQ(window.packets(), 32u);
  for (int i = 0; i < 33; ++i) window.on_result();
  EXPECT_EQ(window.packets(), 33u);
}

TEST(CongestionWindow, HalvesOncePerRoundTrip) {
  CongestionWindow window(256);
  window.on_loss(0, 100);
  window.on_loss(50, 100);
  window.on_loss(99, 100);
  EXPECT_EQ(window.packets(), 16u);
  window.on_loss(100, 100);
  EXPECT_EQ(window.packets(), 8u);
}

TEST(CongestionWindow, StaysBetweenItsFloorAndTheSlotsGranted) {
  for (const uint32_t slots : {1u, 2u, 3u, 4u, 100u}) {
    CongestionWindow window(slots);
    for (int i = 0; i < 1000; ++i) window.on_result();
    EXPECT_EQ(window.packets(), slots);
    for (int i = 0; i < 20; ++i) window.on_loss(i * 1'000, 100);
    EXPECT_EQ(window.packets(), slots < 4 ? slots : 4u);
  }
}

}  // namespace
}  // namespace netsum
