#include "tools/netsum/bench_data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

namespace netsum::tool::bench_data_test {
namespace {

constexpr size_t kCount = 10'000;
constexpr int kRanks = 4;
constexpr TensorId kTensor{3, 1};

template <typename T>
std::vector<T> fill(const BenchData& data, int rank, TensorId id = kTensor) {
  std::vector<T> values(kCount);
  data.fill(rank, id, values.data(), kCount);
  return values;
}

template <typename T>
std::vector<T> sum(const BenchData& data) {
  std::vector<double> total(kCount);
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::vector<T> values = fill<T>(data, rank);
    for (size_t i = 0; i < kCount; ++i) total[i] += static_cast<double>(values[i]);
  }
  return {total.begin(), total.end()};
}

TEST(BenchDataTest, RanksAndIterationsDiffer) {
  const BenchData data(DataType::kFloat32, ReduceOp::kSum, kRanks, 1);
  EXPECT_EQ(fill<float>(data, 0), fill<float>(data, 0));
  EXPECT_NE(fill<float>(data, 0), fill<float>(data, 1));
  EXPECT_NE(fill<float>(data, 0), fill<float>(data, 0, {4, 1}));
  EXPECT_NE(fill<float>(data, 0), fill<float>(data, 0, {3, 2}));
}

TEST(BenchDataTest, TheExactSumIsRight) {
  const BenchData floats(DataType::kFloat32, ReduceOp::kSum, kRanks, 1);
  const std::vector<float> result = sum<float>(floats);
  const Verdict verdict = floats.verify(kTensor, result.data(), kCount);
  EXPECT_EQ(verdict.wrong, 0u) << verdict.first_wrong;
  const BenchData integers(DataType::kInt32, ReduceOp::kSum, kRanks, 1);
  const std::vector<int32_t> exact = sum<int32_t>(integers);
  EXPECT_EQ(integers.verify(kTensor, exact.data(), kCount).wrong, 0u);
}

// The largest power of two that is at most the largest magnitude.
int exponent_of(const std::vector<float>& values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  return std::ilogb(largest);
}

TEST(BenchDataTest, PatternsDifferInHowMagnitudesChange) {
  const auto make = [](BenchPattern pattern) {
    return BenchData(DataType::kFloat32, ReduceOp::kSum, kRanks, 1, 0, pattern);
  };
  const BenchData varied = make(BenchPattern::kVaried), steady = make(BenchPattern::kSteady),
                  normal = make(BenchPattern::kNormal);
  for (int n = 0; n < 20; ++n) {
    EXPECT_NE(exponent_of(fill<float>(varied, 0, {n, 0})), exponent_of(fill<float>(varied, 0, {n + 1, 0})))
        << n;
    EXPECT_EQ(exponent_of(fill<float>(steady, 0, {n, 0})), -1) << n;
    EXPECT_NEAR(exponent_of(fill<float>(normal, 0, {n, 0})), exponent_of(fill<float>(normal, 0, {n + 1, 0})),
                1)
        << n;
  }
  EXPECT_NE(fill<float>(steady, 0, {0, 0}), fill<float>(steady, 0, {1, 0}));
}

TEST(BenchDataTest, NormalElementsAreNormalAndTheirSumsExact) {
  const BenchData data(DataType::kFloat32, ReduceOp::kSum, kRanks, 1, 0, BenchPattern::kNormal);
  const std::vector<float> values = fill<float>(data, 0);
  double sum_of_squares = 0;
  for (const float value : values) sum_of_squares += static_cast<double>(value) * value;
  const double deviation = std::sqrt(sum_of_squares / kCount);
  const auto within = [&](double limit) {
    return static_cast<double>(
               std::count_if(values.begin(), values.end(),
                             [&](float value) { return std::fabs(value) < limit * deviation; })) /
           kCount;
  };
  EXPECT_NEAR(within(1), 0.683, 0.02);
  EXPECT_NEAR(within(2), 0.954, 0.01);
  const std::vector<float> result = sum<float>(data);
  const Verdict verdict = data.verify(kTensor, result.data(), kCount);
  EXPECT_EQ(verdict.wrong, 0u) << verdict.first_wrong;
}

TEST(BenchDataTest, MovedBytesAreThoseOfTheirRank) {
  const BenchData data(DataType::kBFloat16, ReduceOp::kSum, kRanks, 1);
  std::vector<uint16_t> result = fill<uint16_t>(data, 2);
  EXPECT_EQ(data.verify_moved(2, kTensor, result.data(), 0, kCount).wrong, 0u);
  EXPECT_GT(data.verify_moved(1, kTensor, result.data(), 0, kCount).wrong, kCount / 2);
  result[50] ^= 1;
  const Verdict verdict = data.verify_moved(2, kTensor, result.data(), 50, 60);
  EXPECT_EQ(verdict.wrong, 1u);
  EXPECT_EQ(verdict.first_wrong, "element 50 is not that of rank 2");
  EXPECT_EQ(data.verify_moved(2, kTensor, result.data(), 51, kCount).wrong, 0u);
}

TEST(BenchDataTest, OneWrongElementIsFound) {
  const BenchData data(DataType::kInt32, ReduceOp::kSum, kRanks, 1);
  std::vector<int32_t> result = sum<int32_t>(data);
  const uint64_t checksum = data.verify(kTensor, result.data(), kCount).checksum;
  result[777] += 1;
  const Verdict verdict = data.verify(kTensor, result.data(), kCount);
  EXPECT_EQ(verdict.wrong, 1u);
  EXPECT_EQ(verdict.first_wrong.find("element 777: got "), 0u) << verdict.first_wrong;
  EXPECT_NE(verdict.checksum, checksum);
}

TEST(BenchDataTest, NotANumberIsWrongAndSoIsAnErrorBeyondTheBound) {
  const BenchData data(DataType::kFloat32, ReduceOp::kSum, kRanks, 1);
  std::vector<float> result = sum<float>(data);
  result[0] = NAN;
  result[1] += 1e-4F;
  EXPECT_EQ(data.verify(kTensor, result.data(), kCount).wrong, 2u);
}

TEST(BenchDataTest, WhatALossyMeanHasLostIsMeasured) {
  const BenchData data(DataType::kFloat32, ReduceOp::kAvg, kRanks, 1, 0, BenchPattern::kNormal);
  std::vector<float> mean = sum<float>(data);
  double norm = 0;
  for (float& element : mean) {
    element /= kRanks;
    norm += static_cast<double>(element) * element;
  }
  const Verdict exact = data.verify_lossy(kTensor, mean.data(), kCount, 0, kCount);
  EXPECT_EQ(exact.wrong, 0u);
  EXPECT_EQ(exact.squared_error, 0);
  EXPECT_NEAR(exact.squared_expected, norm, 1e-9 * norm);

  const float lost = mean[7];
  mean[7] = 0;
  mean[8] = INFINITY;
  const Verdict lossy = data.verify_lossy(kTensor, mean.data(), kCount, 0, kCount);
  EXPECT_NEAR(lossy.squared_error, static_cast<double>(lost) * lost, 1e-6 * norm);
  EXPECT_EQ(lossy.wrong, 1u);
  EXPECT_EQ(lossy.first_wrong, "element 8 is not finite");
  EXPECT_NE(lossy.checksum, exact.checksum);
  EXPECT_EQ(data.verify_lossy(kTensor, mean.data(), kCount, 9, kCount).squared_error, 0);
}

TEST(BenchDataTest, HalfTypesAreExactInTheirType) {
  // Averages of equal inputs would be trivial; here one rank alone must give back its own bits.
  for (const DataType type : {DataType::kBFloat16, DataType::kFloat16}) {
    const BenchData data(type, ReduceOp::kSum, 1, 9);
    for (int iteration = 0; iteration < 9; ++iteration) {
      const std::vector<uint16_t> input = fill<uint16_t>(data, 0, {iteration, 0});
      const Verdict verdict = data.verify({iteration, 0}, input.data(), kCount);
      EXPECT_EQ(verdict.wrong, 0u) << data_type_name(type) << " " << verdict.first_wrong;
      EXPECT_EQ(verdict.worst_error, 0.0) << data_type_name(type);
    }
  }
}

}  // namespace
}  // namespace netsum::tool::bench_data_test
