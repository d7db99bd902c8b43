// Compressed all-reduces through the public API, on several data paths: ranks are threads of this process.
#include "netsum/compression.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "collective/placed_job.h"
#include "netsum/sparse.h"
#include "src/base/rng.h"

namespace netsum {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kRanks = PlacedJob::kRanks;
constexpr int kSteps = 3;
constexpr size_t kCount = 5000;
constexpr size_t kRows = 50;

class CompressionTest : public testing::TestWithParam<Place> {};

INSTANTIATE_TEST_SUITE_P(Places, CompressionTest,
                         testing::Values(Place::kShards, Place::kAggregator, Place::kOneHost), place_name);

std::vector<float> gradient(int rank, int step) {
  Rng rng(static_cast<uint64_t>(100 * step + rank + 1));
  std::vector<float> values(kCount);
  for (float& value : values) value = static_cast<float>(std::pow(2 * rng.unit() - 1, 5));
  return values;
}

std::shared_ptr<const Compression> made(const CompressionOptions& options) {
  auto compression = Compression::make(options);
  EXPECT_TRUE(compression.ok()) << compression.status().to_string();
  return std::move(compression).value();
}

// Of all ranks: what they have received in all steps, and what they still have in their residuals.
struct Totals {
  std::vector<double> gradients = std::vector<double>(kCount, 0);
  std::vector<double> received = std::vector<double>(kCount, 0);
  std::vector<double> residuals = std::vector<double>(kCount, 0);
};

// What the ranks have received and what they still keep is all that they have had: nothing gets lost or is added.
TEST_P(CompressionTest, WhatIsReceivedAndWhatRemainsIsTheSumOfAllGradients) {
  PlacedJob job(GetParam());
  const CompressionOptions methods[] = {
      {.method = "none"},
      {.method = "topk", .ratio = 0.02},
      {.method = "topk", .path = "gather", .ratio = 0.02},
      {.method = "sidco", .ratio = 0.02},
      {.method = "sidco", .path = "gather", .ratio = 0.02},
      {.method = "randomk", .ratio = 0.05},
      {.method = "threshold", .threshold = 0.25},
      {.method = "fp16", .memory = "residual"},
      {.method = "bf16", .memory = "residual", .path = "gather"},
      {.method = "efsign"},
      {.method = "onebit"},
      {.method = "int8"},
      {.method = "int4", .rotated = true},
      {.method = "thc", .block = 512},
      {.method = "thc_table", .block = 512},
      {.method = "blocktopk", .ratio = 0.05, .block = 64},
      {.method = "powersgd"},
      {.method = "natural", .memory = "residual"},
      {.method = "u8bit"},
      {.method = "fp8_e4m3"},
      {.method = "fp8_e5m2", .block = 32},
      {.method = "inceptionn"},
      {.method = "sketch"},
      {.method = "adaq"},
      {.method = "chunktopk", .k = 10},
      {.method = "dcttopk", .k = 4, .block = 64},
      {.method = "dcttopk", .path = "gather", .k = 4, .block = 64},
  };
  for (const CompressionOptions& options : methods) {
    const auto compression = made(options);
    SCOPED_TRACE(compression->describe());
    std::mutex mutex;
    Totals totals;
    std::vector<std::vector<float>> first(kSteps);
    job.run([&](Communicator& communicator) {
      const int rank = communicator.rank();
      const auto tensor = compression->tensor(7, kCount, rank, kRanks, kRows);
      CompressionBuffers buffers;
      for (int step = 0; step < kSteps; ++step) {
        const auto input = gradient(rank, step);
        std::vector<float> output(kCount, -1);
        const Status status =
            compressed_all_reduce(communicator, *compression, *tensor, input.data(), output.data(), buffers);
        ASSERT_TRUE(status.ok()) << status.to_string();
        const std::lock_guard lock(mutex);
        for (size_t i = 0; i < kCount; ++i) totals.gradients[i] += input[i];
        if (rank == 0)
          for (size_t i = 0; i < kCount; ++i) totals.received[i] += kRanks * static_cast<double>(output[i]);
        auto& same = first[static_cast<size_t>(step)];
        if (same.empty()) same = output;
        EXPECT_EQ(output, same) << "step " << step << ", rank " << rank;
      }
      const std::lock_guard lock(mutex);
      for (const CompressionState& part : tensor->state())
        for (size_t i = 0; part.is_memory && i < kCount; ++i) totals.residuals[i] += part.values[i];
    });
    for (size_t i = 0; i < kCount; ++i)
      ASSERT_NEAR(totals.received[i] + totals.residuals[i], totals.gradients[i],
                  1e-2 * (options.memory.empty() ? 1e-3 : 1))
          << i;
  }
}

TEST_P(CompressionTest, AValueThatIsNotFiniteReachesAllRanks) {
  PlacedJob job(GetParam());
  std::map<std::string, double> values = {{"threshold", 0.5}};
  for (const std::string_view method : compression_methods()) {
    CompressionOptions options{.method = std::string(method)};
    if (method == "threshold") options.threshold = values["threshold"];
    const auto compression = made(options);
    SCOPED_TRACE(compression->describe());
    job.run([&](Communicator& communicator) {
      const auto tensor = compression->tensor(1, kCount, communicator.rank(), kRanks);
      CompressionBuffers buffers;
      for (int step = 0; step < kSteps; ++step) {
        auto data = gradient(communicator.rank(), step);
        if (step == 1 && communicator.rank() == 2) data[4321] = std::numeric_limits<float>::quiet_NaN();
        const Status status =
            compressed_all_reduce(communicator, *compression, *tensor, data.data(), data.data(), buffers);
        ASSERT_TRUE(status.ok()) << status.to_string();
        const bool finite =
            std::all_of(data.begin(), data.end(), [](float value) { return std::isfinite(value); });
        // In the step behind it, nothing of it is left in any memory.
        EXPECT_EQ(finite, step != 1) << step;
      }
    });
  }
}

TEST_P(CompressionTest, LevelsOfACommonScale) {
  PlacedJob job(GetParam());
  const auto compression = made({.method = "qsgd", .levels = 7});
  job.run([&](Communicator& communicator) {
    const auto tensor = compression->tensor(1, kCount, communicator.rank(), kRanks);
    CompressionBuffers buffers;
    for (int step = 0; step < kSteps; ++step) {
      std::vector<double> mean(kCount, 0);
      double largest = 0;
      for (int rank = 0; rank < kRanks; ++rank) {
        const auto values = gradient(rank, step);
        for (size_t i = 0; i < kCount; ++i) {
          mean[i] += static_cast<double>(values[i]) / kRanks;
          largest = std::max(largest, std::fabs(static_cast<double>(values[i])));
        }
      }
      auto data = gradient(communicator.rank(), step);
      const Status status =
          compressed_all_reduce(communicator, *compression, *tensor, data.data(), data.data(), buffers);
      ASSERT_TRUE(status.ok()) << status.to_string();
      for (size_t i = 0; i < kCount; ++i) {
        ASSERT_NEAR(data[i], mean[i], largest / 7);
        const double levels = static_cast<double>(data[i]) * kRanks * 7 / largest;
        ASSERT_NEAR(levels, std::round(levels), 1e-3);
      }
    }
  });
}

// As many counts as coefficients travel, and small coefficients stay exact, but in a packet that has both.
TEST_P(CompressionTest, SumsAreDividedByTheNumberOfSenders) {
  constexpr size_t kBlock = 64, kLong = 1000 * kBlock;
  PlacedJob job(GetParam());
  const auto compression = made({.method = "dcttopk", .k = 4, .block = kBlock, .count_senders = true});
  const auto input = [](int rank) {
    Rng rng(static_cast<uint64_t>(rank + 1));
    std::vector<float> values(kLong);
    for (float& value : values) value = 1e-5f * static_cast<float>(std::pow(2 * rng.unit() - 1, 5));
    return values;
  };
  std::vector<float> sums(2 * kLong, 0.0f), payload(2 * kLong), expected(kLong);
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto tensor = compression->tensor(1, kLong, rank, kRanks);
    tensor->compress(input(rank).data(), nullptr, payload.data(), nullptr);
    for (size_t i = 0; i < payload.size(); ++i) sums[i] += payload[i];
    if (rank == kRanks - 1) tensor->decompress(sums.data(), nullptr, kRanks, expected.data());
  }
  const auto sent = static_cast<size_t>(
      std::count_if(sums.begin() + kLong, sums.end(), [](float count) { return count > 0; }));
  job.run([&](Communicator& communicator) {
    const auto tensor = compression->tensor(1, kLong, communicator.rank(), kRanks);
    CompressionBuffers buffers;
    auto data = input(communicator.rank());
    const Status status =
        compressed_all_reduce(communicator, *compression, *tensor, data.data(), data.data(), buffers);
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(sparse_stats(communicator).sent_elements, 2 * sent);
    size_t coarse = 0;
    for (size_t i = 0; i < kLong; ++i) {
      ASSERT_NEAR(data[i], expected[i], 1e-7);
      coarse += std::fabs(data[i] - expected[i]) > 1e-11f ? 1 : 0;
    }
    EXPECT_LT(coarse, kLong / 10);
  });
}

TEST(CompressionSettingsTest, RanksThatDifferAreToldOnAllRanks) {
  PlacedJob job(Place::kOneHost);
  job.run([](Communicator& communicator) {
    CompressionOptions options{.method = "topk", .ratio = communicator.rank() == 2 ? 0.1 : 0.01};
    const auto compression = made(options);
    const Status status = check_same_on_all_ranks(communicator, compression->describe());
    EXPECT_EQ(status.code(), ErrorCode::kMismatch);
    EXPECT_EQ(status.rank(), 2);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("rank 2"), HasSubstr("ratio=0.1"), HasSubstr("ratio=0.01")));
    const Status same = check_same_on_all_ranks(communicator, "efsign");
    EXPECT_TRUE(same.ok()) << same.to_string();
  });
}

}  // namespace
}  // namespace netsum
