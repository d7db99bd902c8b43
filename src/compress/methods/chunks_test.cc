// Methods that send the largest elements or coefficients of every chunk, against slow references.
#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <numeric>

#include "src/compress/testing.h"

namespace netsum::compress::chunks_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// Places of the k largest, of equal ones the first.
std::vector<size_t> largest(const std::vector<float>& values, size_t k) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return std::fabs(values[a]) > std::fabs(values[b]); });
  order.resize(k);
  return order;
}

size_t sent_of(size_t n, double ratio) {
  return std::max<size_t>(1, static_cast<size_t>(static_cast<double>(n) * ratio));
}

std::vector<float> slow_chunk(const std::vector<float>& values, size_t k) {
  const auto order = largest(values, k);
  double middle = 0;
  for (const size_t i : order) middle += std::fabs(static_cast<double>(values[i])) / static_cast<double>(k);
  std::vector<float> sent(values.size(), 0.0f);
  for (const bool large : {false, true}) {
    double sum = 0, count = 0;
    for (const size_t i : order)
      if ((std::fabs(values[i]) > middle) == large) sum += std::fabs(values[i]), ++count;
    for (const size_t i : order)
      if ((std::fabs(values[i]) > middle) == large)
        sent[i] = std::copysign(static_cast<float>(sum / count), values[i]);
  }
  return sent;
}

TEST(ChunkTopKTest, TheLargestOfEachChunkBecomeOneOfTwoMagnitudes) {
  for (const uint32_t block : {1u, 7u, 64u, 4096u})
    for (const size_t n : {size_t{1}, size_t{6}, size_t{7}, size_t{1000}, size_t{9000}})
      for (const double ratio : {1e-6, 1.0 / 64, 0.3, 1.0}) {
        auto values = numbers(n, n);
        for (size_t i = 0; i < n; i += 5) values[i] = i % 2 == 0 ? 0.125f : -0.125f;
        Rank rank(*made({.method = "chunktopk", .ratio = ratio, .block = block}), n);
        rank.compress(values);
        const auto sent = rank.decompress();
        for (size_t at = 0; at < n; at += block) {
          const size_t size = std::min<size_t>(block, n - at);
          const auto from = values.begin() + static_cast<std::ptrdiff_t>(at);
          const auto expected =
              slow_chunk({from, from + static_cast<std::ptrdiff_t>(size)}, sent_of(size, ratio));
          for (size_t i = 0; i < size; ++i) {
            ASSERT_NEAR(sent[at + i], expected[i], 1e-6)
                << block << " " << n << " " << ratio << " " << at + i;
            ASSERT_EQ(sent[at + i] == 0, expected[i] == 0);
          }
        }
        const auto rest = rank.state("residual");
        for (size_t i = 0; i < n; ++i) ASSERT_EQ(rest[i], values[i] - sent[i]);
        EXPECT_NEAR(squares(rest), squares(values) - squares(sent), 1e-5 * squares(values));
      }
}

// 64 of 4096 elements: 8 bits for the index, 2 for the value, and 1 for the levels of the chunk.
TEST(ChunkTopKTest, AnElementTakesElevenBits) {
  constexpr size_t kCount = 4096 * 100;
  Rank rank(*made({.method = "chunktopk", .k = 64, .block = 4096}), kCount);
  const double sent = 64 * 100;
  EXPECT_NEAR(static_cast<double>(8 * rank.tensor().shape().count) / sent, 11, 0.1);
  Rank dense(*made({.method = "chunktopk", .k = 2048, .block = 4096}), 4096);  // a bitmap
  EXPECT_EQ(dense.tensor().shape().count, 8 + 4096 / 8 + 2048 / 4u);
}

TEST(ChunkTopKTest, BytesOfAnotherTensorAreNoGradient) {
  Rank rank(*made({.method = "chunktopk", .k = 4, .block = 64}), 256);
  rank.compress(numbers(256, 1));
  const std::vector<uint8_t> zeros(rank.tensor().shape().count, 0);  // gaps without end
  for (const float value : rank.decompress(zeros.data(), nullptr, 1)) EXPECT_TRUE(std::isnan(value));
}

// By the definition, in double.
std::vector<double> slow_dct(const std::vector<float>& values) {
  const size_t n = values.size();
  std::vector<double> coefficients(n, 0);
  for (size_t c = 0; c < n; ++c) {
    for (size_t i = 0; i < n; ++i)
      coefficients[c] +=
          static_cast<double>(values[i]) * std::cos(std::numbers::pi * (static_cast<double>(i) + 0.5) *
                                                    static_cast<double>(c) / static_cast<double>(n));
    coefficients[c] *= std::sqrt((c == 0 ? 1.0 : 2.0) / static_cast<double>(n));
  }
  return coefficients;
}

TEST(DctTopKTest, TheLargestCoefficientsOfEachChunkAreSent) {
  for (const uint32_t block : {1u, 8u, 64u, 256u})
    for (const size_t n : {size_t{1}, size_t{64}, size_t{1000}})
      for (const double ratio : {1e-6, 0.05, 0.5, 1.0}) {
        const auto values = numbers(n, n + block);
        Rank rank(*made({.method = "dcttopk", .ratio = ratio, .block = block}), n);
        rank.compress(values);
        const auto sent = rank.payload<float>(), decoded = rank.decompress();
        double kept = 0;
        for (size_t at = 0; at < n;) {
          const size_t size = std::min<size_t>(block, std::bit_floor(n - at));
          const auto from = values.begin() + static_cast<std::ptrdiff_t>(at);
          const auto coefficients = slow_dct({from, from + static_cast<std::ptrdiff_t>(size)});
          const size_t k = sent_of(size, ratio);
          std::vector<double> magnitudes;
          for (const double c : coefficients) magnitudes.push_back(std::fabs(c));
          std::sort(magnitudes.begin(), magnitudes.end(), std::greater<>());
          size_t count = 0;
          for (size_t i = 0; i < size; ++i) {
            count += sent[at + i] != 0 ? 1 : 0;
            if (sent[at + i] != 0) {
              ASSERT_NEAR(sent[at + i], coefficients[i], 1e-5);
              ASSERT_GE(std::fabs(coefficients[i]), magnitudes[k - 1] - 1e-5);
            }
          }
          ASSERT_EQ(count, k) << block << " " << n << " " << ratio;
          for (size_t i = 0; i < k; ++i) kept += magnitudes[i] * magnitudes[i];
          at += size;
        }
        const auto rest = rank.state("residual");
        for (size_t i = 0; i < n; ++i) ASSERT_EQ(rest[i], values[i] - decoded[i]);
        // Orthonormal, so what remains is as long as the coefficients that were not sent.
        EXPECT_NEAR(squares(rest), squares(values) - kept, 1e-5 * squares(values));
        EXPECT_LE(squares(rest), (1 - std::min(1.0, ratio)) * squares(values) + 1e-5);
      }
}

TEST(DctTopKTest, AWaveIsOneCoefficient) {
  constexpr size_t kBlock = 64;
  std::vector<float> wave(kBlock);
  for (size_t i = 0; i < kBlock; ++i)
    wave[i] = static_cast<float>(std::cos(std::numbers::pi * (static_cast<double>(i) + 0.5) * 5 / kBlock));
  Rank rank(*made({.method = "dcttopk", .k = 1, .block = kBlock}), kBlock);
  rank.compress(wave);
  const auto decoded = rank.decompress();
  for (size_t i = 0; i < kBlock; ++i) EXPECT_NEAR(decoded[i], wave[i], 1e-5);
}

TEST(DctTopKTest, TheRanksGetTheMeanOfWhatTheySend) {
  Job job(*made({.method = "dcttopk", .k = 8, .block = 32}), 100, 3);
  std::vector<std::vector<float>> inputs;
  for (uint64_t r = 0; r < 3; ++r) inputs.push_back(numbers(100, r));
  const auto mean = job.step(inputs);
  for (size_t i = 0; i < 100; ++i) {
    float sent = 0;
    for (size_t r = 0; r < 3; ++r) sent += inputs[r][i] - job.rank(r).state("residual")[i];
    ASSERT_NEAR(mean[i], sent / 3, 1e-5);
  }
}

// What the ranks get of coefficients, which a tensor without counts inverts.
std::vector<float> inverted(const std::vector<float>& coefficients, const CompressionOptions& options) {
  Rank plain(*made(options), coefficients.size());
  plain.compress(coefficients);  // of anything
  return plain.decompress(coefficients.data(), nullptr, 1);
}

TEST(DctTopKTest, SumsAreDividedByTheNumberOfSenders) {
  constexpr size_t kCount = 1000, kSenders = 5;
  const CompressionOptions options{.method = "dcttopk", .k = 8, .block = 32};
  CompressionOptions counting = options;
  counting.count_senders = true;
  for (size_t ranks = 1; ranks <= kSenders; ++ranks) {
    Job job(*made(counting), kCount, static_cast<int>(ranks));
    std::vector<std::vector<float>> inputs;
    std::vector<double> sums(kCount, 0), counts(kCount, 0);
    std::vector<size_t> overlaps(ranks + 1, 0);
    for (size_t r = 0; r < ranks; ++r) {
      inputs.push_back(numbers(kCount, r));
      const auto alike = numbers(kCount, 99);
      for (size_t i = 0; i < kCount; ++i) inputs[r][i] += alike[i];
      Rank plain(*made(options), kCount);
      plain.compress(inputs[r]);
      const auto sent = plain.payload<float>();
      for (size_t i = 0; i < kCount; ++i) sums[i] += sent[i], counts[i] += sent[i] != 0 ? 1 : 0;
    }
    std::vector<float> coefficients(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      ++overlaps[static_cast<size_t>(counts[i])];
      coefficients[i] = counts[i] == 0 ? 0 : static_cast<float>(sums[i] / counts[i]);
    }
    for (const size_t overlap : overlaps) EXPECT_GT(overlap, 0u);
    const auto received = job.step(inputs), expected = inverted(coefficients, options);
    for (size_t i = 0; i < kCount; ++i) ASSERT_NEAR(received[i], expected[i], 1e-5) << ranks;
    // As without counts, a rank keeps what it has not sent itself.
    for (size_t r = 0; r < ranks; ++r) {
      Rank plain(*made(options), kCount);
      plain.compress(inputs[r]);
      EXPECT_EQ(job.rank(r).state("residual"), plain.state("residual"));
    }
  }
}

TEST(DctTopKTest, CountsFollowTheCoefficients) {
  const auto compression = made({.method = "dcttopk", .k = 2, .block = 4, .count_senders = true});
  Rank rank(*compression, 4);
  rank.compress({1, 1, 1, 1});  // one coefficient; the other one that is sent is zero
  EXPECT_THAT(rank.payload<float>(), ElementsAre(2, 0, 0, 0, 1, 0, 0, 0));
  const float lost_counts[] = {8, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_THAT(rank.decompress(lost_counts, nullptr, 2), Each(2.0f));
  Job job(*compression, 4, 2);
  for (const float value : job.step({{1, NAN, 1, 1}, {1, 1, 1, 1}})) EXPECT_TRUE(std::isnan(value));
}

class ChunksTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Methods, ChunksTest, testing::Values("chunktopk", "dcttopk"),
                         [](const auto& param) { return std::string(param.param); });

TEST_P(ChunksTest, ZerosNothingAndMoreThanThereAre) {
  const auto compression = made({.method = GetParam(), .k = 1000, .block = 16});
  Rank nothing(*compression, 0);
  nothing.compress({});
  EXPECT_TRUE(nothing.decompress().empty());
  for (const size_t n : {size_t{1}, size_t{37}}) {
    Rank rank(*compression, n);
    rank.compress(std::vector<float>(n, 0.0f));
    EXPECT_THAT(rank.decompress(), Each(0.0f));
    rank.compress(std::vector<float>(n, -2.5f));  // all of a chunk is sent, and all magnitudes are equal
    for (const float value : rank.decompress()) EXPECT_NEAR(value, -2.5f, 1e-6);
    for (const float value : rank.state("residual")) EXPECT_NEAR(value, 0, 1e-6);
  }
}

TEST_P(ChunksTest, NumbersThatAreNotFiniteArriveAndLeaveNothing) {
  for (const float special : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity()})
    for (const size_t at : {size_t{0}, size_t{123}, size_t{999}}) {
      Rank rank(*made({.method = GetParam(), .k = 2, .block = 64}), 1000);
      auto values = numbers(1000, 1);
      values[at] = special;
      rank.compress(values);
      EXPECT_FALSE(std::isfinite(rank.decompress()[at]));
      for (const float value : rank.state("residual")) ASSERT_TRUE(std::isfinite(value));
      EXPECT_EQ(rank.state("residual")[at], 0);
      rank.compress(numbers(1000, 2));
      for (const float value : rank.decompress()) ASSERT_TRUE(std::isfinite(value));
    }
}

}  // namespace
}  // namespace netsum::compress::chunks_test
