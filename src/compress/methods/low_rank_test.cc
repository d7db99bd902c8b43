// powersgd against a slow reference.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/compress/testing.h"

namespace netsum::compress::low_rank_test {
namespace {

using ::testing::Each;

constexpr size_t kRows = 12, kColumns = 20, kCount = kRows * kColumns;

using Matrix = std::vector<std::vector<double>>;  // columns

// The matrix's product with each of these columns.
Matrix times(const std::vector<float>& m, const Matrix& columns, bool transposed) {
  Matrix out(columns.size(), std::vector<double>(transposed ? kColumns : kRows, 0));
  for (size_t c = 0; c < columns.size(); ++c)
    for (size_t i = 0; i < kRows; ++i)
      for (size_t j = 0; j < kColumns; ++j)
        out[c][transposed ? j : i] += m[i * kColumns + j] * columns[c][transposed ? i : j];
  return out;
}

Matrix orthonormal(Matrix columns) {
  for (size_t c = 0; c < columns.size(); ++c) {
    for (size_t other = 0; other < c; ++other) {
      double share = 0;
      for (size_t i = 0; i < columns[c].size(); ++i) share += columns[c][i] * columns[other][i];
      for (size_t i = 0; i < columns[c].size(); ++i) columns[c][i] -= share * columns[other][i];
    }
    double norm = 0;
    for (const double x : columns[c]) norm += x * x;
    for (double& x : columns[c]) x /= std::sqrt(norm);
  }
  return columns;
}

Matrix mean(const std::vector<Matrix>& all) {
  Matrix out = all[0];
  for (size_t c = 0; c < out.size(); ++c)
    for (size_t i = 0; i < out[c].size(); ++i) {
      out[c][i] = 0;
      for (const Matrix& one : all) out[c][i] += one[c][i] / static_cast<double>(all.size());
    }
  return out;
}

std::vector<std::vector<float>> gradients(size_t ranks, uint64_t step) {
  std::vector<std::vector<float>> all;
  for (size_t r = 0; r < ranks; ++r) all.push_back(numbers(kCount, 100 * step + r));
  return all;
}

TEST(PowerSgdTest, RanksAverageBothFactorsAndKeepTheRest) {
  constexpr size_t kRank = 3;
  for (const size_t ranks : {size_t{1}, size_t{4}}) {
    Job job(*made({.method = "powersgd", .rank = kRank}), kCount, static_cast<int>(ranks), kRows);
    std::vector<std::vector<float>> memory(ranks, std::vector<float>(kCount, 0));
    Matrix q;  // random at first: taken from the ranks
    for (uint64_t step = 0; step < 4; ++step) {
      const auto inputs = gradients(ranks, step);
      const auto found = job.step(inputs);
      for (size_t r = 0; r < ranks; ++r)
        for (size_t i = 0; i < kCount; ++i) memory[r][i] += inputs[r][i];
      if (step > 0) {
        std::vector<Matrix> ps, qs;
        for (const auto& m : memory) ps.push_back(times(m, q, false));
        const Matrix p = orthonormal(mean(ps));
        for (const auto& m : memory) qs.push_back(times(m, p, true));
        const Matrix q_mean = mean(qs);
        for (size_t i = 0; i < kCount; ++i) {
          double expected = 0;
          for (size_t c = 0; c < kRank; ++c) expected += p[c][i / kColumns] * q_mean[c][i % kColumns];
          ASSERT_NEAR(found[i], expected, 1e-4) << step;
        }
        for (size_t r = 0; r < ranks; ++r) {
          const auto rest = job.rank(r).state("residual");
          for (size_t i = 0; i < kCount; ++i) {
            double sent = 0;
            for (size_t c = 0; c < kRank; ++c) sent += p[c][i / kColumns] * qs[r][c][i % kColumns];
            ASSERT_NEAR(rest[i], memory[r][i] - sent, 1e-4);
          }
          EXPECT_LE(squares(rest), squares(memory[r]) * (1 + 1e-6)) << "no contraction";
        }
      }
      for (size_t r = 0; r < ranks; ++r) memory[r] = job.rank(r).state("residual");
      const auto state = job.rank(0).state("compressor");
      q.assign(kRank, std::vector<double>(kColumns));
      for (size_t c = 0; c < kRank; ++c)
        for (size_t j = 0; j < kColumns; ++j) q[c][j] = state[c * kColumns + j];
    }
  }
}

// One product finds the space of a matrix of low rank.
TEST(PowerSgdTest, AMatrixOfThatRankIsExact) {
  std::vector<float> m(kCount);
  for (size_t i = 0; i < kRows; ++i)
    for (size_t j = 0; j < kColumns; ++j)
      m[i * kColumns + j] = std::sin(static_cast<float>(i)) * std::cos(static_cast<float>(3 * j)) +
                            static_cast<float>(i * (j % 3));
  Job job(*made({.method = "powersgd", .rank = 2}), kCount, 2, kRows);
  const auto found = job.step({m, m});
  for (size_t i = 0; i < kCount; ++i) ASSERT_NEAR(found[i], m[i], 1e-3);
  EXPECT_LT(squares(job.rank(1).state("residual")), 1e-8 * squares(m));
}

TEST(PowerSgdTest, TheFactorsAreSmallerThanTheMatrix) {
  Rank rank(*made({.method = "powersgd", .rank = 2}), kCount, 0, 4, kRows);
  EXPECT_EQ(rank.tensor().agreed_values(), 2 * kRows);
  EXPECT_EQ(rank.tensor().shape().count, 2 * kColumns);
  // No more columns than there are.
  Rank most(*made({.method = "powersgd", .rank = 500}), kCount, 0, 4, kRows);
  EXPECT_EQ(most.tensor().agreed_values(), kRows * kRows);
}

TEST(PowerSgdTest, ATensorOfOneRowIsSentAsItIs) {
  Job job(*made({.method = "powersgd"}), kCount, 1);
  const auto values = numbers(kCount, 3);
  const auto found = job.step({values});
  for (size_t i = 0; i < kCount; ++i) ASSERT_NEAR(found[i], values[i], 1e-6);
}

TEST(PowerSgdTest, AfterZerosAndAfterNumbersThatAreNotFiniteItFindsTheMatrixAgain) {
  for (const float special : {0.0f, std::numeric_limits<float>::quiet_NaN(), INFINITY}) {
    Job job(*made({.method = "powersgd", .rank = 2}), kCount, 2, kRows);
    auto bad = numbers(kCount, 1);
    if (special == 0) {
      std::fill(bad.begin(), bad.end(), 0.0f);
    } else {
      bad[77] = special;
    }
    const auto told = job.step({bad, bad});
    if (special == 0) EXPECT_THAT(told, Each(0.0f));
    const bool is_finite = std::all_of(told.begin(), told.end(), [](float x) { return std::isfinite(x); });
    EXPECT_EQ(is_finite, special == 0);
    // All of it remains, but not what was not finite.
    if (special != 0) {
      bad[77] = 0;
      EXPECT_EQ(job.rank(1).state("residual"), bad);
    }
    const auto again = job.step({numbers(kCount, 2), numbers(kCount, 2)});
    EXPECT_GT(squares(again), 0);
    EXPECT_TRUE(std::all_of(again.begin(), again.end(), [](float x) { return std::isfinite(x); }));
  }
}

// The tensor's own past decides how good the approximation is.
TEST(PowerSgdTest, AWarmStartComesNearerWithEveryStep) {
  const auto m = numbers(kCount, 5);
  const auto compression = made({.method = "powersgd", .rank = 1, .decay = 0});
  Job job(*compression, kCount, 1, kRows);
  double first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    job.step({m});
    last = squares(job.rank(0).state("residual"));
    if (step == 0) first = last;
  }
  EXPECT_LT(last, 0.99 * first);
}

// On the path gather, every rank decompresses all payloads: the next step begins from all of them, not from the last one.
TEST(PowerSgdTest, AWarmStartOfGatheredPayloadsIsThatOfTheirMean) {
  constexpr size_t kRanks = 3;
  const std::vector<std::vector<float>> inputs = {
      numbers(kCount, 1), numbers(kCount, 2),
      std::vector<float>(kCount, 0.0f)};  // an expert that is not used
  const auto compression = made({.method = "powersgd", .path = "gather", .rank = 2, .decay = 0});
  std::vector<Rank> ranks;
  for (size_t r = 0; r < kRanks; ++r) ranks.emplace_back(*compression, kCount, static_cast<int>(r), 3, kRows);
  Job dense(*made({.method = "powersgd", .rank = 2, .decay = 0}), kCount, kRanks, kRows);
  for (int step = 0; step < 5; ++step) {
    std::vector<float> agreed(ranks[0].tensor().agreed_values()), mine(agreed.size());
    for (size_t r = 0; r < kRanks; ++r) {
      ranks[r].tensor().agree(inputs[r].data(), mine.data());
      for (size_t i = 0; i < mine.size(); ++i) agreed[i] += mine[i] / kRanks;
    }
    for (size_t r = 0; r < kRanks; ++r) ranks[r].compress(inputs[r], agreed);
    std::vector<float> mean(kCount, 0);
    for (Rank& receiver : ranks) {
      std::fill(mean.begin(), mean.end(), 0.0f);
      for (const Rank& sender : ranks) {
        const auto part = receiver.decompress(sender.payload<float>().data(), nullptr, 1);
        for (size_t i = 0; i < kCount; ++i) mean[i] += part[i] / kRanks;
      }
    }
    const auto expected = dense.step(inputs);
    for (size_t i = 0; i < kCount; ++i) ASSERT_NEAR(mean[i], expected[i], 1e-5) << step;
  }
}

TEST(PowerSgdTest, ItsStateIsSavedAndRestored) {
  const auto compression = made({.method = "powersgd", .rank = 2});
  Job original(*compression, kCount, 1, kRows), restored(*compression, kCount, 1, kRows);
  for (uint64_t step = 0; step < 3; ++step) original.step(gradients(1, step));
  std::vector<SavedCompressionState> saved;
  for (const CompressionState& part : original.rank(0).tensor().state())
    saved.push_back({part.name, part.values});
  ASSERT_TRUE(restored.rank(0).tensor().restore(3, saved).ok());
  for (uint64_t step = 3; step < 5; ++step)
    ASSERT_EQ(original.step(gradients(1, step)), restored.step(gradients(1, step)));
}

}  // namespace
}  // namespace netsum::compress::low_rank_test
