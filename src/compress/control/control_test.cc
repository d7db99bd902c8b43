#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "netsum/compression_control.h"
#include "src/compress/control/control_world.h"

namespace netsum::compress::control_test {
namespace {

constexpr double kSlow = 100e6, kFast = 40e9;

World world(double rate_bits, double noise = 0.02, uint64_t seed = 1) {
  World made(usual_levels(),
             {{.elements = 2'000'000, .compute_us = 100e3}, {.elements = 2'000'000, .compute_us = 50e3}}, 4,
             seed);
  made.rate_bits = rate_bits;
  made.noise = noise;
  return made;
}

std::vector<uint8_t> levels_of(ControlledJob& job) {
  const auto levels = job.rank(0).decision().levels;
  return {levels.begin(), levels.end()};
}

const std::vector<uint8_t> kOff = {0, 0};

std::unique_ptr<CompressionControl> made(CompressionControlOptions options = {
                                             .levels = {{.name = "none"}, {.name = "half"}}}) {
  auto control = compression_control(options);
  EXPECT_TRUE(control.ok()) << control.status().to_string();
  return std::move(control).value();
}

TEST(ControlTest, NothingIsCompressedOnAFastNetwork) {
  World fast = world(kFast);
  ControlledJob job(fast, {});
  for (int i = 0; i < 500; ++i) {
    job.step();
    ASSERT_EQ(levels_of(job), kOff);
  }
  EXPECT_EQ(job.rank(0).changes(), 0u);
}

TEST(ControlTest, NothingIsCompressedInTheWarmUp) {
  World slow = world(kSlow);
  ControlledJob job(slow, {.levels = {}, .warmup_steps = 30});
  for (int i = 0; i < 30; ++i) {
    job.step();
    ASSERT_EQ(levels_of(job), kOff);
  }
  for (int i = 0; i < 3; ++i) job.step();
  EXPECT_NE(levels_of(job), kOff);
  EXPECT_NE(job.rank(0).uncompressed_step_ns(), 0);
}

TEST(ControlTest, AChangeOfTheRateIsFollowedWithinTwentySteps) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    World changing = world(kFast, 0.05, seed);
    ControlledJob job(changing, {});
    for (int i = 0; i < 60; ++i) job.step();
    ASSERT_EQ(levels_of(job), kOff) << seed;
    changing.rate_bits = kSlow;
    for (int i = 0; i < 20; ++i) job.step();
    EXPECT_EQ(levels_of(job).back(), 3) << seed << ": the last bucket is never hidden";
    for (int i = 0; i < 100; ++i) job.step();
    changing.rate_bits = kFast;
    for (int i = 0; i < 20; ++i) job.step();
    EXPECT_EQ(levels_of(job), kOff) << seed;
  }
}

// Small probes pass such links as if they were as fast as the machine.
TEST(ControlTest, ABurstIsNotTakenForAFastNetwork) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    World shaped = world(kSlow, 0.05, seed);
    shaped.burst_bytes = 128e3;
    ControlledJob job(shaped, {});
    for (int i = 0; i < 60; ++i) job.step();
    for (int i = 0; i < 300; ++i) {
      job.step();
      ASSERT_EQ(levels_of(job).back(), 3) << seed << ", step " << job.rank(0).step();
    }
    shaped.rate_bits = kFast;
    for (int i = 0; i < 20; ++i) job.step();
    EXPECT_EQ(levels_of(job), kOff) << seed;
  }
}

TEST(ControlTest, ASlowerNetworkIsFoundThoughProbesPassItsBurst) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    World shaped = world(1e9, 0.05, seed);
    shaped.burst_bytes = 128e3;
    ControlledJob job(shaped, {});
    for (int i = 0; i < 60; ++i) job.step();
    ASSERT_GT(levels_of(job).back(), 0) << seed;
    shaped.rate_bits = 50e6;
    for (int i = 0; i < 20; ++i) job.step();
    EXPECT_EQ(levels_of(job).back(), 3) << seed;
    EXPECT_NEAR(job.rank(0).bits_per_second(), 50e6, 25e6) << seed;
  }
}

TEST(ControlTest, LossIsFollowedAsARateIs) {
  World lossy = world(kFast);
  ControlledJob job(lossy, {});
  for (int i = 0; i < 60; ++i) job.step();
  ASSERT_EQ(levels_of(job), kOff);
  lossy.loss = 0.1;  // 571 of a bucket's packets: 36 ms
  for (int i = 0; i < 20; ++i) job.step();
  EXPECT_GT(levels_of(job).back(), 0);
}

TEST(ControlTest, LevelsDoNotOscillateOnANetworkThatStaysAsItIs) {
  // Rates at which levels cost about the same, and much noise.
  for (double rate = 1e9; rate < 30e9; rate *= 1.2) {
    World same = world(rate, 0.1, static_cast<uint64_t>(rate));
    ControlledJob job(same, {});
    for (int i = 0; i < 1000; ++i) job.step();
    EXPECT_LE(job.rank(0).changes(), 40u) << rate;
  }
}

TEST(ControlTest, BetweenTwoChangesThereAreAtLeastFourSteps) {
  World same = world(3e9, 0.3);
  ControlledJob job(same, {});
  uint64_t last = 0;
  for (int i = 0; i < 2000; ++i) {
    job.step();
    if (job.rank(0).change().empty()) continue;
    const uint64_t step = job.rank(0).step();
    EXPECT_TRUE(last == 0 || step >= last + 4) << step;
    last = step;
  }
  EXPECT_NE(last, 0u);
}

TEST(ControlTest, AnExpectationThatIsWrongIsTriedOnceAndGivenUp) {
  auto levels = usual_levels();
  levels[3].extra_ns = 200;  // the sum of what is selected takes 400 ms a bucket
  levels[2].bytes_per_element = levels[1].bytes_per_element = 4;
  World other(levels, world(kSlow).buckets(), 2, 1);
  other.rate_bits = 2e9;
  other.noise = 0.02;
  ControlledJob job(other, {});
  int tried = 0;
  for (int i = 0; i < 500; ++i) {
    job.step();
    tried += levels_of(job).back() == 3 ? 1 : 0;
  }
  EXPECT_GE(tried, 4);
  EXPECT_LE(tried, 20);
}

TEST(ControlTest, RanksThatMeasureDifferentlyDecideAlike) {
  World uneven = world(1e9, 0.2);
  uneven.slow_rank = 2;
  ControlledJob job(uneven, {});
  for (int i = 0; i < 300; ++i) {
    uneven.rate_bits = i % 100 < 50 ? 300e6 : 5e9;
    job.step();  // asserts it
  }
  EXPECT_GT(job.rank(0).changes(), 2u);
  for (size_t rank = 1; rank < job.ranks(); ++rank) EXPECT_EQ(job.rank(rank).state(), job.rank(0).state());
}

TEST(ControlTest, ALateRankDoesNotMakeTheNetworkSlow) {
  World late = world(kFast, 0);
  late.slow_rank = 5;  // the others wait for their sums for half a second
  ControlledJob job(late, {});
  for (int i = 0; i < 100; ++i) job.step();
  EXPECT_EQ(levels_of(job), kOff);
  EXPECT_NEAR(job.rank(0).bits_per_second(), kFast, 0.1 * kFast);
}

TEST(ControlTest, GradientsThatChangeAreCompressedGently) {
  World slow = world(kSlow);
  ControlledJob job(slow, {});
  const auto run = [&](int steps, double norm) {
    job.norms.back().gradient = norm;
    for (int i = 0; i < steps; ++i) job.step();
  };
  run(100, 1);
  ASSERT_EQ(levels_of(job).back(), 3);
  run(41, 0.4);
  EXPECT_EQ(levels_of(job).back(), 1) << "two of three norms are the half of what they were";
  EXPECT_GT(levels_of(job).front(), 1) << "the other bucket's gradient does not change";
  run(80, 0.4);
  EXPECT_EQ(levels_of(job).back(), 3);
  run(41, 0.7);
  EXPECT_EQ(levels_of(job).back(), 1) << "half more";
  run(80, 0.7);
  run(60, 0.9);
  EXPECT_EQ(levels_of(job).back(), 3) << "a smaller change";
}

TEST(ControlTest, ALargeResidualSendsABucketBackByOneLevel) {
  World slow = world(kSlow);
  ControlledJob job(slow, {.levels = {}, .residual_cap = 10});
  const auto run = [&](int steps, double residual) {
    job.norms = {{.gradient = 2, .residual = 1}, {.gradient = 2, .residual = residual}};
    for (int i = 0; i < steps; ++i) job.step();
  };
  run(100, 19);
  ASSERT_EQ(levels_of(job), (std::vector<uint8_t>{3, 3}));
  run(15, 21);
  EXPECT_EQ(levels_of(job), (std::vector<uint8_t>{3, 2}));
  run(60, 1);
  EXPECT_EQ(levels_of(job), (std::vector<uint8_t>{3, 3}));
}

TEST(ControlTest, RanksThatDecidedDifferentlyAreFound) {
  const auto a = made(), b = made();
  const std::vector<ControlledBucket> buckets = {{.elements = 1000, .other_bytes = 0}};
  for (const auto& control : {a.get(), b.get()}) ASSERT_TRUE(control->set_buckets(buckets).ok());
  ASSERT_TRUE(a->begin_step({}).ok());
  ASSERT_TRUE(b->begin_step({}).ok());
  ASSERT_TRUE(b->begin_step({}).ok());  // one more
  StepRecord record;
  record.buckets.resize(1);
  std::vector<int32_t> agreed(a->decision().agreement_values), other(agreed.size());
  ASSERT_TRUE(a->measurement(record, agreed).ok());
  ASSERT_TRUE(b->measurement(record, other).ok());
  for (size_t i = 0; i < agreed.size(); ++i) agreed[i] = std::max(agreed[i], other[i]);
  EXPECT_EQ(a->begin_step(agreed).code(), ErrorCode::kMismatch);
  EXPECT_EQ(b->begin_step(agreed).code(), ErrorCode::kMismatch);
}

TEST(ControlTest, ContinuesFromItsState) {
  World changing = world(kSlow, 0.05);
  ControlledJob job(changing, {});
  for (int i = 0; i < 70; ++i) job.step();
  // Another job takes over: its first record is of the last step of the first one.
  World other = changing;
  ControlledJob next(other, {});
  for (size_t rank = 0; rank < next.ranks(); ++rank)
    ASSERT_TRUE(next.rank(rank).restore(job.rank(0).state()).ok());
  EXPECT_EQ(next.rank(1).state(), job.rank(0).state());
  EXPECT_EQ(levels_of(next), levels_of(job));
  next.step();
  EXPECT_EQ(next.rank(0).step(), 71u);
  EXPECT_EQ(levels_of(next), levels_of(job)) << "and does not begin with a warm-up";
}

TEST(ControlTest, StatesOfOthersAreRefused) {
  const auto control = made();
  ASSERT_TRUE(control->set_buckets(std::vector<ControlledBucket>(2)).ok());
  const std::vector<int64_t> good = control->state();
  EXPECT_TRUE(control->restore(good).ok());
  for (const size_t size : {size_t{0}, size_t{1}, good.size() - 1})
    EXPECT_EQ(control->restore(std::span(good).first(size)).code(), ErrorCode::kInvalidArgument);
  std::vector<int64_t> bad = good;
  bad[1] = 3;
  EXPECT_EQ(control->restore(bad).code(), ErrorCode::kInvalidArgument);
  // The levels: of now and of three steps, each of these with the length of a probe.
  const size_t tail = good.size() - (2 + 3 * 3);
  for (const size_t at : {tail, tail + 1, tail + 2, tail + 3, tail + 5, tail + 6, tail + 9}) {
    for (const int64_t level : {-1, 2}) {
      bad = good;
      bad[at] = level;
      EXPECT_EQ(control->restore(bad).code(), ErrorCode::kInvalidArgument) << at;
    }
  }
  bad = good;
  bad[tail + 4] = 1 << 20;
  EXPECT_TRUE(control->restore(bad).ok()) << "the length of a probe is no level";
}

TEST(ControlTest, BadArgumentsAreRefused) {
  const auto refused = [](CompressionControlOptions options) {
    auto control = compression_control(options);
    return !control.ok() && control.status().code() == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused({.levels = std::vector<ControlledLevel>(17)}));
  EXPECT_TRUE(refused({.levels = {{.name = "x", .bytes_per_element = -1}}}));
  EXPECT_TRUE(refused(
      {.levels = {{.name = "x", .encode_ns_per_element = std::numeric_limits<double>::quiet_NaN()}}}));
  EXPECT_TRUE(refused({.levels = {{.name = "x"}}, .payoff = 0}));
  EXPECT_TRUE(refused({.levels = {{.name = "x"}}, .payoff = 1}));
  EXPECT_TRUE(refused({.levels = {{.name = "x"}}, .residual_cap = 0}));
  const auto control = made();
  EXPECT_EQ(control->set_buckets(std::vector<ControlledBucket>(5000)).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(
      control->set_buckets(std::vector<ControlledBucket>(2, {.elements = ~uint64_t{0} / 2, .other_bytes = 0}))
          .code(),
      ErrorCode::kInvalidArgument);
  ASSERT_TRUE(control->set_buckets(std::vector<ControlledBucket>(2)).ok());
  EXPECT_EQ(control->begin_step(std::vector<int32_t>(3)).code(), ErrorCode::kInvalidArgument);
  ASSERT_TRUE(control->begin_step({}).ok());
  std::vector<int32_t> mine(control->decision().agreement_values);
  StepRecord record;
  EXPECT_EQ(control->measurement(record, mine).code(), ErrorCode::kInvalidArgument);
  record.buckets.resize(2);
  EXPECT_EQ(control->measurement(record, std::span(mine).first(2)).code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(control->measurement(record, mine).ok());
}

// Whatever ranks measure, no arithmetic overflows (the sanitizers look), and levels are those of the list.
TEST(ControlTest, NumbersOutOfAllReason) {
  Rng random(3);
  const auto control = made({.levels = {{.name = "a"},
                                        {.name = "b", .bytes_per_element = 1e5},
                                        {.name = "c", .bytes_per_element = 0}},
                             .warmup_steps = 0});
  ASSERT_TRUE(control
                  ->set_buckets(std::vector<ControlledBucket>{
                      {.elements = 1, .other_bytes = 0},
                      {.elements = (uint64_t{1} << 32) - 1, .other_bytes = uint64_t{1} << 34},
                      {.elements = 0, .other_bytes = 0}})
                  .ok());
  for (int i = 0; i < 3000; ++i) {
    std::vector<int32_t> agreed(4 + 3 * 8);
    for (int32_t& number : agreed) {
      const int32_t edges[] = {0, 1, -1, std::numeric_limits<int32_t>::max(),
                               std::numeric_limits<int32_t>::min()};
      number = random.chance(0.5) ? edges[random.below(5)] : static_cast<int32_t>(random.next());
    }
    agreed[0] = 5;
    agreed[1] = -5;
    ASSERT_TRUE(control->begin_step(agreed).ok());
    for (const uint8_t level : control->decision().levels) ASSERT_LT(level, 3);
    EXPECT_EQ(control->decision().levels[2], 0) << "there is nothing to compress";
  }
}

TEST(ControlTest, OtherBucketsStartUncompressedAndKeepWhatIsKnown) {
  World slow = world(kSlow);
  ControlledJob job(slow, {});
  for (int i = 0; i < 60; ++i) job.step();
  ASSERT_NE(levels_of(job), kOff);
  CompressionControl& control = job.rank(0);
  ASSERT_TRUE(
      control.set_buckets(std::vector<ControlledBucket>(3, {.elements = 1000, .other_bytes = 0})).ok());
  ASSERT_TRUE(control.begin_step({}).ok());
  EXPECT_EQ(levels_of(job), (std::vector<uint8_t>{0, 0, 0}));
  EXPECT_GT(control.bits_per_second(), 0);
}

// Nothing but what a trace has decides.
TEST(TraceTest, DecisionsFollowFromIt) {
  using Json = nlohmann::ordered_json;
  World changing = world(kSlow, 0.1);
  ControlledJob job(changing, {});
  CompressionControl& control = job.rank(2);
  const Json head = Json::parse(control.trace_head()), of_buckets = Json::parse(control.trace_buckets());
  CompressionControlOptions options;
  for (const Json& level : head.at("levels"))
    options.levels.push_back({.name = level.at("name"),
                              .bytes_per_element = level.at("bytes_per_element"),
                              .encode_ns_per_element = level.at("encode_ns_per_element"),
                              .decode_ns_per_element = level.at("decode_ns_per_element")});
  options.warmup_steps = head.at("warmup_steps");
  const auto other = compression_control(options);
  ASSERT_TRUE(other.ok()) << other.status().to_string();
  std::vector<ControlledBucket> buckets;
  for (size_t i = 0; i < of_buckets.at("elements").size(); ++i)
    buckets.push_back(
        {.elements = of_buckets.at("elements")[i], .other_bytes = of_buckets.at("other_bytes")[i]});
  ASSERT_TRUE((*other)->set_buckets(buckets).ok());
  ASSERT_TRUE((*other)->restore(of_buckets.at("state").get<std::vector<int64_t>>()).ok());
  for (int i = 0; i < 200; ++i) {
    changing.rate_bits = i % 100 < 50 ? 300e6 : 20e9;
    job.step();
    const std::string line = control.trace_step();
    ASSERT_TRUE((*other)->begin_step(Json::parse(line).at("agreed").get<std::vector<int32_t>>()).ok());
    ASSERT_EQ((*other)->trace_step(), line);
  }
  EXPECT_GT(control.changes(), 1u);
  EXPECT_EQ((*other)->state(), control.state());
}

}  // namespace
}  // namespace netsum::compress::control_test
