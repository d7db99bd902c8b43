#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "src/compress/testing.h"

namespace netsum::compress::count_sketch_test {
namespace {

constexpr size_t kRanks = 3;

std::vector<std::vector<float>> gradients(size_t count, uint64_t step) {
  std::vector<std::vector<float>> all;
  for (size_t r = 0; r < kRanks; ++r) all.push_back(numbers(count, 77 * step + r));
  return all;
}

// The slow reference: the sketch is a matrix, which the sketches of unit vectors tell; an element is the median of what the cells
// say that it is in, and the k largest are taken.
TEST(CountSketchTest, TheLargestMediansOfTheCellsAreTaken) {
  constexpr size_t kCount = 1200, kTake = 8, kCells = 5 * 10 * kTake;
  const auto compression = made({.method = "countsketch", .k = kTake});
  Job job(*compression, kCount, kRanks);
  std::vector<std::vector<double>> memory(kRanks, std::vector<double>(kCount, 0));
  for (uint64_t step = 0; step < 3; ++step) {
    std::vector<std::vector<float>> columns;
    for (size_t i = 0; i < kCount; ++i) {
      Rank probe(*compression, kCount, 2, kRanks);
      ASSERT_TRUE(probe.tensor()
                      .restore(step, {{SavedCompressionState{"residual", std::vector<float>(kCount)}}})
                      .ok());
      std::vector<float> unit(kCount, 0.0f);
      unit[i] = 1;
      probe.compress(unit);
      columns.push_back(probe.payload<float>());
      ASSERT_EQ(columns.back().size(), kCells);
      ASSERT_EQ(std::count(columns.back().begin(), columns.back().end(), 0.0f), kCells - 5);
    }
    const auto inputs = gradients(kCount, step + 1);
    const auto found = job.step(inputs);
    std::vector<double> sketch(kCells, 0);
    for (size_t r = 0; r < kRanks; ++r)
      for (size_t i = 0; i < kCount; ++i) {
        memory[r][i] += static_cast<double>(inputs[r][i]);
        for (size_t c = 0; c < sketch.size(); ++c)
          sketch[c] += static_cast<double>(columns[i][c]) * memory[r][i] / kRanks;
      }
    std::vector<std::pair<double, size_t>> order(kCount);
    std::vector<double> estimates(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      std::vector<double> said;
      for (size_t c = 0; c < sketch.size(); ++c)
        if (columns[i][c] != 0) said.push_back(static_cast<double>(columns[i][c]) * sketch[c]);
      std::sort(said.begin(), said.end());
      estimates[i] = said[2];
      order[i] = {-std::fabs(estimates[i]), i};
    }
    std::sort(order.begin(), order.end());
    // Some share a cell, and with it an estimate: all those as large as the k-th are taken.
    const double least = -order[kTake - 1].first;
    for (size_t i = 0; i < kCount; ++i) {
      const double magnitude = std::fabs(estimates[i]);
      if (std::fabs(magnitude - least) < 1e-6 && magnitude != least) continue;  // rounding decides
      ASSERT_NEAR(found[i], magnitude >= least ? estimates[i] : 0.0, 1e-5) << step << " " << i;
    }
    for (size_t r = 0; r < kRanks; ++r) {
      const auto rest = job.rank(r).state("residual");
      for (size_t i = 0; i < kCount; ++i) {
        memory[r][i] -= static_cast<double>(found[i]);
        ASSERT_NEAR(rest[i], memory[r][i], 1e-5);
      }
    }
  }
}

TEST(CountSketchTest, FewLargeElementsAreFound) {
  constexpr size_t kCount = 10'000, kLarge = 50;
  Job job(*made({.method = "countsketch", .k = kLarge}), kCount, kRanks);
  std::vector<std::vector<float>> inputs(kRanks, std::vector<float>(kCount, 0.0f));
  std::vector<double> mean(kCount, 0), arrived(kCount, 0);
  for (size_t j = 0; j < kLarge; ++j)
    for (size_t r = 0; r < kRanks; ++r) {
      const size_t i = j * 197 % kCount;
      inputs[r][i] = static_cast<float>(j + r) - 20.0f;
      mean[i] += static_cast<double>(inputs[r][i]) / kRanks;
    }
  double error = 0, size = 0;
  for (int step = 0; step < 5; ++step) {  // what collides in one step does not in the next
    const auto found = job.step(inputs);
    for (size_t i = 0; i < kCount; ++i) arrived[i] += static_cast<double>(found[i]);
    for (auto& input : inputs) std::fill(input.begin(), input.end(), 0.0f);
  }
  for (size_t i = 0; i < kCount; ++i) {
    error += std::pow(arrived[i] - mean[i], 2);
    size += std::pow(mean[i], 2);
  }
  EXPECT_LT(error, 1e-6 * size);
}

// A cell has the element, and others with random signs: their variance is that of the rest divided by the number of columns, and the median of
// five has less.
TEST(CountSketchTest, TheErrorIsThatOfTheRestInACell) {
  constexpr size_t kCount = 20'000, kTake = 100;
  const auto compression = made({.method = "countsketch", .k = kTake});
  double squared = 0;
  size_t taken = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Rank rank(*compression, kCount);
    auto values = numbers(kCount, seed);
    for (size_t j = 0; j < kTake; ++j) values[j * 199] = 50;
    rank.compress(values);
    const auto found = rank.decompress();
    for (size_t j = 0; j < kTake; ++j) {
      if (found[j * 199] == 0) continue;
      // Those that collide with another large element in three rows are off by its size.
      if (std::fabs(found[j * 199] - 50) > 25) continue;
      squared += std::pow(static_cast<double>(found[j * 199]) - 50, 2);
      ++taken;
    }
  }
  const double rest = squares(numbers(kCount, 1)) / (10 * kTake);
  EXPECT_GT(taken, 20 * kTake * 7 / 10);
  EXPECT_LT(squared / static_cast<double>(taken), rest);
  EXPECT_GT(squared / static_cast<double>(taken), rest / 10);
}

TEST(CountSketchTest, ASketchIsNotLongerThanTheTensor) {
  for (const size_t count : {size_t{0}, size_t{1}, size_t{49}, size_t{50}}) {
    Job job(*made({.method = "countsketch", .k = 1}), count, kRanks);
    EXPECT_EQ(job.rank(0).tensor().shape().count, count);
    const auto inputs = gradients(count, 1);
    const auto found = job.step(inputs);
    for (size_t i = 0; i < count; ++i)
      ASSERT_NEAR(found[i], (inputs[0][i] + inputs[1][i] + inputs[2][i]) / 3, 1e-6);
  }
  EXPECT_EQ(Rank(*made({.method = "countsketch", .k = 1}), 51).tensor().shape().count, 50u);
}

TEST(CountSketchTest, AStepThatIsNotFiniteIsKept) {
  Job job(*made({.method = "countsketch", .k = 1}), 100, kRanks);
  auto inputs = gradients(100, 1);
  inputs[1][50] = INFINITY;
  const auto found = job.step(inputs);
  EXPECT_TRUE(std::all_of(found.begin(), found.end(), [](float value) { return std::isnan(value); }));
  EXPECT_EQ(job.rank(0).state("residual"), inputs[0]);
  inputs[1][50] = 0;
  EXPECT_EQ(job.rank(1).state("residual"), inputs[1]);
}

}  // namespace
}  // namespace netsum::compress::count_sketch_test
