// Methods with a number for each block (int8, int4, thc, blocktopk), and those with signs and a memory of their own.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "src/compress/methods/fields.h"
#include "src/compress/testing.h"

namespace netsum::compress::blocks_test {
namespace {

using ::testing::ElementsAre;

std::vector<std::vector<float>> gradients(size_t ranks, size_t count, uint64_t step) {
  std::vector<std::vector<float>> all;
  for (size_t r = 0; r < ranks; ++r) all.push_back(numbers(count, 1000 * step + r));
  return all;
}

float largest_of(const std::vector<std::vector<float>>& all, size_t begin, size_t end) {
  float largest = 0;
  for (const auto& values : all)
    for (size_t i = begin; i < std::min(end, values.size()); ++i)
      largest = std::max(largest, std::fabs(values[i]));
  return largest;
}

TEST(IntegersTest, EveryBlockIsRoundedToLevelsOfItsLargestMagnitude) {
  constexpr size_t kCount = 1000;
  for (const char* const method : {"int8", "int4"}) {
    const float levels = std::string_view(method) == "int8" ? 127 : 7;
    for (const size_t ranks : {size_t{1}, size_t{3}, size_t{8}}) {
      for (const uint32_t block : {1u, 60u, 256u, 4096u}) {
        Job job(*made({.method = method, .block = block}), kCount, static_cast<int>(ranks));
        auto inputs = gradients(ranks, kCount, block);
        inputs[0][999] = 1000;  // coarse levels for its block, and no other
        const auto found = job.step(inputs);
        for (size_t i = 0; i < kCount; ++i) {
          const float scale = largest_of(inputs, i / block * block, (i / block + 1) * block);
          double mean = 0;
          for (size_t r = 0; r < ranks; ++r) {
            const double exact = static_cast<double>(inputs[r][i]) / scale * static_cast<double>(levels);
            mean += std::nearbyint(exact) * scale / static_cast<double>(levels) / static_cast<double>(ranks);
            const float rest = job.rank(r).state("residual")[i];
            ASSERT_LE(std::fabs(rest), scale / levels / 2 * 1.0001f);
          }
          // Halves may be rounded to either side.
          ASSERT_NEAR(found[i], mean, static_cast<double>(scale / levels) * 1.0001) << i;
          double received = 0;
          for (size_t r = 0; r < ranks; ++r)
            received +=
                (static_cast<double>(inputs[r][i]) - static_cast<double>(job.rank(r).state("residual")[i])) /
                static_cast<double>(ranks);
          ASSERT_NEAR(found[i], received, static_cast<double>(scale) * 1e-6);
        }
      }
    }
  }
}

TEST(IntegersTest, LanesHaveRoomForTheSumsOfAllRanks) {
  // 127 levels on either side: sums of 4 ranks have 10 bits, those of 8 ranks 11.
  EXPECT_EQ(Rank(*made({.method = "int8"}), 600, 0, 4).tensor().shape().count, 200u);
  EXPECT_EQ(Rank(*made({.method = "int8"}), 600, 0, 8).tensor().shape().count, 300u);
  EXPECT_EQ(Rank(*made({.method = "int4"}), 600, 0, 4).tensor().shape().count, 120u);
  EXPECT_EQ(Rank(*made({.method = "int4"}), 600, 0, 8).tensor().shape().count, 150u);
  // One byte for each element, up to 127 ranks.
  for (int ranks = 1; ranks <= 127; ++ranks)
    ASSERT_EQ(Rank(*made({.method = "lanes8"}), 600, 0, ranks).tensor().shape().count, 150u);
  EXPECT_EQ(Rank(*made({.method = "lanes8"}), 600, 0, 128).tensor().shape().count, 200u);
}

// The slow reference of lanes8, in double, for several steps with what remains of them.
TEST(IntegersTest, EightBitLanesAreRoundedToAsManyLevelsAsTheSumAllows) {
  constexpr size_t kCount = 700, kBlock = 64;
  for (const size_t ranks : {size_t{1}, size_t{2}, size_t{3}, size_t{8}, size_t{64}, size_t{130}}) {
    const double levels = std::max(1.0, std::floor(127.0 / static_cast<double>(ranks)));
    Job job(*made({.method = "lanes8", .block = kBlock}), kCount, static_cast<int>(ranks));
    std::vector<std::vector<double>> memory(ranks, std::vector<double>(kCount, 0));
    for (uint64_t step = 0; step < 3; ++step) {
      const auto inputs = gradients(ranks, kCount, step);
      const auto found = job.step(inputs);
      for (size_t r = 0; r < ranks; ++r)
        for (size_t i = 0; i < kCount; ++i) memory[r][i] += static_cast<double>(inputs[r][i]);
      for (size_t begin = 0; begin < kCount; begin += kBlock) {
        double scale = 0;
        for (const auto& of_rank : memory)
          for (size_t i = begin; i < std::min(kCount, begin + kBlock); ++i)
            scale = std::max(scale, std::fabs(of_rank[i]));
        for (size_t i = begin; i < std::min(kCount, begin + kBlock); ++i) {
          double mean = 0;
          for (size_t r = 0; r < ranks; ++r) {
            const double rest = static_cast<double>(job.rank(r).state("residual")[i]);
            ASSERT_LE(std::fabs(rest), scale / levels / 2 * 1.001);
            const double sent = memory[r][i] - rest;
            const double level = sent / scale * levels;
            ASSERT_NEAR(level, std::round(level), 1e-3) << "a level was sent";
            mean += sent / static_cast<double>(ranks);
            memory[r][i] = rest;
          }
          ASSERT_NEAR(static_cast<double>(found[i]), mean, scale * 1e-5);
        }
      }
    }
  }
}

TEST(IntegersTest, TheResidualDecays) {
  constexpr size_t kCount = 300;
  Job job(*made({.method = "int4", .decay = 0.5}), kCount, 1);
  const auto first = numbers(kCount, 1), second = numbers(kCount, 2);
  job.step({first});
  const auto rest = job.rank(0).state("residual");
  const auto sent = job.step({second});
  for (size_t i = 0; i < kCount; ++i)
    ASSERT_NEAR(sent[i] + job.rank(0).state("residual")[i], second[i] + 0.5f * rest[i], 1e-6);
}

TEST(IntegersTest, ARotationSpreadsOutliers) {
  constexpr size_t kCount = 4096;
  auto values = numbers(kCount, 1);
  for (size_t i = 0; i < kCount; i += 256) values[i + i / 256] = 30;
  const auto error_of = [&](bool rotated) {
    Job job(*made({.method = "int4", .rotated = rotated}), kCount, 1);
    job.step({values});
    return squares(job.rank(0).state("residual"));
  };
  EXPECT_LT(error_of(true), 0.5 * error_of(false));
}

TEST(IntegersTest, WhatWasSentAndWhatRemainsIsTheTensorAlsoIfItIsRotated) {
  for (const char* const method : {"int4", "thc"}) {
    for (const size_t count : {size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{1000}}) {
      CompressionOptions options{.method = method, .block = 64};
      options.rotated = options.method == "int4";
      Job job(*made(options), count, 3);
      const auto inputs = gradients(3, count, count);
      const auto found = job.step(inputs);
      for (size_t i = 0; i < count; ++i) {
        double received = 0;
        for (size_t r = 0; r < 3; ++r)
          received +=
              (static_cast<double>(inputs[r][i]) - static_cast<double>(job.rank(r).state("residual")[i])) / 3;
        ASSERT_NEAR(found[i], received, 1e-5) << method << " " << count;
      }
    }
  }
}

// A normal distribution of 15 levels up to 2.15 deviations, whose rounding at random adds at most a quarter of a squared step.
TEST(IntegersTest, ThcLosesLittle) {
  constexpr size_t kCount = 8192;
  const auto values = numbers(kCount, 3);
  Job job(*made({.method = "thc", .block = 1024}), kCount, 1);
  job.step({values});
  const double step = 2.1539 / 7;
  const double lost = squares(job.rank(0).state("residual")) / squares(values);
  EXPECT_LT(lost, step * step / 4 + 0.03);
  EXPECT_GT(lost, 0.001);
}

TEST(IntegersTest, OnlyTheBlockOfANumberThatIsNotFiniteIsLost) {
  Job job(*made({.method = "int8", .block = 4}), 8, 2);
  const std::vector<float> good = {1, 2, 3, 4, 5, 6, 7, 8};
  auto bad = good;
  bad[1] = std::numeric_limits<float>::infinity();
  const auto found = job.step({bad, good});
  EXPECT_TRUE(std::isnan(found[0]) && std::isnan(found[3]));
  EXPECT_NEAR(found[4], 5, 8.0 / 127);
  bad[1] = 0;
  const auto rest = job.rank(0).state("residual");
  EXPECT_TRUE(std::equal(rest.begin(), rest.begin() + 4, bad.begin()));
}

TEST(BlockTopKTest, AllRanksSendTheBlocksOfTheLargestMeanNorm) {
  constexpr size_t kBlock = 16, kRanks = 3;
  for (const size_t count : {size_t{1}, size_t{15}, size_t{16}, size_t{100}, size_t{1000}}) {
    Job job(*made({.method = "blocktopk", .ratio = 0.2, .block = kBlock}), count, kRanks);
    std::vector<std::vector<float>> memory(kRanks, std::vector<float>(count, 0));
    for (uint64_t step = 0; step < 4; ++step) {
      const auto inputs = gradients(kRanks, count, step);
      const auto found = job.step(inputs);
      const size_t blocks = (count + kBlock - 1) / kBlock;
      std::vector<std::pair<double, size_t>> order(blocks);
      for (size_t r = 0; r < kRanks; ++r)
        for (size_t i = 0; i < count; ++i) memory[r][i] += inputs[r][i];
      for (size_t b = 0; b < blocks; ++b) {
        order[b].second = b;
        for (size_t r = 0; r < kRanks; ++r) {
          double norm = 0;
          for (size_t i = b * kBlock; i < std::min(count, (b + 1) * kBlock); ++i)
            norm += std::pow(memory[r][i], 2);
          order[b].first -= std::sqrt(norm);
        }
      }
      std::sort(order.begin(), order.end());
      const size_t wanted = std::max<size_t>(1, count / 5);
      std::vector<float> expected(count, 0.0f);
      for (size_t b = 0; b < (wanted + kBlock - 1) / kBlock; ++b)
        for (size_t i = order[b].second * kBlock; i < std::min(count, (order[b].second + 1) * kBlock); ++i) {
          for (auto& of_rank : memory) {
            expected[i] += of_rank[i] / kRanks;
            of_rank[i] = 0;
          }
        }
      for (size_t i = 0; i < count; ++i) ASSERT_NEAR(found[i], expected[i], 1e-5) << count << " " << i;
      for (size_t r = 0; r < kRanks; ++r) ASSERT_EQ(job.rank(r).state("residual"), memory[r]);
    }
  }
}

// The scales are the means of all elements of a sign on all ranks, also where ranks have few of them.
TEST(OneBitTest, SignsHaveTwoScalesOfAllRanks) {
  const std::vector<std::vector<float>> inputs = {{1, 2, 3, -4}, {-1, -2, -3, -6}, {5, -8, 1, 0}};
  const double plus = (1 + 2 + 3 + 5 + 1 + 0) / 6.0, minus = -(4 + 1 + 2 + 3 + 6 + 8) / 6.0;
  Job job(*made({.method = "onebit"}), 4, 3);
  const auto found = job.step(inputs);
  double before = 0, after = 0;
  for (size_t i = 0; i < 4; ++i) {
    double mean = 0;
    for (size_t r = 0; r < 3; ++r) {
      const double sent = inputs[r][i] < 0 ? minus : plus;
      mean += sent / 3;
      const double rest = job.rank(r).state("residual")[i];
      EXPECT_NEAR(rest, inputs[r][i] - sent, 1e-5);
      before += std::pow(inputs[r][i], 2);
      after += rest * rest;
    }
    EXPECT_NEAR(found[i], mean, 1e-5);
  }
  EXPECT_NEAR(after, before - 12 * (0.5 * plus * plus + 0.5 * minus * minus), 1e-4);
}

// The network rounds every mean: the share of what is rare must not be the rest of what is not.
TEST(OneBitTest, TheScaleOfARareSignIsRightWhereSharesAreRounded) {
  constexpr size_t kMany = 1 << 20;
  std::vector<float> values(kMany, 1.0f);
  values[77] = -4;
  const auto compression = made({.method = "onebit"});
  for (const float rounding : {1.0f, 1 - 0x1p-21f, 1 + 0x1p-21f}) {
    Rank rank(*compression, kMany);
    rank.compress(values);
    std::vector<float> side = rank.side();
    for (float& number : side) number *= rounding;
    const auto lanes = rank.payload<int32_t>();
    const auto found = rank.decompress(lanes.data(), side.data(), 1);
    EXPECT_NEAR(found[77], -4, 1e-4);
    EXPECT_NEAR(found[0], 1, 1e-4);
  }
}

// What has no gradient does not move, whatever the sign of its zero.
TEST(SignumTest, ZerosHaveNoVote) {
  for (const char* const method : {"signsgd", "signum"}) {
    Job job(*made({.method = method}), 4, 3);
    for (int step = 0; step < 3; ++step) {
      const auto found =
          job.step({{0.0f, -0.0f, 1.0f, -1.0f}, {0.0f, -0.0f, -0.0f, 0.0f}, {-0.0f, -0.0f, 0.0f, 0.0f}});
      EXPECT_THAT(found, ElementsAre(0.0f, 0.0f, 1.0f, -1.0f)) << method;
    }
  }
}

TEST(SignumTest, SendsTheSignsOfAMomentum) {
  constexpr size_t kCount = 100;
  Job job(*made({.method = "signum", .momentum = 0.75}), kCount, 3);
  std::vector<std::vector<float>> momentum(3, std::vector<float>(kCount, 0));
  for (uint64_t step = 0; step < 10; ++step) {
    const auto inputs = gradients(3, kCount, step);
    const auto found = job.step(inputs);
    for (size_t i = 0; i < kCount; ++i) {
      int votes = 0;
      for (size_t r = 0; r < 3; ++r) {
        momentum[r][i] = 0.75f * momentum[r][i] + 0.25f * inputs[r][i];
        votes += std::signbit(momentum[r][i]) ? -1 : 1;
      }
      ASSERT_EQ(found[i], votes > 0 ? 1 : -1);
    }
    ASSERT_EQ(job.rank(1).state("momentum"), momentum[1]);
  }
}

}  // namespace
}  // namespace netsum::compress::blocks_test
