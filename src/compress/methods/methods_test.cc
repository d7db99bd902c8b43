// Each method against a slow reference, and with unusual input.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "src/compress/methods/fields.h"
#include "src/compress/testing.h"
#include "src/kernels/half.h"

namespace netsum::compress::methods_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// By a stable sort.
std::vector<float> slow_top_k(const std::vector<float>& values, size_t k) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return std::fabs(values[a]) > std::fabs(values[b]); });
  std::vector<float> sent(values.size(), 0.0f);
  for (size_t i = 0; i < k; ++i) sent[order[i]] = values[order[i]];
  return sent;
}

CompressionOptions options_of(std::string_view method) {
  CompressionOptions options{.method = std::string(method)};
  if (method == "threshold") options.threshold = 0.5;
  return options;
}

TEST(MethodsTest, TopKSendsTheLargestElementsAndKeepsTheOthers) {
  for (const size_t n : {size_t{1}, size_t{2}, size_t{10}, size_t{999}, size_t{5000}}) {
    for (const double ratio : {1e-9, 0.001, 0.01, 0.3, 1.0}) {
      auto values = numbers(n, n);
      // Many equal magnitudes, of both signs.
      for (size_t i = 0; i < n; ++i)
        if (i % 3 == 0) values[i] = i % 2 == 0 ? 0.125f : -0.125f;
      const size_t k = std::max<size_t>(1, static_cast<size_t>(static_cast<double>(n) * ratio));
      Rank rank(*made({.method = "topk", .ratio = ratio}), n);
      rank.compress(values);
      const auto expected = slow_top_k(values, k);
      ASSERT_EQ(rank.payload<float>(), expected) << n << " " << ratio;
      EXPECT_EQ(rank.decompress(), expected);
      auto rest = values;
      for (size_t i = 0; i < n; ++i) rest[i] -= expected[i];
      ASSERT_EQ(rank.state("residual"), rest);
      // The contraction.
      EXPECT_LE(squares(rest),
                (1 - static_cast<double>(k) / static_cast<double>(n)) * squares(values) * (1 + 1e-9));
    }
  }
}

TEST(MethodsTest, KMayBeAboveTheNumberOfElements) {
  for (const char* const method : {"topk", "randomk"}) {
    Rank rank(*made({.method = method, .k = 1'000'000}), 100);
    rank.compress(numbers(100, 1));
    EXPECT_EQ(rank.decompress(), numbers(100, 1)) << method;
    EXPECT_THAT(rank.state("residual"), Each(0.0f));
  }
}

TEST(MethodsTest, SampledTopKSendsAboutAsMany) {
  constexpr size_t kCount = 1'000'000;
  const auto values = numbers(kCount, 4);
  Rank rank(*made({.method = "topk", .ratio = 0.05, .sampled = true}), kCount);
  rank.compress(values);
  const auto sent = rank.payload<float>();
  const auto zeros = static_cast<double>(std::count(sent.begin(), sent.end(), 0.0f));
  EXPECT_NEAR((kCount - zeros) / (0.05 * kCount), 1, 0.1);
  const auto rest = rank.state("residual");
  for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(sent[i] + rest[i], values[i]);
}

// Whether memory and gradient are added first, or while elements are selected.
TEST(MethodsTest, SampledTopKKeepsWhatItDoesNotSendInEveryStep) {
  constexpr size_t kCount = 400'000;
  Rank rank(*made({.method = "topk", .ratio = 0.1, .sampled = true, .decay = 0.5}), kCount);
  std::vector<float> memory(kCount, 0.0f);
  for (uint64_t step = 0; step < 3; ++step) {
    const auto gradient = numbers(kCount, step);
    rank.compress(gradient);
    const auto sent = rank.payload<float>();
    float least_sent = INFINITY, most_kept = 0;
    size_t count = 0;
    for (size_t i = 0; i < kCount; ++i) {
      memory[i] = 0.5f * memory[i] + gradient[i];
      if (sent[i] != 0) {
        ASSERT_EQ(sent[i], memory[i]);
        least_sent = std::min(least_sent, std::fabs(sent[i]));
        memory[i] = 0;
        ++count;
      }
      most_kept = std::max(most_kept, std::fabs(memory[i]));
    }
    ASSERT_EQ(rank.state("residual"), memory);
    EXPECT_GE(least_sent, most_kept);
    EXPECT_NEAR(static_cast<double>(count), 0.1 * kCount, 0.005 * kCount);
  }
  EXPECT_EQ(rank.tensor().step(), 3u);
}

TEST(MethodsTest, SampledTopKSendsEqualElements) {
  constexpr size_t kCount = 500'000;
  Rank rank(*made({.method = "topk", .ratio = 0.1, .sampled = true}), kCount);
  rank.compress(std::vector<float>(kCount, 0.5f));
  const auto sent = rank.payload<float>();
  EXPECT_EQ(std::count(sent.begin(), sent.end(), 0.5f), 50'000);
  EXPECT_EQ(std::count(sent.begin(), sent.begin() + 50'000, 0.5f), 50'000);
}

TEST(MethodsTest, TheShareOfAWarmUpFallsExponentially) {
  constexpr size_t kCount = 100'000;
  Rank rank(*made({.method = "topk", .ratio = 0.0025, .warmup_steps = 2}), kCount);
  for (const long expected : {25'000L, 2'500L, 250L, 250L}) {
    rank.compress(numbers(kCount, 8));
    const auto sent = rank.payload<float>();
    EXPECT_NEAR(static_cast<double>(static_cast<long>(kCount) - std::count(sent.begin(), sent.end(), 0.0f)),
                static_cast<double>(expected), 1);
  }
}

TEST(MethodsTest, ThresholdSendsWhatReachesIt) {
  Rank rank(*made({.method = "threshold", .threshold = 0.5}), 5);
  rank.compress({0.5f, -0.5f, 0.49999997f, 2.0f, -0.0f});
  EXPECT_THAT(rank.payload<float>(), ElementsAre(0.5f, -0.5f, 0.0f, 2.0f, 0.0f));
  EXPECT_THAT(rank.state("residual"), ElementsAre(0.0f, 0.0f, 0.49999997f, 0.0f, 0.0f));
}

TEST(MethodsTest, RandomKSendsTheSameElementsOnAllRanksAndOthersInEachStep) {
  constexpr size_t kCount = 103;
  constexpr int kSteps = 3000;
  const auto compression = made({.method = "randomk", .memory = "none", .k = 10, .seed = 77});
  std::vector<int> chosen(kCount, 0);
  std::set<std::vector<float>> sets;
  Rank one(*compression, kCount, 0, 2), other(*compression, kCount, 1, 2);
  std::vector<float> ones(kCount, 1.0f);
  for (int step = 0; step < kSteps; ++step) {
    one.compress(ones);
    other.compress(ones);
    ASSERT_EQ(one.decompress(), other.decompress());
    const auto values = one.decompress();
    ASSERT_EQ(std::count(values.begin(), values.end(), 0.0f), static_cast<long>(kCount) - 10);
    for (size_t i = 0; i < kCount; ++i) chosen[i] += values[i] != 0 ? 1 : 0;
    sets.insert(values);
  }
  EXPECT_EQ(sets.size(), static_cast<size_t>(kSteps));
  // Each in a stratum of 10 or 11: 6 standard deviations.
  for (size_t i = 0; i < kCount; ++i) {
    const double p = i < 33 ? 1.0 / 11 : 1.0 / 10;
    EXPECT_NEAR(chosen[i], kSteps * p, 6 * std::sqrt(kSteps * p * (1 - p))) << i;
  }
}

TEST(MethodsTest, RandomKWithAMemoryKeepsWhatItDoesNotSend) {
  const auto values = numbers(1000, 2);
  Rank rank(*made({.method = "randomk", .ratio = 0.1}), 1000);
  rank.compress(values);
  const auto sent = rank.decompress();
  const auto rest = rank.state("residual");
  EXPECT_EQ(std::count(sent.begin(), sent.end(), 0.0f), 900);
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(sent[i] + rest[i], values[i]);
}

TEST(MethodsTest, HalvesAreRounded) {
  const auto values = numbers(5000, 6);
  for (const DataType type : {DataType::kFloat16, DataType::kBFloat16}) {
    const bool is_float16 = type == DataType::kFloat16;
    Rank rank(*made({.method = is_float16 ? "fp16" : "bf16", .memory = "residual"}), values.size());
    rank.compress(values);
    const auto sent = rank.decompress();
    const auto rest = rank.state("residual");
    for (size_t i = 0; i < values.size(); ++i) {
      const float expected = is_float16 ? kernels::float16_to_float(kernels::float_to_float16(values[i]))
                                        : kernels::bfloat16_to_float(kernels::float_to_bfloat16(values[i]));
      ASSERT_EQ(sent[i], expected);
      ASSERT_EQ(rest[i], values[i] - expected);
    }
  }
}

// Every number of ranks, with numbers of 1, 2, 4 and 8 bits and those between: the largest and the smallest sums come out, whatever is
// beside them, and the lanes of all ranks together stay in the range of 32 bits.
TEST(MethodsTest, FieldsHoldTheSumsOfAnyNumberOfRanks) {
  constexpr size_t kCount = 333;
  const auto check = [&](const Fields& fields, int32_t least, int32_t most, int ranks) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks, numbers up to " + std::to_string(most));
    std::vector<uint32_t> sums(fields.lanes(kCount), 0);
    std::vector<int32_t> lanes(fields.lanes(kCount), -1), expected(kCount, 0);
    // Three patterns, of a third of the ranks each: all as large as possible, all as small, and both in turn.
    const int share = ranks < 3 ? 1 : ranks / 3;
    for (int pattern = 0; pattern < 3; ++pattern) {
      const int times = pattern == 0 ? ranks - 2 * (ranks < 3 ? 0 : share) : (ranks < 3 ? 0 : share);
      const auto number_of = [&](size_t i) {
        if (i % 5 == 0) return most;   // of all ranks
        if (i % 5 == 1) return least;  // of all ranks
        return pattern == 0 ? most : pattern == 1 ? least : i % 2 == 0 ? most : least;
      };
      fields.pack(kCount, lanes.data(), [&](size_t begin, size_t n, int32_t* codes) {
        for (size_t i = 0; i < n; ++i) codes[i] = number_of(begin + i);
      });
      for (size_t i = 0; i < kCount; ++i) expected[i] += times * number_of(i);
      for (size_t l = 0; l < lanes.size(); ++l) {
        // A lane as large as this one on all ranks still fits: it needs no wide lanes.
        ASSERT_LE(std::abs(static_cast<int64_t>(lanes[l])) * ranks, std::numeric_limits<int32_t>::max());
        sums[l] += static_cast<uint32_t>(times) * static_cast<uint32_t>(lanes[l]);
      }
    }
    std::vector<int32_t> received(sums.begin(), sums.end()), found(kCount);
    fields.unpack(kCount, received.data(),
                  [&](size_t begin, size_t n, const int32_t* of) { std::copy_n(of, n, &found[begin]); });
    ASSERT_EQ(found, expected);
  };
  for (int ranks = 1; ranks <= 512; ++ranks) {
    for (const uint32_t most : {1u, 3u, 7u, 15u, 31u, 127u, 32767u}) {
      check(Fields::of_signed(most, ranks), -static_cast<int32_t>(most), static_cast<int32_t>(most), ranks);
      check(Fields::of_unsigned(most, ranks), 0, static_cast<int32_t>(most), ranks);
      if (HasFatalFailure()) return;
    }
  }
}

// Bits on the wire for each element: as many as the sum of N ranks needs, and no more ranks fit.
TEST(MethodsTest, FieldsGrowWithTheNumberOfRanks) {
  for (uint32_t bits = 2; bits <= 16; ++bits) {
    for (const uint32_t most : {1u, 3u, 7u, 15u, 127u}) {
      // 2 N most + 1 sums fit the field.
      const auto ranks = static_cast<int>(((1u << bits) - 1) / (2 * most));
      if (ranks < 1 || ranks > 512) continue;
      EXPECT_LE(Fields::of_signed(most, ranks).bits(), bits);
      EXPECT_EQ(Fields::of_signed(most, ranks + 1).bits(), bits + 1) << most;
    }
  }
  EXPECT_EQ(Fields::of_unsigned(1, 4).per_lane(), 10u);
  EXPECT_EQ(Fields::of_unsigned(1, 8).per_lane(), 7u);
  // 4 bits (7 levels on either side): 8-bit fields for up to 18 ranks.
  EXPECT_EQ(Fields::of_signed(7, 1).per_lane(), 8u);
  EXPECT_EQ(Fields::of_signed(7, 18).per_lane(), 4u);
  EXPECT_EQ(Fields::of_signed(7, 19).per_lane(), 3u);
  // 2 bits (-1, 0, 1): 4-bit fields for up to 7 ranks.
  EXPECT_EQ(Fields::of_signed(1, 7).per_lane(), 8u);
  EXPECT_EQ(Fields::of_signed(1, 8).per_lane(), 6u);
}

TEST(MethodsTest, EfSignSendsSignsOfOneScale) {
  constexpr size_t kCount = 100;
  for (const size_t n : {size_t{1}, size_t{2}, size_t{5}, size_t{8}}) {
    std::vector<std::vector<float>> inputs;
    for (size_t r = 0; r < n; ++r) inputs.push_back(numbers(kCount, 30 + r));
    Job job(*made({.method = "efsign"}), kCount, static_cast<int>(n));
    const auto result = job.step(inputs);
    double scale = 0, before = 0, after = 0;
    for (const auto& input : inputs) {
      double sum = 0;
      for (const float value : input) sum += std::fabs(value);
      scale += sum / kCount / static_cast<double>(n);
      before += squares(input);
    }
    for (size_t r = 0; r < n; ++r) {
      for (size_t i = 0; i < kCount; ++i) {
        double signs = 0;
        for (const auto& input : inputs) signs += std::copysign(1.0, input[i]);
        ASSERT_NEAR(result[i], scale * signs / static_cast<double>(n), 1e-6);
        ASSERT_NEAR(job.rank(r).state("residual")[i], inputs[r][i] - std::copysign(scale, inputs[r][i]),
                    1e-6);
      }
      after += squares(job.rank(r).state("residual"));
    }
    EXPECT_NEAR(after, before - static_cast<double>(n * kCount) * scale * scale, 1e-5 * before);
  }
}

TEST(MethodsTest, SignsKeepAllOfAStepThatIsNotFinite) {
  for (const char* const method : {"efsign", "onebit"}) {
    Job job(*made({.method = method}), 3, 2);
    const auto result = job.step({{1.0f, -2.0f, kNaN}, {1.0f, 1.0f, 1.0f}});
    EXPECT_TRUE(std::isnan(result[0]) && std::isnan(result[2])) << method;
    EXPECT_THAT(job.rank(0).state("residual"), ElementsAre(1.0f, -2.0f, 0.0f));
    EXPECT_THAT(job.rank(1).state("residual"), ElementsAre(1.0f, 1.0f, 1.0f));
  }
}

TEST(MethodsTest, SignsAreCounted) {
  const auto compression = made({.method = "signsgd"});
  EXPECT_THAT(Job(*compression, 4, 3)
                  .step({{1.0f, -2.0f, 3.0f, 0.1f}, {-1.0f, -1.0f, 0.5f, -7.0f}, {1.0f, 9.0f, 0.0f, -1.0f}}),
              ElementsAre(1.0f, -1.0f, 1.0f, -1.0f));
  EXPECT_THAT(Job(*compression, 2, 2).step({{1.0f, -2.0f}, {-1.0f, -1.0f}}), ElementsAre(0.0f, -1.0f));
}

TEST(MethodsTest, LevelsOfACommonScaleAreAdded) {
  constexpr size_t kCount = 500;
  for (const int ranks : {1, 2, 4, 8, 64}) {
    for (const uint32_t levels : {1u, 4u, 127u, 32767u}) {
      const auto compression = made({.method = "qsgd", .levels = levels});
      std::vector<Rank> all;
      std::vector<float> agreed = {0};
      for (int r = 0; r < ranks; ++r) {
        all.emplace_back(*compression, kCount, r, ranks);
        float mine = 0;
        all.back().tensor().agree(numbers(kCount, 50 + static_cast<uint64_t>(r)).data(), &mine);
        agreed[0] = std::max(agreed[0], mine);
      }
      std::vector<int32_t> sums(all[0].tensor().shape().count, 0);
      std::vector<double> mean(kCount, 0);
      for (int r = 0; r < ranks; ++r) {
        Rank& rank = all[static_cast<size_t>(r)];
        const auto values = numbers(kCount, 50 + static_cast<uint64_t>(r));
        rank.compress(values, agreed);
        const auto lanes = rank.payload<int32_t>();
        for (size_t i = 0; i < lanes.size(); ++i) sums[i] += lanes[i];
        const auto mine = rank.decompress();
        for (size_t i = 0; i < kCount; ++i) {
          mean[i] += static_cast<double>(mine[i]) / ranks;
          // One of the two levels beside the value.
          const double level = static_cast<double>(mine[i]) / static_cast<double>(agreed[0]) * levels;
          ASSERT_NEAR(level, std::round(level), 1e-2);
          ASSERT_LT(std::fabs(mine[i] - values[i]), agreed[0] / static_cast<float>(levels) * 1.001f);
        }
      }
      const auto result = all[0].decompress(sums.data(), nullptr, ranks);
      for (size_t i = 0; i < kCount; ++i) ASSERT_NEAR(result[i], mean[i], 1e-6);
    }
  }
}

TEST(MethodsTest, RanksRoundIndependently) {
  const auto compression = made({.method = "terngrad"});
  Rank one(*compression, 1000, 0, 2), other(*compression, 1000, 1, 2);
  const std::vector<float> values(1000, 0.5f), agreed = {1.0f};
  float mine = 0;
  one.tensor().agree(values.data(), &mine);
  other.tensor().agree(values.data(), &mine);
  EXPECT_EQ(mine, 0.5f);
  one.compress(values, agreed);
  other.compress(values, agreed);
  const auto a = one.decompress(), b = other.decompress();
  EXPECT_NE(a, b);
  // Half of them are 1, within 6 standard deviations.
  EXPECT_NEAR(static_cast<double>(std::count(a.begin(), a.end(), 1.0f)), 500, 95);
}

TEST(MethodsTest, ValuesThatAreLevelsStayExact) {
  Rank rank(*made({.method = "qsgd", .levels = 4}), 7);
  const std::vector<float> values = {1.0f, -1.0f, 0.75f, -0.5f, 0.25f, 0.0f, -0.0f};
  for (int step = 0; step < 100; ++step) {
    rank.compress(values);
    ASSERT_EQ(rank.decompress(), values);
  }
}

TEST(MethodsTest, TensorsOfAnySizeAndZerosAndConstants) {
  for (const std::string_view method : compression_methods()) {
    SCOPED_TRACE(method);
    const auto compression = made(options_of(method));
    for (const size_t n : {size_t{0}, size_t{1}, size_t{2}, size_t{1000}}) {
      for (const float constant : {0.0f, -0.0f, 0.25f, -3.0f}) {
        Rank rank(*compression, n);
        for (int step = 0; step < 3; ++step) {
          rank.compress(std::vector<float>(n, constant));
          const auto sent = rank.decompress();
          for (size_t i = 0; i < n; ++i) {
            ASSERT_TRUE(std::isfinite(sent[i]));
            // A vote has no zero.
            if (constant == 0 && !method.starts_with("sign")) {
              ASSERT_EQ(sent[i], 0);
            }
          }
        }
      }
    }
  }
}

// With any number of elements that are not finite, anywhere: the result tells, and the memory is finite.
TEST(MethodsTest, NumbersThatAreNotFiniteArriveAndLeaveNothing) {
  for (const std::string_view method : compression_methods()) {
    SCOPED_TRACE(method);
    const auto compression = made(options_of(method));
    for (const size_t n : {size_t{1}, size_t{1000}}) {
      for (const float special : {kNaN, kInfinity, -kInfinity}) {
        for (const size_t how_many : {size_t{1}, n / 2 + 1, n}) {
          Rank rank(*compression, n);
          auto values = numbers(n, 9);
          rank.compress(values);
          rank.decompress();
          for (size_t i = 0; i < how_many; ++i) values[n - 1 - i] = special;
          rank.compress(values);
          const auto sent = rank.decompress();
          EXPECT_FALSE(
              std::all_of(sent.begin(), sent.end(), [](float value) { return std::isfinite(value); }));
          for (const CompressionState& part : rank.tensor().state())
            for (const float value : part.values)
              ASSERT_TRUE(std::isfinite(value)) << part.name << " " << special;
        }
      }
    }
  }
}

}  // namespace
}  // namespace netsum::compress::methods_test
