#include "src/worker/operation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "src/encoding/without_tensors.h"
namespace netsum::operation_test {
namespace {

Operation make_operation(uint64_t number, DataType type, std::vector<TensorView> tensors,
                         ReduceOp op = ReduceOp::kSum, const Role& role = {}, Joint joint = {}) {
  return {number,
          {.type = type,
           .op = op,
           .tensors = std::move(tensors),
           .role = role,
           .deadline_us = 0,
           .joint = std::move(joint)},
          2};
}

TEST(Operation, SignatureTellsOperationsApart) {
  int32_t memory[100] = {};
  const auto signature = [&](uint64_t number, DataType type, ReduceOp op, std::vector<size_t> counts) {
    std::vector<TensorView> tensors;
    for (const size_t count : counts) tensors.push_back({memory, memory, count});
    return make_operation(number, type, tensors, op).signature();
  };
  const uint32_t first = signature(3, DataType::kFloat32, ReduceOp::kSum, {10, 20});
  EXPECT_EQ(first, signature(3, DataType::kFloat32, ReduceOp::kSum, {10, 20}));
  const std::set<uint32_t> all = {first,
                                  signature(4, DataType::kFloat32, ReduceOp::kSum, {10, 20}),
                                  signature(3, DataType::kInt32, ReduceOp::kSum, {10, 20}),
                                  signature(3, DataType::kFloat32, ReduceOp::kAvg, {10, 20}),
                                  signature(3, DataType::kFloat32, ReduceOp::kSum, {20, 10}),
                                  signature(3, DataType::kFloat32, ReduceOp::kSum, {30}),
                                  signature(3, DataType::kFloat32, ReduceOp::kSum, {10, 20, 0}),
                                  signature(3, DataType::kFloat32, ReduceOp::kSum, {})};
  EXPECT_EQ(all.size(), 8u);
}

TEST(Operation, DescribesItselfForPeople) {
  int32_t memory[100] = {};
  EXPECT_EQ(make_operation(12, DataType::kFloat32, {{memory, memory, 100}}).describe(),
            "all_reduce #12 (float32[100], sum)");
  EXPECT_EQ(make_operation(0, DataType::kInt32, {{memory, memory, 4}, {memory, memory, 5}}).describe(),
            "all_reduce #0 (int32[9] in 2 tensors, sum)");
  EXPECT_EQ(make_operation(0, DataType::kFloat16, {{memory, memory, 4}}).describe(),
            "all_reduce #0 (float16[4] in 16-bit lanes, sum)");
}

TEST(Operation, FurtherInputsLieAsTheFirstDo) {
  // Two ranks' memory of one host, each with three tensors in a row.
  const float first[6] = {1e30f, 1.0f, 2.0f, 3.0f, 1e-30f, 2e-30f};
  const float second[6] = {1e30f, 5.0f, 6.0f, 7.0f, 3e-30f, 4e-30f};
  float sum[6] = {};
  Joint joint;
  joint.more_inputs = {second};
  const Operation operation = make_operation(
      0, DataType::kFloat32, {{first, sum, 1}, {first + 1, sum + 1, 3}, {first + 4, sum + 4, 2}},
      ReduceOp::kSum, {}, joint);
  for (const size_t begin : {0, 2}) {
    alignas(8) uint8_t payload[24];
    uint8_t agreed[6];
    Chunk chunk = operation.chunk_of(begin, 6 - begin);
    operation.scan(chunk, agreed);
    chunk.agreed = agreed;
    const ChunkPlan plan = operation.plan(chunk, 64);
    ASSERT_EQ(plan.packets, 1);
    operation.encode(chunk, plan.packet[0], payload);
    EXPECT_TRUE(operation.decode(chunk, plan.packet[0], {payload}));
  }
  EXPECT_EQ(std::vector<float>(sum, sum + 6), (std::vector<float>{2e30f, 6.0f, 8.0f, 10.0f, 4e-30f, 6e-30f}));
}

// Integers are one block across tensors: what one input of one tensor requires is done for all of them.
// A rank without tensors counts as one with them: it sends full packets, and takes results.
TEST(Operation, WithoutTensorsTouchesNoMemory) {
  auto* const nothing = reinterpret_cast<uint8_t*>(uintptr_t{64});
  for (const DataType type : {DataType::kFloat32, DataType::kInt32, DataType::kByte}) {
    OperationSpec spec;
    spec.type = type;
    spec.tensors = {{nothing, nothing + 8192, 100}};
    const Operation with(3, spec, 2);
    spec.without_tensors = true;
    Contribution contribution;
    spec.tensors[0].input = &contribution;
    const Operation without(3, spec, 2);
    EXPECT_EQ(without.signature(), with.signature());
    EXPECT_EQ(without.kind(), with.kind());
    const Elements all = without.chunk_of(0, 100);
    EXPECT_TRUE(without.contributes());
    EXPECT_TRUE(without.contributes_to(all));
    EXPECT_TRUE(without.needs_result(all));
    std::vector<uint8_t> bytes(100 * size_of(type), 0xff);
    without.copy_in(0, 100, bytes.data());
    EXPECT_EQ(bytes, std::vector<uint8_t>(bytes.size(), 0));
    const std::vector<uint8_t> values(20 * size_of(type), 5);
    contribution.values = values;
    contribution.values_begin = 70;
    without.copy_in(60, 40, bytes.data());
    EXPECT_EQ(bytes[10 * size_of(type) - 1], 0);
    EXPECT_EQ(bytes[10 * size_of(type)], 5);
    EXPECT_EQ(bytes[30 * size_of(type) - 1], 5);
    EXPECT_EQ(bytes[30 * size_of(type)], 0);
    without.copy_out(bytes.data(), 0, 100);
    without.copy_own(all);
    if (type != DataType::kFloat32) continue;
    bytes.assign(400, 0xff);
    without.copy_in_floats(all, bytes.data());
    EXPECT_EQ(bytes[69 * 4], 0);
    EXPECT_EQ(bytes[70 * 4], 5);
    EXPECT_EQ(bytes[90 * 4], 0);
    without.copy_out_floats(bytes.data(), all, 2);
  }
}

TEST(Operation, OneInputOfOneTensorCanRequireWideLanes) {
  constexpr int32_t kLarge = 1 << 30;
  const std::vector<int32_t> small = {1, 2, 3, 4}, with_large = {5, 6, 7, kLarge};
  for (const bool large_is_first : {true, false}) {
    const auto& first = large_is_first ? with_large : small;
    const auto& second = large_is_first ? small : with_large;
    std::vector<int32_t> sum(4);
    Joint joint;
    joint.more_inputs = {second.data()};
    const Operation operation = make_operation(
        0, DataType::kInt32, {{first.data(), sum.data(), 3}, {first.data() + 3, sum.data() + 3, 1}},
        ReduceOp::kSum, {}, joint);
    alignas(8) uint8_t payload[32];
    uint8_t agreed[2];
    Chunk chunk = operation.chunk_of(0, 4);
    operation.scan(chunk, agreed);
    EXPECT_EQ(agreed[1], 1) << "wide";
    chunk.agreed = agreed;
    const ChunkPlan plan = operation.plan(chunk, 64);
    ASSERT_EQ(plan.packets, 1);
    operation.encode(chunk, plan.packet[0], payload);
    EXPECT_TRUE(operation.decode(chunk, plan.packet[0], {payload}));
    EXPECT_EQ(sum, (std::vector<int32_t>{6, 8, 10, kLarge + 4})) << large_is_first;
  }
}

TEST(Operation, TensorsOfAPartKeepTheirIds) {
  float floats[30];
  int32_t integers[30];
  const auto tensors_of = [](DataType type, auto* memory, size_t begin, size_t n) {
    const Operation operation =
        make_operation(0, type, {{memory, memory, 7, 11}, {memory, memory, 0, 12}, {memory, memory, 23, 13}});
    std::vector<std::pair<uint64_t, size_t>> found;
    for (const TensorView& tensor : operation.tensors_of(begin, n))
      found.emplace_back(tensor.id, tensor.count);
    EXPECT_EQ(operation.offset_of(begin), begin < 7 ? begin : begin - 7);
    return found;
  };
  using Found = std::vector<std::pair<uint64_t, size_t>>;
  EXPECT_EQ(tensors_of(DataType::kFloat32, floats, 5, 20), (Found{{11, 2}, {13, 18}}));
  EXPECT_EQ(tensors_of(DataType::kFloat32, floats, 9, 3), (Found{{13, 3}}));
  EXPECT_EQ(tensors_of(DataType::kInt32, integers, 5, 20), (Found{{11, 20}})) << "integers need no borders";
}

TEST(Operation, SignatureSaysWhichCollectiveItIs) {
  int32_t memory[10] = {};
  const auto signature = [&](const Role& role) {
    return make_operation(3, DataType::kInt32, {{memory, memory, 10}}, ReduceOp::kSum, role).signature();
  };
  const uint32_t all_reduce = signature({});
  const auto map = [](std::vector<uint32_t> weights) { return std::make_shared<ChunkMap>(weights); };
  const std::set<uint32_t> all = {all_reduce, signature({.collective = Collective::kReduce}),
                                  signature({.collective = Collective::kReduce, .parameter = 1}),
                                  signature({.chunk_map = map({1, 2})}),
                                  signature({.chunk_map = map({2, 1})})};
  EXPECT_EQ(all.size(), 5u);
  // What differs between the ranks of one operation, and what does not change where chunks go.
  EXPECT_EQ(signature({.contributors = Ranks::none()}), all_reduce);
  EXPECT_EQ(signature({.receivers = Ranks::none()}), all_reduce);
  EXPECT_EQ(signature({.rank = 1}), all_reduce);
  EXPECT_EQ(signature({.chunk_map = map({7, 7})}), all_reduce);
}

TEST(Operation, SignatureCoversRootsAndParts) {
  uint8_t memory[100] = {};
  const auto signature = [&](Collective collective, int root, int rank, std::vector<size_t> sizes) {
    std::vector<TensorView> parts;
    for (const size_t size : sizes) parts.push_back({memory, memory, size});
    return make_operation(3, DataType::kByte, parts, ReduceOp::kSum, make_role(collective, root, rank))
        .signature();
  };
  std::set<uint32_t> all;
  for (const Collective collective :
       {Collective::kBroadcast, Collective::kAllGather, Collective::kGather, Collective::kScatter}) {
    const uint32_t one = signature(collective, 0, 0, {10, 20});
    all.insert(one);
    EXPECT_EQ(signature(collective, 0, 1, {10, 20}), one) << "equal on all ranks";
    all.insert(signature(collective, 0, 0, {20, 10}));
    if (has_root(collective)) all.insert(signature(collective, 1, 0, {10, 20}));
  }
  EXPECT_EQ(all.size(), 4u + 4u + 3u);
}

TEST(Operation, DescribesRootsAndParts) {
  uint8_t memory[100] = {};
  const auto text = [&](Collective collective, DataType type, size_t parts) {
    return make_operation(7, type, std::vector<TensorView>(parts, {memory, memory, 8}), ReduceOp::kSum,
                          make_role(collective, 1, 0))
        .describe();
  };
  EXPECT_EQ(text(Collective::kBroadcast, DataType::kByte, 1), "broadcast #7 (byte[8], from rank 1)");
  EXPECT_EQ(text(Collective::kAllGather, DataType::kByte, 3), "all_gather #7 (byte[24] in 3 parts)");
  EXPECT_EQ(text(Collective::kGather, DataType::kByte, 3), "gather #7 (byte[24] in 3 parts, to rank 1)");
  EXPECT_EQ(text(Collective::kScatter, DataType::kByte, 3), "scatter #7 (byte[24] in 3 parts, from rank 1)");
  EXPECT_EQ(text(Collective::kReduce, DataType::kInt32, 1), "reduce #7 (int32[8], sum, to rank 1)");
  EXPECT_EQ(text(Collective::kReduceScatter, DataType::kInt32, 2),
            "reduce_scatter #7 (int32[16] in 2 parts, sum)");
}

// Of a rank that takes no part in some tensors, neither their inputs nor their outputs are touched.
TEST(Operation, OnlyTheMemoryOfItsRoleIsUsed) {
  uint8_t own[3] = {1, 2, 3}, other[3] = {7, 7, 7}, payload[8], out[6];
  Operation operation = make_operation(0, DataType::kByte, {{other, other, 3}, {own, nullptr, 3}},
                                       ReduceOp::kSum, make_role(Collective::kGather, 0, 1));
  const Chunk chunk = operation.chunk(0, 64);
  operation.encode(chunk, operation.plan(chunk, 64).packet[0], payload);
  EXPECT_EQ(std::vector<uint8_t>(payload, payload + 8), (std::vector<uint8_t>{0, 0, 0, 1, 2, 3, 0, 0}));
  EXPECT_TRUE(operation.contributes());
  EXPECT_TRUE(operation.contributes_to(chunk));
  EXPECT_TRUE(operation.contributes_to(operation.chunk_of(2, 2)));
  EXPECT_FALSE(operation.contributes_to(operation.chunk_of(0, 3)));
  operation.copy_in(1, 5, out);
  EXPECT_EQ(std::vector<uint8_t>(out, out + 5), (std::vector<uint8_t>{0, 0, 1, 2, 3}));
  const std::vector<uint8_t> sums(8, 9);
  EXPECT_TRUE(operation.decode(chunk, operation.plan(chunk, 64).packet[0], {sums.data()}));
  operation.copy_out(sums.data(), 0, 6);
  EXPECT_EQ(std::vector<uint8_t>(other, other + 3), (std::vector<uint8_t>{7, 7, 7}));
}

TEST(Operation, BytesOfThisRankThatAreInPlaceAreNotWritten) {
  uint8_t memory[6] = {1, 2, 3, 4, 5, 6};
  const Operation operation =
      make_operation(0, DataType::kByte, {{memory, memory, 3}, {memory + 3, memory + 3, 3}}, ReduceOp::kSum,
                     make_role(Collective::kAllGather, 0, 1));
  const std::vector<uint8_t> results(6, 9);
  operation.copy_out(results.data(), 0, 6);
  EXPECT_EQ(std::vector<uint8_t>(memory, memory + 6), (std::vector<uint8_t>{9, 9, 9, 4, 5, 6}));
}

TEST(Operation, KnowsWhatGoesToThisRankAlone) {
  int32_t memory[6] = {};
  const auto make = [&](Collective collective, int root) {
    return make_operation(0, DataType::kInt32, {{memory, memory, 3}, {memory + 3, memory + 3, 3}},
                          ReduceOp::kSum, make_role(collective, root, 1));
  };
  const Operation parts = make(Collective::kReduceScatter, 0);
  EXPECT_TRUE(parts.is_for_this_rank_alone(parts.chunk_of(3, 3)));
  EXPECT_FALSE(parts.is_for_this_rank_alone(parts.chunk_of(2, 2))) << "partly rank 0's";
  EXPECT_FALSE(parts.is_for_this_rank_alone(parts.chunk_of(0, 3)));
  const Operation to_us = make(Collective::kReduce, 1), to_another = make(Collective::kReduce, 0);
  EXPECT_TRUE(to_us.is_for_this_rank_alone(to_us.chunk_of(0, 6)));
  EXPECT_FALSE(to_another.is_for_this_rank_alone(to_another.chunk_of(0, 6)));
  const Operation to_all = make(Collective::kAllReduce, 0);
  EXPECT_FALSE(to_all.is_for_this_rank_alone(to_all.chunk_of(3, 3)));
}

TEST(Operation, NeedsNoResultOfWhatItHasItself) {
  uint8_t memory[6] = {1, 2, 3, 4, 5, 6}, out[6] = {};
  const auto make = [&](Collective collective, int root, uint8_t* outputs) {
    return make_operation(0, DataType::kByte, {{memory, outputs, 3}, {memory + 3, outputs + 3, 3}},
                          ReduceOp::kSum, make_role(collective, root, 1));
  };
  const Operation gather = make(Collective::kAllGather, 0, out);
  EXPECT_TRUE(gather.needs_result(gather.chunk_of(0, 3)));
  EXPECT_TRUE(gather.needs_result(gather.chunk_of(2, 2))) << "partly rank 0's";
  EXPECT_FALSE(gather.needs_result(gather.chunk_of(3, 3)));
  gather.copy_own(gather.chunk_of(0, 6));
  EXPECT_EQ(std::vector<uint8_t>(out, out + 6), (std::vector<uint8_t>{0, 0, 0, 4, 5, 6}));
  const Operation in_place = make(Collective::kAllGather, 0, memory);
  EXPECT_TRUE(in_place.needs_result(in_place.chunk_of(0, 3)));
  EXPECT_FALSE(in_place.needs_result(in_place.chunk_of(3, 3)));
  const Operation to_another = make(Collective::kGather, 0, out),
                  from_us = make(Collective::kBroadcast, 1, out);
  EXPECT_FALSE(to_another.needs_result(to_another.chunk_of(0, 6)));
  EXPECT_FALSE(from_us.needs_result(from_us.chunk_of(0, 6)));
  // A sum is needed also of what this rank contributes to.
  int32_t numbers[2] = {1, 2}, sums[2];
  const Operation sum = make_operation(0, DataType::kInt32, {{numbers, sums, 2}}, ReduceOp::kSum,
                                       make_role(Collective::kAllReduce, 0, 1));
  EXPECT_TRUE(sum.needs_result(sum.chunk_of(0, 2)));
}

// Blocks of a reduce-scatter do not end with its parts, so its results are those of one tensor; and small ones go as values.
TEST(Operation, PartsOfOneTensorAreOneBlock) {
  float memory[8] = {1e30f, 1, 1, 1, 1, 1, 1, 1};
  OperationSpec spec;
  spec.tensors = {{memory, memory, 1}, {memory + 1, memory + 1, 7}};
  const Operation separate(0, spec, 2);
  spec.one_tensor = true;
  const Operation joined(0, spec, 2);
  EXPECT_EQ(separate.agreed_bytes(separate.chunk(0, 64)), 4u);
  EXPECT_EQ(joined.agreed_bytes(joined.chunk(0, 64)), 2u);
  EXPECT_TRUE(joined.may_be_inline(64));
  uint8_t agreed[4];
  joined.scan(joined.chunk(0, 64), agreed);
  EXPECT_EQ(agreed[0], 226) << "the exponent of 1e30";
}

}  // namespace
}  // namespace netsum::operation_test
