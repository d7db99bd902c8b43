// What all_reduce() refuses for its tensors alone.
#include "session/tensor_check.h"

#include <gmock/gmock.h>

#include <array>
#include <cstdint>

namespace netsum::tensor_check_test {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kPayload = 1440;
std::array<float, 100> memory;

TensorView in_place(size_t begin, size_t count) {
  return {&memory[begin], &memory[begin], count};
}
TensorView between(size_t from, size_t to, size_t count) {
  return {&memory[from], &memory[to], count};
}

Status check(std::vector<TensorView> tensors, DataType type = DataType::kFloat32, const Role& role = {}) {
  OperationSpec spec;
  spec.type = type;
  spec.tensors = std::move(tensors);
  spec.role = role;
  return check_operation(spec, kPayload);
}
void expect_refused(std::vector<TensorView> tensors, const std::string& why) {
  const Status status = check(std::move(tensors));
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr(why));
}
void expect_fine(std::vector<TensorView> tensors) {
  const Status status = check(std::move(tensors));
  EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(TensorCheckTest, TensorsThatOverlapAreRefusedByTheirPlacesInTheCall) {
  expect_refused({in_place(0, 10), in_place(0, 10)},
                 "the output of tensor 0 overlaps the output of tensor 1");
  expect_refused({in_place(5, 10), in_place(0, 6)}, "the output of tensor 1 overlaps the output of tensor 0");
  expect_refused({in_place(0, 50), in_place(60, 5), in_place(3, 1)},
                 "tensor 0 overlaps the output of tensor 2");
  expect_refused({between(0, 50, 10), in_place(9, 1)},
                 "the input of tensor 0 overlaps the output of tensor 1");
  expect_refused({in_place(9, 1), between(0, 50, 10)},
                 "the input of tensor 1 overlaps the output of tensor 0");
  expect_refused({between(0, 20, 10), between(40, 29, 10)},
                 "the output of tensor 0 overlaps the output of tensor 1");
  // A long one that ends behind a short one between the two.
  expect_refused({in_place(0, 90), in_place(95, 1), in_place(80, 1)},
                 "tensor 0 overlaps the output of tensor 2");
}

TEST(TensorCheckTest, ATensorWhoseOutputIsNeitherItsInputNorApartIsRefused) {
  expect_refused({between(0, 1, 10)}, "the input of tensor 0 overlaps the output of tensor 0");
  expect_refused({between(9, 0, 10)}, "the output of tensor 0 overlaps the input of tensor 0");
}

TEST(TensorCheckTest, TensorsApartAreFine) {
  expect_fine({});
  expect_fine({in_place(0, 10), in_place(10, 10), in_place(20, 0), in_place(20, 5)});
  expect_fine({between(0, 10, 10), between(0, 20, 10)});  // both read the same
  expect_fine({between(0, 10, 10), in_place(20, 10), between(30, 40, 10)});
  expect_fine({{nullptr, nullptr, 0}, in_place(0, 1), {nullptr, nullptr, 0}});
}

TEST(TensorCheckTest, SizesThatNoMemoryHasAreRefused) {
  for (const size_t count : {SIZE_MAX, SIZE_MAX / 4, SIZE_MAX / 4 + 1, SIZE_MAX / 8})
    expect_refused({in_place(0, count)}, "elements is larger than the memory");
  expect_refused({{nullptr, memory.data(), 1}}, "tensor 0 of 1 elements has a null pointer");
  expect_refused({in_place(0, 1), {memory.data(), nullptr, 1}}, "tensor 1 of 1 elements has a null pointer");
}

// Nothing is read: no such memory exists.
TEST(TensorCheckTest, AnOperationOfMoreThan2To32PacketsIsRefused) {
  constexpr size_t kMost = (size_t{1} << 32) * (kPayload / 4);
  expect_fine({in_place(0, kMost)});
  expect_refused({in_place(0, kMost + 1)},
                 "1546188226561 elements of float32 are more than the 2^32 packets");
  TensorView second = in_place(0, kMost / 2);
  second.input = second.output = &memory[0] + kMost;
  expect_fine({in_place(0, kMost / 2), second});
  second.count = kMost / 2 + 1;
  expect_refused({in_place(0, kMost / 2), second}, "sum them in several operations");

  // Half precision may travel in lanes of 32 bits.
  EXPECT_TRUE(check({in_place(0, kMost)}, DataType::kBFloat16).ok());
  EXPECT_FALSE(check({in_place(0, kMost + 1)}, DataType::kBFloat16).ok());
  EXPECT_TRUE(check({in_place(0, kMost / 2)}, DataType::kInt64).ok());
  EXPECT_FALSE(check({in_place(0, kMost / 2 + 1)}, DataType::kInt64).ok());
}

TEST(TensorCheckTest, ARoleNeedsOnlyTheMemoryThatItUses) {
  const Role sender{.collective = Collective::kReduce, .receivers = Ranks::none(), .chunk_map = {}};
  const Role receiver{.collective = Collective::kReduce, .contributors = Ranks::none(), .chunk_map = {}};
  const TensorView only_input{&memory[0], nullptr, 10}, only_output{nullptr, &memory[5], 10};
  EXPECT_TRUE(check({only_input, {&memory[5], nullptr, 10}}, DataType::kFloat32, sender).ok());
  EXPECT_TRUE(check({only_output, in_place(20, 5)}, DataType::kFloat32, receiver).ok());
  const Status refusal = check({only_output}, DataType::kFloat32, sender);
  EXPECT_EQ(refusal.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refusal.message(), HasSubstr("reduce: tensor 0 of 10 elements has a null pointer"));
  EXPECT_FALSE(check({only_input}, DataType::kFloat32, receiver).ok());
  EXPECT_FALSE(check({only_output, in_place(0, 10)}, DataType::kFloat32, receiver).ok()) << "outputs overlap";
}

TEST(TensorCheckTest, AnOperatorThatTheTypeDoesNotHaveIsRefused) {
  const auto check_op = [](ReduceOp op, DataType type) {
    OperationSpec spec;
    spec.type = type;
    spec.op = op;
    spec.tensors = {in_place(0, 10)};
    return check_operation(spec, kPayload);
  };
  for (const ReduceOp op : {ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor}) {
    EXPECT_TRUE(check_op(op, DataType::kInt32).ok());
    EXPECT_TRUE(check_op(op, DataType::kInt64).ok());
    const Status refusal = check_op(op, DataType::kFloat32);
    EXPECT_EQ(refusal.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(refusal.message(),
                HasSubstr(std::string(reduce_op_name(op)) + " is defined for integer types only"));
  }
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax})
    for (const DataType type : {DataType::kFloat32, DataType::kBFloat16, DataType::kInt64})
      EXPECT_TRUE(check_op(op, type).ok());
  EXPECT_THAT(check_op(ReduceOp::kAvg, DataType::kInt32).message(),
              HasSubstr("avg is defined for floating-point types only"));
  for (const ReduceOp op : {ReduceOp::kProduct, static_cast<ReduceOp>(0), static_cast<ReduceOp>(200)})
    EXPECT_EQ(check_op(op, DataType::kInt32).code(), ErrorCode::kUnsupported);
}

Status check_bytes(std::vector<TensorView> parts, const Role& role) {
  return check(std::move(parts), DataType::kByte, role);
}

TEST(TensorCheckTest, PartsNeedTheMemoryThatTheirRankUses) {
  const Role role = make_role(Collective::kAllGather, 0, 1);
  uint8_t* const bytes = reinterpret_cast<uint8_t*>(memory.data());
  const TensorView received{nullptr, bytes, 10};
  EXPECT_TRUE(check_bytes({received, {bytes + 20, nullptr, 10}}, role).ok())
      << "its own part is there already";
  EXPECT_TRUE(check_bytes({received, {bytes + 20, bytes + 20, 10}}, role).ok());
  EXPECT_TRUE(check_bytes({received, {bytes + 20, bytes + 30, 10}}, role).ok());
  EXPECT_FALSE(check_bytes({received, {bytes + 20, bytes + 29, 10}}, role).ok());
  EXPECT_FALSE(check_bytes({received, {bytes + 9, nullptr, 10}}, role).ok()) << "an input overlaps an output";
  EXPECT_THAT(check_bytes({received, {nullptr, bytes + 20, 10}}, role).message(),
              HasSubstr("all_gather: tensor 1 of 10 elements has a null pointer as its input"));
  EXPECT_THAT(check_bytes({{bytes, nullptr, 10}, {bytes + 20, nullptr, 10}}, role).message(),
              HasSubstr("tensor 0 of 10 elements has a null pointer as its output"));
  EXPECT_TRUE(check_bytes({{nullptr, nullptr, 0}, {nullptr, nullptr, 0}}, role).ok());
  // What a rank does not use may be anything, also the same for all parts.
  const Role leaf = make_role(Collective::kGather, 0, 1);
  EXPECT_TRUE(check_bytes({{bytes, bytes, 10}, {bytes, nullptr, 10}, {bytes, bytes, 10}}, leaf).ok());
  // All packets can be named, and one byte more cannot.
  constexpr size_t kMost = (size_t{1} << 32) * kPayload;
  EXPECT_TRUE(check_bytes({{bytes, nullptr, 0}, {bytes, nullptr, kMost}}, role).ok());
  EXPECT_FALSE(check_bytes({{bytes, nullptr, 0}, {bytes, nullptr, kMost + 1}}, role).ok());
}

}  // namespace
}  // namespace netsum::tensor_check_test
