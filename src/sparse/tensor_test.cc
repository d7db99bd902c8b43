#include "src/sparse/tensor.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "src/base/rng.h"
#include "src/kernels/half.h"

namespace netsum::sparse::tensor_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Coo {
  std::vector<int64_t> indices;
  std::vector<float> values;
  CooView view(uint64_t rows, size_t row_elements = 1) const {
    return {.indices = indices.data(),
            .values = values.data(),
            .count = indices.size(),
            .rows = rows,
            .row_elements = row_elements};
  }
};

struct CooResult {
  std::vector<int64_t> indices;
  std::vector<float> values;
  size_t row_elements = 1;
  CooAllocator allocator() {
    return [this](size_t count) {
      indices.resize(count);
      values.resize(count * row_elements);
      return CooMemory{indices.data(), values.data()};
    };
  }
};

// What comes out of a job of one rank.
CooResult alone(const Coo& coo, uint64_t rows, size_t row_elements = 1) {
  CooResult result{.row_elements = row_elements};
  const auto tensor = make_coo_tensor(coo.view(rows, row_elements), DataType::kFloat32, result.allocator());
  EXPECT_TRUE(tensor->status().ok()) << tensor->status().to_string();
  const Segment all{0, rows};
  BitSet set;
  tensor->find(all, &set);
  EXPECT_EQ(tensor->count(), set.count());
  std::vector<uint8_t> values(tensor->elements(all, set) * 4 + Tensor::kSlackBytes);
  EXPECT_TRUE(tensor->pack(all, set, set, values.data()));
  tensor->unpack(all, &set, &values);
  EXPECT_TRUE(tensor->finish().ok());
  return result;
}

TEST(CooTensorTest, SortsRowsAndAddsUpDuplicates) {
  const CooResult result = alone({{5, 1, 5, 0}, {1, 2, 3, 4, 10, 20, 7, 8}}, 6, 2);
  EXPECT_THAT(result.indices, ElementsAre(0, 1, 5));
  EXPECT_THAT(result.values, ElementsAre(7, 8, 3, 4, 11, 22));
}

TEST(CooTensorTest, PacksZerosForRowsOfOtherRanks) {
  const Coo coo{{1}, {2.5f}};
  CooResult result;
  const auto tensor = make_coo_tensor(coo.view(2), DataType::kFloat32, result.allocator());
  const Segment all{0, 2};
  BitSet own;
  tensor->find(all, &own);
  BitSet united = own;
  united.add(0);
  std::vector<float> values(2 + Tensor::kSlackBytes / sizeof(float), 77);
  EXPECT_TRUE(tensor->pack(all, united, own, reinterpret_cast<uint8_t*>(values.data())));
  EXPECT_EQ(values[0], 0);
  EXPECT_EQ(values[1], 2.5f);
}

TEST(CooTensorTest, PacksRowsOfAnyOrderAndSize) {
  for (const size_t row_elements : {size_t{1}, size_t{2}, size_t{3}}) {
    for (const bool sorted : {true, false}) {
      Coo coo{sorted ? std::vector<int64_t>{2, 70, 71} : std::vector<int64_t>{71, 2, 70}, {}};
      for (const int64_t index : coo.indices) coo.values.insert(coo.values.end(), row_elements, float(index));
      CooResult result;
      const auto tensor =
          make_coo_tensor(coo.view(200, row_elements), DataType::kFloat32, result.allocator());
      const Segment segment{64, 200};
      BitSet own, united;
      tensor->find(segment, &own);
      for (const uint64_t position : {6, 7, 100}) united.add(position);
      std::vector<float> values(3 * row_elements + Tensor::kSlackBytes / sizeof(float), 77);
      ASSERT_TRUE(tensor->pack(segment, united, own, reinterpret_cast<uint8_t*>(values.data())));
      for (size_t i = 0; i < 3 * row_elements; ++i)
        EXPECT_EQ(values[i], std::vector<float>({70, 71, 0})[i / row_elements]);
      EXPECT_FALSE(tensor->pack(segment, {}, own, reinterpret_cast<uint8_t*>(values.data())));
    }
  }
}

TEST(CooTensorTest, KeepsStoredZeros) {
  const CooResult result = alone({{3, 2, 3}, {1, 0, -1}}, 4);
  EXPECT_THAT(result.indices, ElementsAre(2, 3));
  EXPECT_THAT(result.values, ElementsAre(0, 0));
}

TEST(CooTensorTest, AddsDuplicatesOfHalfTypesAndIntegers) {
  const std::vector<int64_t> indices = {1, 1};
  const auto sum = [&](DataType type, const void* values, void* out) {
    std::vector<int64_t> index(1);
    const CooView view{.indices = indices.data(), .values = values, .count = 2, .rows = 2, .row_elements = 1};
    const auto tensor = make_coo_tensor(view, type, [&](size_t) { return CooMemory{index.data(), out}; });
    if (!tensor->status().ok()) return tensor->status();
    BitSet set;
    tensor->find({0, 2}, &set);
    std::vector<uint8_t> packed(8 + Tensor::kSlackBytes);
    EXPECT_TRUE(tensor->pack({0, 2}, set, set, packed.data()));
    tensor->unpack({0, 2}, &set, &packed);
    return tensor->finish();
  };
  const uint16_t bfloats[] = {kernels::float_to_bfloat16(1.5f), kernels::float_to_bfloat16(2)};
  const uint16_t halves[] = {kernels::float_to_float16(1.5f), kernels::float_to_float16(2)};
  uint16_t out = 0;
  EXPECT_TRUE(sum(DataType::kBFloat16, bfloats, &out).ok());
  EXPECT_EQ(kernels::bfloat16_to_float(out), 3.5f);
  EXPECT_TRUE(sum(DataType::kFloat16, halves, &out).ok());
  EXPECT_EQ(kernels::float16_to_float(out), 3.5f);
  const int64_t longs[] = {int64_t{1} << 62, -1};
  int64_t long_out = 0;
  EXPECT_TRUE(sum(DataType::kInt64, longs, &long_out).ok());
  EXPECT_EQ(long_out, (int64_t{1} << 62) - 1);
  const int32_t large[] = {std::numeric_limits<int32_t>::max(), 1};
  int32_t int_out = 0;
  const Status overflow = sum(DataType::kInt32, large, &int_out);
  EXPECT_EQ(overflow.code(), ErrorCode::kOverflow);
  EXPECT_THAT(overflow.message(), HasSubstr("index 1 does not fit int32"));
}

TEST(CooTensorTest, InvalidIndicesAreNamed) {
  const auto status = [](const CooView& view) {
    return make_coo_tensor(view, DataType::kFloat32, [](size_t) { return CooMemory{}; })->status();
  };
  const Coo too_large{{0, 4}, {1, 1}}, negative{{-1}, {1}};
  EXPECT_EQ(status(too_large.view(4)).code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status(too_large.view(4)).message(),
              HasSubstr("index 4, number 1 of 2, is not in a table of 4"));
  EXPECT_THAT(status(negative.view(4)).message(), HasSubstr("index -1"));
  EXPECT_THAT(status({.count = 1, .rows = 4}).message(), HasSubstr("null"));
  EXPECT_TRUE(check_coo({.rows = uint64_t{1} << 40}, DataType::kFloat32).ok());
  EXPECT_FALSE(check_coo({.rows = (uint64_t{1} << 40) + 1}, DataType::kFloat32).ok());
  EXPECT_FALSE(check_coo({.rows = 1, .row_elements = 0}, DataType::kFloat32).ok());
  EXPECT_FALSE(
      check_coo({.rows = uint64_t{1} << 40, .row_elements = size_t{1} << 24}, DataType::kFloat32).ok());
}

TEST(CooTensorTest, AnAllocatorWithoutMemoryIsAnError) {
  const Coo coo{{1}, {2}};
  const auto tensor = make_coo_tensor(coo.view(4), DataType::kFloat32, [](size_t) { return CooMemory{}; });
  BitSet set;
  set.add(1);
  std::vector<uint8_t> values(4 + Tensor::kSlackBytes);
  tensor->unpack({0, 4}, &set, &values);
  EXPECT_EQ(tensor->finish().code(), ErrorCode::kResourceExhausted);
}

std::vector<uint64_t> nonzero(const std::vector<float>& values, size_t unit) {
  std::vector<float> copy = values;
  const auto tensor = make_dense_tensor({copy.data(), copy.data(), copy.size()}, DataType::kFloat32, unit);
  BitSet set;
  tensor->find({0, tensor->positions()}, &set);
  EXPECT_EQ(tensor->count(), set.count());
  std::vector<uint64_t> positions;
  set.for_each([&](uint64_t position) { positions.push_back(position); });
  return positions;
}

TEST(DenseTensorTest, FindsUnitsThatAreNotZero) {
  const float nan = std::nanf(""), denormal = std::numeric_limits<float>::denorm_min();
  const std::vector<float> values = {0, 1, -0.0f, nan, INFINITY, denormal, 0};
  EXPECT_THAT(nonzero(values, 1), ElementsAre(1, 3, 4, 5));
  EXPECT_THAT(nonzero(values, 2), ElementsAre(0, 1, 2));
  EXPECT_THAT(nonzero({0, 0, 0, 0, 1}, 2), ElementsAre(2)) << "the last unit is shorter";
  EXPECT_THAT(nonzero({0, 0, 0, 0, -0.0f}, 2), ElementsAre());
}

TEST(DenseTensorTest, WritesZerosWhereNothingTravelled) {
  for (const size_t unit : {size_t{1}, size_t{2}}) {
    std::vector<float> in = {-0.0f, -0.0f, 1, 2, -0.0f}, out = {9, 9, 9, 9, 9};
    for (const bool in_place : {false, true}) {
      float* const to = in_place ? in.data() : out.data();
      const auto tensor = make_dense_tensor({in.data(), to, in.size()}, DataType::kFloat32, unit);
      const Segment all{0, tensor->positions()};
      BitSet set;
      tensor->find(all, &set);
      std::vector<uint8_t> values(tensor->elements(all, set) * 4 + Tensor::kSlackBytes);
      ASSERT_TRUE(tensor->pack(all, set, set, values.data()));
      tensor->unpack(all, &set, &values);
      for (size_t i = 0; i < in.size(); ++i) EXPECT_FALSE(std::signbit(to[i])) << i;
      EXPECT_THAT(std::vector<float>(to, to + 5), ElementsAre(0, 0, 1, 2, 0));
    }
  }
}

// Few elements, of which the tensor keeps copies; more than it keeps, from the beginning or from later on; and none.
TEST(DenseTensorTest, PacksWhatTheRankHasAndZerosElsewhere) {
  constexpr size_t kCount = 40'001;
  for (const auto& [in_first_half, in_second_half] :
       {std::pair{0.01, 0.01}, {0.5, 0.5}, {0.01, 0.9}, {0.0, 0.0}, {0.9, 0.01}}) {
    Rng rng(1);
    std::vector<float> values(kCount);
    BitSet united;
    std::vector<float> expected;
    for (size_t i = 0; i < kCount; ++i) {
      if (rng.chance(i < kCount / 2 ? in_first_half : in_second_half)) values[i] = static_cast<float>(i + 1);
      if (values[i] == 0 && !rng.chance(0.1)) continue;
      united.add(i);
      expected.push_back(values[i]);
    }
    const auto tensor = make_dense_tensor({values.data(), values.data(), kCount}, DataType::kFloat32, 1);
    BitSet own;
    tensor->find({0, kCount}, &own);
    std::vector<float> packed(expected.size() + Tensor::kSlackBytes / sizeof(float));
    ASSERT_TRUE(tensor->pack({0, kCount}, united, own, reinterpret_cast<uint8_t*>(packed.data())));
    packed.resize(expected.size());
    EXPECT_EQ(packed, expected);
    if (own.size() == 0) continue;
    const auto some = static_cast<ptrdiff_t>(united.size() / 2);
    const bool has_it =
        std::binary_search(own.numbers.begin(), own.numbers.end(), united.numbers[united.size() / 2]);
    united.numbers.erase(united.numbers.begin() + some);
    united.words.erase(united.words.begin() + some);
    packed.resize(expected.size() + Tensor::kSlackBytes / sizeof(float));
    EXPECT_EQ(tensor->pack({0, kCount}, united, own, reinterpret_cast<uint8_t*>(packed.data())), !has_it);
  }
}

TEST(DenseTensorTest, PackRefusesAUnionThatLacksWhatTheRankHas) {
  std::vector<float> values = {1, 0, 1};
  const auto tensor = make_dense_tensor({values.data(), values.data(), 3}, DataType::kFloat32, 1);
  BitSet own, united;
  tensor->find({0, 3}, &own);
  std::vector<uint8_t> packed(12 + Tensor::kSlackBytes);
  united.add(2);
  EXPECT_FALSE(tensor->pack({0, 3}, united, own, packed.data()));
  EXPECT_FALSE(tensor->pack({0, 3}, {}, own, packed.data()));
}

}  // namespace
}  // namespace netsum::sparse::tensor_test
