// Floating-point sums, end to end, at every place: elements of any magnitude beside each other, added as floats in a fixed
// order.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "session/placed_job_testing.h"
#include "src/base/rng.h"
#include "src/kernels/half.h"

namespace netsum::float_sums_test {
namespace {

constexpr int kRanks = PlacedJob::kRanks;

class FloatSumsTest : public testing::TestWithParam<Place> {
 protected:
  // Over several hosts and below a parent, those of a host or of a rack are added first: here the even and the odd ranks.
  bool adds_groups_first() const { return GetParam() == Place::kTwoHosts || GetParam() == Place::kHierarchy; }

  // The bits of float32 additions in the promised order.
  float sum_in_order(const std::vector<float>& ranks) const {
    float sum = ranks[0];
    if (adds_groups_first()) {
      const float even = ranks[0] + ranks[2], odd = ranks[1] + ranks[3];
      sum = even + odd;
    } else {
      for (size_t rank = 1; rank < ranks.size(); ++rank) sum += ranks[rank];
    }
    return std::isnan(sum) ? std::numeric_limits<float>::quiet_NaN() : sum;
  }
  std::vector<float> sums_in_order(const std::vector<std::vector<float>>& inputs, ReduceOp op) const {
    std::vector<float> sums;
    for (size_t i = 0; i < inputs[0].size(); ++i) {
      std::vector<float> ranks;
      for (const auto& input : inputs) ranks.push_back(input[i]);
      sums.push_back(sum_in_order(ranks));
      if (op == ReduceOp::kAvg) sums.back() /= kRanks;
    }
    return sums;
  }
};

// Compares bits, as -0 is not 0.
template <typename T>
void expect_bits(const std::vector<T>& got, const std::vector<T>& expected, const char* what) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_EQ(std::memcmp(&got[i], &expected[i], sizeof(T)), 0)
        << what << ", element " << i << ": " << got[i] << " instead of " << expected[i];
}

template <typename T>
void all_reduce(Communicator& communicator, std::vector<T>* data, DataType type, ReduceOp op) {
  const Status status = communicator
                            .all_reduce(TensorView{data->data(), data->data(), data->size()},
                                        {.type = type, .op = op, .timeout = std::chrono::seconds(60)})
                            .wait();
  ASSERT_TRUE(status.ok()) << status.to_string();
}

TEST_P(FloatSumsTest, ALossBesideACountOfTokensArrives) {
  PlacedJob(GetParam()).run([](Communicator& communicator) {
    for (const std::vector<float>& values : {std::vector<float>{2.3f, 1e9f}, {1e8f, 1e-3f}, {3e-4f, 1e5f}}) {
      std::vector<float> data = values;
      all_reduce(communicator, &data, DataType::kFloat32, ReduceOp::kAvg);
      expect_bits(data, values, "the mean of equal numbers, of 4 ranks");
    }
  });
}

std::vector<std::vector<float>> inputs_of_all_magnitudes(size_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<std::vector<float>> inputs(kRanks, std::vector<float>(count));
  for (auto& input : inputs)
    for (float& x : input)
      x = static_cast<float>(std::pow(10.0, 17 * rng.unit() - 8) * (rng.chance(0.5) ? 1 : -1));
  return inputs;
}

TEST_P(FloatSumsTest, HaveTheErrorOfAdditionsInAFixedOrder) {
  // One packet, 16 packets, and more than all slots hold.
  constexpr size_t kCounts[] = {300, 16 * 360 - 5, 100'000, 1'001};
  PlacedJob(GetParam()).run([&](Communicator& communicator) {
    for (uint64_t round = 0; round < 2 * std::size(kCounts); ++round) {
      const ReduceOp op = round % 2 == 0 ? ReduceOp::kSum : ReduceOp::kAvg;
      const size_t count = kCounts[round / 2];
      const std::vector<std::vector<float>> inputs = inputs_of_all_magnitudes(count, round);
      std::vector<float> data = inputs[static_cast<size_t>(communicator.rank())];
      all_reduce(communicator, &data, DataType::kFloat32, op);
      expect_bits(data, sums_in_order(inputs, op), "float32");
      for (size_t i = 0; op == ReduceOp::kSum && i < count; ++i) {
        double sum = 0, magnitudes = 0;
        for (const auto& input : inputs) {
          sum += static_cast<double>(input[i]);
          magnitudes += std::fabs(static_cast<double>(input[i]));
        }
        ASSERT_LE(std::fabs(static_cast<double>(data[i]) - sum), (kRanks - 1) * 0x1p-24 * magnitudes) << i;
      }
    }
  });
}

TEST_P(FloatSumsTest, SpecialValuesAreThoseOfAdditionsInAFixedOrder) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kTiny = std::numeric_limits<float>::denorm_min();
  const std::vector<float> values = {kInf,  -kInf,  std::nanf("5"), -0.0f,  0.0f,
                                     kTiny, -kTiny, 3e38f,          -3e38f, 1.0f};
  // All of them, on each pair of ranks, beside each other in a packet.
  std::vector<std::vector<float>> inputs(kRanks);
  for (size_t first = 0; first < kRanks; ++first) {
    for (size_t second = 0; second < kRanks; ++second) {
      for (const float a : values) {
        for (const float b : values) {
          for (size_t rank = 0; rank < kRanks; ++rank)
            inputs[rank].push_back(rank == first ? a : rank == second ? b : -0.0f);
        }
      }
    }
  }
  PlacedJob(GetParam()).run([&](Communicator& communicator) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
      std::vector<float> data = inputs[static_cast<size_t>(communicator.rank())];
      all_reduce(communicator, &data, DataType::kFloat32, op);
      expect_bits(data, sums_in_order(inputs, op), "special values");
    }
  });
}

// Of tensors of one call, which share packets, and of a reduce-scatter, whose parts end within them.
TEST_P(FloatSumsTest, SeveralTensorsAndPartsAreAddedAlike) {
  PlacedJob(GetParam()).run([&](Communicator& communicator) {
    for (const size_t count : {400u, 20'000u}) {
      const std::vector<std::vector<float>> inputs = inputs_of_all_magnitudes(count, 7);
      const std::vector<float> expected = sums_in_order(inputs, ReduceOp::kSum);
      const std::vector<float>& mine = inputs[static_cast<size_t>(communicator.rank())];
      std::vector<float> data = mine;
      std::vector<TensorView> tensors;
      const size_t piece = count / 16;
      for (size_t begin = 0; begin < data.size(); begin += piece)
        tensors.push_back({data.data() + begin, data.data() + begin, piece});
      Status status = communicator.all_reduce(tensors, {}).wait();
      ASSERT_TRUE(status.ok()) << status.to_string();
      expect_bits(data, expected, "tensors");

      data = mine;
      status =
          communicator.reduce(std::vector<TensorView>{{data.data(), data.data(), data.size()}}, 2, {}).wait();
      ASSERT_TRUE(status.ok()) << status.to_string();
      if (communicator.rank() == 2) expect_bits(data, expected, "reduce");

      data = mine;
      tensors.clear();
      const size_t part = count / kRanks;
      for (size_t begin = 0; begin < data.size(); begin += part)
        tensors.push_back({data.data() + begin, data.data() + begin, part});
      status = communicator.reduce_scatter(tensors, {}).wait();
      ASSERT_TRUE(status.ok()) << status.to_string();
      const auto own = static_cast<size_t>(communicator.rank()) * part;
      expect_bits(std::vector<float>(data.begin() + own, data.begin() + own + part),
                  std::vector<float>(expected.begin() + own, expected.begin() + own + part),
                  "reduce-scatter");
    }
  });
}

TEST_P(FloatSumsTest, SixteenBitTypesAreAddedInFloat32AndRoundedOnce) {
  // Where partial sums travel, only in 32-bit lanes' stead.
  const int lane_bits = adds_groups_first() ? 32 : 0;
  const auto compare = [&](Communicator& communicator) {
    for (const DataType type : {DataType::kBFloat16, DataType::kFloat16}) {
      const bool half = type == DataType::kFloat16;
      const auto narrow = half ? kernels::float_to_float16 : kernels::float_to_bfloat16;
      const auto widen = half ? kernels::float16_to_float : kernels::bfloat16_to_float;
      for (const size_t count : {1'000u, 20'001u}) {
        const ReduceOp op = count % 2 == 0 ? ReduceOp::kSum : ReduceOp::kAvg;
        std::vector<std::vector<float>> inputs = inputs_of_all_magnitudes(count, 11);
        for (auto& input : inputs)
          for (float& x : input) x = widen(narrow(half ? x * 0x1p-20f : x));
        std::vector<uint16_t> data, expected;
        for (const float x : inputs[static_cast<size_t>(communicator.rank())]) data.push_back(narrow(x));
        for (const float x : sums_in_order(inputs, op)) expected.push_back(narrow(x));
        all_reduce(communicator, &data, type, op);
        expect_bits(data, expected, half ? "float16" : "bfloat16");
      }
    }
  };
  PlacedJob(GetParam()).run(compare, lane_bits);
}

// Small ones of several hosts travel in float32 whatever the lanes.
TEST(FloatSumsOfHostsTest, SmallTensorsOfSixteenBitTypesAreAddedInFloat32) {
  PlacedJob(Place::kTwoHosts).run([](Communicator& communicator) {
    // 1 and three times 2^-8: each addition in bfloat16 would be rounded to 1.
    std::vector<uint16_t> data(1'000, communicator.rank() == 0 ? 0x3F80 : 0x3B80);
    all_reduce(communicator, &data, DataType::kBFloat16, ReduceOp::kSum);
    expect_bits(data, std::vector<uint16_t>(1'000, 0x3F82), "bfloat16");
  });
}

INSTANTIATE_TEST_SUITE_P(Places, FloatSumsTest,
                         testing::Values(Place::kShards, Place::kLossyShards, Place::kAggregator,
                                         Place::kAggregators, Place::kHierarchy, Place::kOneHost,
                                         Place::kTwoHosts, Place::kFailover),
                         place_name);

}  // namespace
}  // namespace netsum::float_sums_test
