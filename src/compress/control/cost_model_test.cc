#include "src/compress/control/cost_model.h"

#include <gtest/gtest.h>

#include "src/base/rng.h"

namespace netsum::compress::cost_model_test {
namespace {

constexpr int64_t kMs = 1'000'000;  // in ns

// Level 1 has a quarter of the bytes, level 2 a hundredth.
Costs costs(int64_t byte_ps) {
  return {.latency_ns = 0,
          .byte_ps = byte_ps,
          .levels = {{.encode_ps = 0, .decode_ps = 0, .extra_ps = 0, .milli_bytes = 4000},
                     {.encode_ps = 1000, .decode_ps = 500, .extra_ps = 0, .milli_bytes = 1000},
                     {.encode_ps = 3000, .decode_ps = 1000, .extra_ps = 0, .milli_bytes = 40}}};
}

std::vector<BucketCost> buckets(std::vector<int64_t> compute_ms) {
  std::vector<BucketCost> made;
  for (const int64_t ms : compute_ms)
    made.push_back({.compute_ns = ms * kMs, .elements = 1'000'000, .other_bytes = 0, .most = 2});
  return made;
}

TEST(MedianTest, NoSingleSampleLeadsItAstray) {
  Median median;
  EXPECT_TRUE(median.empty());
  EXPECT_EQ(median.value_or(7), 7);
  median.add(10);
  EXPECT_EQ(median.value(), 10);
  median.add(1000);
  EXPECT_EQ(median.value(), 10);
  EXPECT_FALSE(median.full());
  median.add(11);
  EXPECT_EQ(median.value(), 11);
  median.add(12);
  EXPECT_EQ(median.value(), 12);
  median.add(500);
  EXPECT_EQ(median.value(), 12);
  median.add(501);
  EXPECT_EQ(median.value(), 500) << "two of three: a change";
}

TEST(CostModelTest, StepsAreThoseOfThePipeline) {
  // 8 ns a byte: 32 ms for an uncompressed bucket.
  const Costs gigabit = costs(8000);
  // Computed after 10, 20 ms; summed from 10 to 42, and to 74.
  EXPECT_EQ(step_ns(gigabit, buckets({10, 10}), {0, 0}), 74 * kMs);
  // Hidden: the backward pass takes longer.
  EXPECT_EQ(step_ns(gigabit, buckets({10, 100}), {0, 0}), 142 * kMs);
  // Encoded after 11, 22; summed from 11 to 19, from 22 to 30; decoded in half a millisecond.
  EXPECT_EQ(step_ns(gigabit, buckets({10, 10}), {1, 1}), 30'500'000);
  // Other bytes and the latency count for every bucket.
  Costs slow = gigabit;
  slow.latency_ns = kMs;
  auto more = buckets({10, 10});
  more[0].other_bytes = 125'000;
  EXPECT_EQ(step_ns(slow, more, {0, 0}), 77 * kMs);
}

TEST(CostModelTest, WhatIsHiddenIsNotCompressed) {
  // The last bucket cannot be hidden. The first one has 100 ms, which suffice.
  const Choice choice = choose(costs(8000), buckets({10, 100}), 50, 2);
  EXPECT_EQ(choice.levels, (Levels{0, 2}));
  EXPECT_EQ(choice.uncompressed_ns, 142 * kMs);
  EXPECT_EQ(choice.ns, step_ns(costs(8000), buckets({10, 100}), {0, 2}));
  // With less time, the least lossy level that does not hold back the second bucket: 8 ms fit, 32 do not.
  EXPECT_EQ(choose(costs(8000), buckets({10, 20}), 50, 2).levels, (Levels{1, 2}));
  // Also where encoding costs nothing.
  Costs free = costs(8000);
  for (LevelCost& level : free.levels) level.encode_ps = level.decode_ps = 0;
  EXPECT_EQ(choose(free, buckets({10, 100}), 50, 2).levels, (Levels{0, 2}));
}

TEST(CostModelTest, WhereNothingIsHiddenTheFastestIsTaken) {
  EXPECT_EQ(choose(costs(80'000), buckets({10}), 50, 2).levels, (Levels{2}));
  // 1 Gbit/s, one bucket: 42 ms, or 10 + 1 + 8 + 0.5, or 10 + 3 + 0.32 + 1.
  const Choice choice = choose(costs(8000), buckets({10}), 50, 2);
  EXPECT_EQ(choice.levels, (Levels{2}));
  EXPECT_EQ(choice.ns, 14'320'000);
}

TEST(CostModelTest, OffUnlessItPaysOff) {
  // 25 Gbit/s: 1.28 ms for the bucket, and encoding alone takes 1 ms.
  EXPECT_EQ(choose(costs(320), buckets({10}), 50, 2).levels, (Levels{0}));
  // 42 ms become 14.32: a part of 0.659.
  EXPECT_EQ(choose(costs(8000), buckets({10}), 660, 2).levels, (Levels{0}));
  EXPECT_EQ(choose(costs(8000), buckets({10}), 658, 2).levels, (Levels{2}));
}

TEST(CostModelTest, LimitsOfBucketsAreKept) {
  auto limited = buckets({10, 10, 10});
  limited[0].most = 1;
  limited[2].most = 0;
  const Choice choice = choose(costs(80'000), limited, 50, 2);
  EXPECT_LE(choice.levels[0], 1);
  EXPECT_EQ(choice.levels[1], 2);
  EXPECT_EQ(choice.levels[2], 0);
}

TEST(CostModelTest, ASlowerNetworkIsNeverCompressedLess) {
  for (const int64_t compute_ms : {1, 10, 100}) {
    uint8_t last = 0;
    int64_t last_ns = 0;
    for (int64_t byte_ps = 10; byte_ps < 10'000'000; byte_ps += byte_ps / 20 + 1) {
      const Choice choice = choose(costs(byte_ps), buckets({compute_ms}), 50, 2);
      EXPECT_GE(choice.levels[0], last) << byte_ps;
      EXPECT_GE(choice.uncompressed_ns, last_ns);
      last = choice.levels[0];
      last_ns = choice.uncompressed_ns;
    }
    EXPECT_EQ(last, 2);
  }
}

// Over all combinations of levels: close to the fastest, and nothing gentler in a single bucket is.
TEST(CostModelTest, ChoicesAreCloseToTheBestOfAll) {
  Rng random(7);
  for (int round = 0; round < 300; ++round) {
    Costs known = costs(static_cast<int64_t>(100 + random.below(40'000)));
    known.latency_ns = static_cast<int64_t>(random.below(1000)) * 1000;
    std::vector<BucketCost> some;
    for (size_t i = 0; i < 4; ++i)
      some.push_back({.compute_ns = static_cast<int64_t>(random.below(50)) * kMs,
                      .elements = 100'000 + random.below(3'000'000),
                      .other_bytes = random.below(100'000),
                      .most = static_cast<uint8_t>(random.below(3))});
    int64_t best = std::numeric_limits<int64_t>::max();
    for (size_t code = 0; code < 81; ++code) {
      Levels levels;
      for (size_t i = 0, rest = code; i < 4; ++i, rest /= 3)
        levels.push_back(static_cast<uint8_t>(std::min<size_t>(rest % 3, some[i].most)));
      best = std::min(best, step_ns(known, some, levels));
    }
    const Choice choice = choose(known, some, 1, 2);
    EXPECT_EQ(choice.ns, step_ns(known, some, choice.levels));
    EXPECT_LE(choice.ns, best + best / 20) << "round " << round;
    if (choice.levels == Levels(4, 0)) continue;
    for (size_t i = 0; i < 4; ++i) {
      if (choice.levels[i] == 0) continue;
      Levels gentler = choice.levels;
      gentler[i] = 0;
      EXPECT_GT(step_ns(known, some, gentler), best) << "round " << round << ", bucket " << i;
    }
  }
}

}  // namespace
}  // namespace netsum::compress::cost_model_test
