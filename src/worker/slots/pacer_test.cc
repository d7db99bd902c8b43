#include "src/worker/slots/pacer.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "src/base/rng.h"
#include "src/bursts/bursts.h"

namespace netsum::pacer_test {
namespace {

TEST(Pacer, StartsFullAndRefillsAtTheRate) {
  Pacer pacer(1'000'000, 3000);  // a byte per microsecond
  EXPECT_EQ(pacer.ready_us(50, 3000), 50);
  pacer.sent(50, 3000);
  EXPECT_EQ(pacer.ready_us(50, 1500), 1550);
  EXPECT_EQ(pacer.ready_us(1549, 1500), 1550);
  EXPECT_EQ(pacer.ready_us(1550, 1500), 1550);
  pacer.sent(1550, 1500);
  EXPECT_EQ(pacer.ready_us(1000, 1), 1001) << "a clock that steps back gives no tokens";
}

TEST(Pacer, AnIdleBucketHoldsNoMoreThanTheBurst) {
  Pacer pacer(50'000'000'000, 3000);
  EXPECT_EQ(pacer.ready_us(INT64_MAX / 2, 3000), INT64_MAX / 2);
  pacer.sent(INT64_MAX / 2, 3000);
  EXPECT_GT(pacer.ready_us(INT64_MAX / 2, 1), INT64_MAX / 2);
}

TEST(Pacer, RandomSendersObeyTheEnvelope) {
  const char* given = std::getenv("NETSUM_SIM_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 41;
  SCOPED_TRACE("replay: NETSUM_SIM_SEED=" + std::to_string(seed));
  Rng rng(seed);
  for (int run = 0; run < 100; ++run) {
    const uint64_t rate = 1'000'000 + rng.below(1'000'000'000);
    const uint64_t burst = 1500 + rng.below(100'000);
    Pacer pacer(rate, burst);
    std::vector<bursts::Arrival> log;
    int64_t now_us = static_cast<int64_t>(rng.below(1'000'000));
    for (int i = 0; i < 500; ++i) {
      // Pauses come after the bucket has been used up once.
      if (i > 200 && rng.chance(0.02)) now_us += static_cast<int64_t>(rng.below(1'000'000));
      const uint64_t bytes = 1 + rng.below(1500);
      now_us = pacer.ready_us(now_us, bytes);
      pacer.sent(now_us, bytes);
      log.push_back({now_us * 1000, bytes});
    }
    // B(rate) is the maximum over tau of E(tau) - rate tau.
    ASSERT_LE(bursts::backlog(log, rate), static_cast<double>(burst) + 1e-3) << "run " << run;  // rounded
    ASSERT_GT(bursts::backlog(log, rate), static_cast<double>(burst) - 3000) << "it may be used up";
  }
}

}  // namespace
}  // namespace netsum::pacer_test
