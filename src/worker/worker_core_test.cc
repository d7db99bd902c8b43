#include "src/worker/worker_core.h"

#include <gtest/gtest.h>

#include <vector>

#include "src/kernels/packet_check.h"

namespace netsum::worker_core_test {
namespace {

TEST(WorkerCore, RanksBeginWithDifferentStripes) {
  constexpr int kRanks = 5, kStripes = 4;
  for (int rank = 0; rank < kRanks; ++rank) {
    WorkerOptions options;
    options.rank = rank;
    options.world_size = kRanks;
    options.stripes.resize(kStripes);
    for (int s = 0; s < kStripes; ++s) {
      options.stripes[static_cast<size_t>(s)].address =
          Address::parse("10.0.0.1:" + std::to_string(1000 + s)).value();
    }
    WorkerCore core(options);
    std::vector<float> memory(100, 1.0F);
    OperationSpec spec;
    spec.tensors = {{memory.data(), memory.data(), memory.size()}};
    spec.deadline_us = 1'000'000;
    core.submit(1, std::move(spec));
    const auto packets = core.collect(0);
    ASSERT_EQ(packets.size(), 4u) << "a HELLO to each";
    EXPECT_EQ(packets.front().to.to_string(), "10.0.0.1:" + std::to_string(1000 + rank % kStripes));
  }
}

TEST(WorkerCore, OperationsWaitForTheWeightsThatTheyNeed) {
  WorkerOptions options;
  options.world_size = 2;
  options.stripes.resize(2);
  for (size_t s = 0; s < 2; ++s)
    options.stripes[s].address = Address::parse("10.0.0.1:" + std::to_string(1000 + s)).value();
  options.stripe_weights = {1, 1};
  options.balance_period = 1;
  WorkerCore core(options);
  EXPECT_FALSE(core.signature_of_update().has_value());
  std::vector<float> memory(10, 1.0F);
  constexpr uint64_t kOperations = 20;  // the ranks agree on new weights after the fourth
  for (uint64_t id = 0; id < kOperations; ++id) {
    OperationSpec spec;
    spec.tensors = {{memory.data(), memory.data(), memory.size()}};
    spec.deadline_us = 1'000'000;
    core.submit(id, std::move(spec));
  }
  EXPECT_TRUE(core.updates_weights());
  EXPECT_NE(core.signature_of_update().value_or(0), 0u);
  EXPECT_FALSE(core.idle());
  EXPECT_EQ(core.next_tick_us(), 0);  // a HELLO
  // None is lost, whether it has begun or waits.
  core.on_tick(1'000'000);
  EXPECT_EQ(core.status().code(), ErrorCode::kTimeout);
  std::vector<WorkerCore::Completion> completions;
  core.take_completions(&completions);
  ASSERT_EQ(completions.size(), kOperations);
  for (uint64_t id = 0; id < kOperations; ++id) {
    EXPECT_EQ(completions[id].id, id);
    EXPECT_EQ(completions[id].number, id);
    EXPECT_EQ(completions[id].status.code(), ErrorCode::kTimeout);
  }
}

// An aggregator of an older release would refuse the packets, and the operation would wait until its deadline.
TEST(WorkerCore, ReductionsThatAnAggregatorCannotCombineAreRefused) {
  WorkerOptions options;
  options.world_size = 2;
  options.stripes.resize(1);
  options.stripes[0].address = Address::parse("10.0.0.1:1000").value();
  options.lacks_words = "the aggregator at 10.0.0.1:1000";
  WorkerCore core(options);
  int32_t element = 1;
  uint64_t id = 0;
  std::vector<WorkerCore::Completion> completions;
  for (const ReduceOp op :
       {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor}) {
    core.submit(id++, {.type = DataType::kInt32, .op = op, .tensors = {{&element, &element, 1}}});
    core.take_completions(&completions);
    ASSERT_EQ(completions.size(), id);
    EXPECT_EQ(completions.back().id, id - 1);
    EXPECT_EQ(completions.back().status.code(), ErrorCode::kUnsupported);
    EXPECT_EQ(completions.back().status.message(),
              "all_reduce: the aggregator at 10.0.0.1:1000 cannot combine lanes by " +
                  std::string(reduce_op_name(op)) + ": update it, or use sum or avg");
  }
  EXPECT_TRUE(core.idle());
  EXPECT_TRUE(core.status().ok()) << "sums are possible";
  core.submit(id, {.type = DataType::kInt32, .tensors = {{&element, &element, 1}}, .deadline_us = 1000});
  EXPECT_FALSE(core.idle());
}

TEST(WorkerCore, AJobThatVerifiesItsSumsRefusesWhatIsNoSum) {
  WorkerOptions options;
  options.world_size = 2;
  options.stripes.resize(1);
  options.stripes[0].address = Address::parse("10.0.0.1:1000").value();
  options.stripes[0].sum_key = netsum_key{1, 2};
  options.stripes[0].sums_values = options.stripes[0].takes_empty_packets =
      options.stripes[0].takes_no_result = true;
  WorkerCore core(options);
  EXPECT_TRUE(core.verifies_sums());
  int32_t element = 1;
  std::vector<WorkerCore::Completion> completions;
  core.submit(7, {.type = DataType::kInt32, .op = ReduceOp::kMax, .tensors = {{&element, &element, 1}}});
  core.take_completions(&completions);
  ASSERT_EQ(completions.size(), 1u);
  EXPECT_EQ(completions[0].id, 7u);
  EXPECT_EQ(completions[0].status.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(completions[0].status.message(),
            "all_reduce: max is no sum, and this job verifies all results: use sum or avg, or join without "
            "verified "
            "sums");
  EXPECT_TRUE(core.idle());
  EXPECT_TRUE(core.status().ok());
  core.submit(8, {.type = DataType::kInt32, .tensors = {{&element, &element, 1}}, .deadline_us = 1000});
  EXPECT_FALSE(core.idle());
}

TEST(WorkerCore, AJobThatVerifiesItsSumsRefuses8BitLanes) {
  WorkerOptions options;
  options.world_size = 2;
  options.stripes.resize(1);
  options.stripes[0].address = Address::parse("10.0.0.1:1000").value();
  options.stripes[0].sum_key = netsum_key{1, 2};
  options.encoding.lane_bits = 8;
  WorkerCore core(options);
  float number = 1;
  int32_t integer = 1;
  std::vector<WorkerCore::Completion> completions;
  core.submit(7, {.type = DataType::kFloat32, .tensors = {{&number, &number, 1}}});
  core.take_completions(&completions);
  ASSERT_EQ(completions.size(), 1u);
  EXPECT_EQ(completions[0].status.code(), ErrorCode::kUnsupported);
  EXPECT_NE(completions[0].status.message().find("set lane_bits to 0, 16 or 32"), std::string::npos);
  EXPECT_TRUE(core.status().ok());
  core.submit(8, {.type = DataType::kInt32, .tensors = {{&integer, &integer, 1}}, .deadline_us = 1000});
  EXPECT_FALSE(core.idle()) << "integers do not travel in such lanes";
}

// Plays the aggregator of a job of one rank: every sum is what the rank has contributed.
void answer(WorkerCore& core, int64_t now_us) {
  std::vector<std::vector<uint8_t>> packets;
  const auto sent = core.collect(now_us);
  for (const OutPacket& packet : sent) packets.emplace_back(packet.data, packet.data + packet.size);
  for (std::vector<uint8_t>& packet : packets) {
    netsum_fields fields;
    ASSERT_EQ(netsum_parse(packet.data(), static_cast<uint32_t>(packet.size()), &fields), NETSUM_DROP_NONE);
    const bool hello = fields.type == NETSUM_TYPE_HELLO;
    fields.type = hello ? NETSUM_TYPE_WELCOME : NETSUM_TYPE_RESULT;
    if (!hello) fields.member = NETSUM_MEMBER_ALL;
    const Stripe& stripe = core.stripe(0);
    ASSERT_EQ(kernels::write_header(fields, stripe.key(), packet.data()), packet.size());
    core.on_packet(now_us, {packet.data(), static_cast<uint32_t>(packet.size()), stripe.options().address});
  }
}

TEST(WorkerCore, PacketsThatStayInMemoryNeedNoTag) {
  WorkerOptions options;
  options.stripes.resize(1);
  options.stripes[0].address = Address::parse("10.0.0.1:1000").value();
  WorkerCore core(options);
  const auto sent = core.collect(0);
  ASSERT_EQ(sent.size(), 1u);
  std::vector<uint8_t> welcome(sent[0].data, sent[0].data + sent[0].size);
  netsum_fields fields;
  ASSERT_EQ(netsum_parse(welcome.data(), sent[0].size, &fields), NETSUM_DROP_NONE);
  fields.type = NETSUM_TYPE_WELCOME;
  kernels::write_header(fields, wire::PacketKey({1, 2}, fields.payload_bytes), welcome.data());
  InPacket packet{.data = welcome.data(), .size = sent[0].size, .from = sent[0].to};
  core.on_packet(1, packet);
  EXPECT_FALSE(core.connected());
  packet.in_memory = true;
  core.on_packet(1, packet);
  EXPECT_TRUE(core.connected());
}

// What many operations in flight cost, each of which ends by itself: the number of operations that the core looks at.
TEST(WorkerCore, WhatAnOperationCostsHardlyDependsOnHowManyAreInFlight) {
  const auto visits_for_each = [](uint64_t count) {
    WorkerOptions options;
    options.stripes.resize(1);
    options.stripes[0].address = Address::parse("10.0.0.1:1000").value();
    WorkerCore core(options);
    std::vector<int32_t> elements(count, 1);
    for (uint64_t id = 0; id < count; ++id)
      core.submit(id, {.type = DataType::kInt32,
                       .tensors = {{&elements[id], &elements[id], 1}},
                       .deadline_us = 1'000'000});
    std::vector<WorkerCore::Completion> completions;
    for (int64_t now_us = 1; completions.size() < count && now_us < 1'000'000; ++now_us) {
      answer(core, now_us);
      if (core.next_tick_us() <= now_us) core.on_tick(now_us);
      core.take_completions(&completions);
      if (!core.status().ok() || ::testing::Test::HasFailure()) break;
    }
    EXPECT_EQ(completions.size(), count) << core.status().to_string();
    EXPECT_TRUE(core.idle());
    for (uint64_t id = 0; id < completions.size(); ++id)
      EXPECT_EQ(completions[id].number, completions[id].id);
    return static_cast<double>(core.operations_visited()) / static_cast<double>(count);
  };
  EXPECT_LT(visits_for_each(8'192), 4 * visits_for_each(64)) << "a heap of 13 levels instead of 6";
}

}  // namespace
}  // namespace netsum::worker_core_test
