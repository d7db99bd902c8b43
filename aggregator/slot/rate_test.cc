#include "aggregator/slot/rate.h"

#include <gtest/gtest.h>

namespace netsum {
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

}  // namespace
}  // namespace netsum
