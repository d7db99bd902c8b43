#include "src/worker/core_group.h"

#include <gmock/gmock.h>

#include <map>
#include <memory>
#include <vector>

#include "src/worker/worker_core.h"

namespace netsum::core_group_test {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

std::vector<size_t> divided(std::vector<uint32_t> weights, size_t cores) {
  return divide_stripes(weights, cores);
}

TEST(DivideStripes, EvenlyByWeight) {
  EXPECT_THAT(divided({1, 1, 1, 1}, 2), ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(divided({1, 1, 1, 1}, 1), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(divided({1, 1, 1, 3}, 2), ElementsAre(1, 1, 1, 0));
  EXPECT_THAT(divided({4, 3, 3, 2}, 2), ElementsAre(0, 1, 1, 0));
}

TEST(DivideStripes, EveryCoreHasOneThoughItsWeightIsNothing) {
  EXPECT_THAT(divided({1, 1}, 9), ElementsAre(0, 1));
  EXPECT_THAT(divided({0, 0, 5}, 3), ElementsAre(1, 2, 0));
}

TEST(CoreGroup, TheFrontIsThatOfTheCoreFurthestBehind) {
  CoreGroup group({0, 1, 0});
  EXPECT_EQ(group.cores(), 2u);
  group.note(0, 0, {.lowest_chunk = 100, .window_packets = 30});
  EXPECT_EQ(group.progress(0).lowest_chunk, 100u) << "the other has nothing to send";
  group.note(1, 0, {.lowest_chunk = 90, .window_packets = 20});
  EXPECT_EQ(group.progress(0).lowest_chunk, 90u);
  EXPECT_EQ(group.progress(0).window_packets, 50u);
  EXPECT_EQ(group.progress(1).lowest_chunk, UINT64_MAX) << "of the other stream";
}

TEST(CoreGroup, AllCoresAskWithWhatAllHaveMeasured) {
  CoreGroup group({0, 1, 0});
  group.active_us(0).add(1000);
  group.active_us(1).add(100);
  group.held_us(0).add(500);
  group.held_us(1).add(20);
  const auto first = group.weight_update(0);
  EXPECT_THAT(first->measured, ElementsAre(500, 200, 0, 1));
  group.held_us(1).add(50);
  EXPECT_EQ(group.weight_update(0), first) << "as the first core found it";
  EXPECT_FALSE(first->answered());
  first->end();
  EXPECT_FALSE(first->answered()) << "its result is at one core";
  first->end();
  EXPECT_TRUE(first->answered());
  EXPECT_THAT(group.weight_update(1, std::vector<int32_t>{7, 8})->measured,
              ElementsAre(500, 700, 0, 1, 7, 8));
}

// The cores of one rank, and aggregators that answer HELLOs and nothing else.
class CoresTest : public ::testing::Test {
 protected:
  static constexpr size_t kStripes = 4;

  CoresTest() : group_(std::make_shared<CoreGroup>(std::vector<size_t>{0, 1, 0, 1})) {
    options_.world_size = 2;
    options_.stripes.resize(kStripes);
    for (size_t s = 0; s < kStripes; ++s)
      options_.stripes[s].address = Address::parse("10.0.0.1:" + std::to_string(1000 + s)).value();
    options_.group = group_;
  }
  std::unique_ptr<WorkerCore> core(size_t number) {
    options_.core = number;
    return std::make_unique<WorkerCore>(options_);
  }
  static void submit(WorkerCore& core, std::vector<float>& memory) {
    OperationSpec spec;
    spec.tensors = {{memory.data(), memory.data(), memory.size()}};
    spec.deadline_us = 1'000'000;
    core.submit(0, std::move(spec));
  }

  std::shared_ptr<CoreGroup> group_;
  WorkerOptions options_;
};

TEST_F(CoresTest, EachHandlesItsOwnStripes) {
  const auto first = core(0), second = core(1);
  ASSERT_EQ(first->stripe_count(), 2u);
  EXPECT_EQ(first->stripe(1).options().address.to_string(), "10.0.0.1:1002");
  EXPECT_EQ(first->stripe(1).options().index, 2u);
  EXPECT_EQ(second->stripe(0).options().index, 1u);
  std::map<std::string, int> sent;
  for (WorkerCore* one : {first.get(), second.get()})
    for (const OutPacket& packet : one->collect(0)) ++sent[packet.to.to_string()];
  EXPECT_THAT(sent, SizeIs(kStripes)) << "each stripe gets a HELLO from one core";
}

TEST_F(CoresTest, AnOperationWithoutChunksHereEndsAtOnceAndKeepsItsNumber) {
  const auto first = core(0), second = core(1);
  std::vector<float> memory(10, 1.0F);  // one chunk: of operation 0 stripe 0's, of operation 1 stripe 1's
  std::vector<WorkerCore::Completion> ends;
  submit(*first, memory);
  first->take_completions(&ends);
  EXPECT_THAT(ends, SizeIs(0));
  submit(*second, memory);
  second->take_completions(&ends);
  ASSERT_THAT(ends, SizeIs(1));
  EXPECT_TRUE(ends[0].status.ok());
  EXPECT_EQ(ends[0].number, 0u);
  EXPECT_TRUE(second->idle());
  EXPECT_FALSE(first->idle());
  submit(*first, memory);
  first->take_completions(&ends);
  ASSERT_THAT(ends, SizeIs(2));
  EXPECT_EQ(ends[1].number, 1u);
  submit(*second, memory);
  EXPECT_FALSE(second->idle());
}

TEST_F(CoresTest, ACoreThatWaitsForAnotherOneLooksAgain) {
  options_.stripe_weights = {1, 1, 1, 1};
  options_.balance_period = 1'000'000;
  const auto first = core(0);
  // The other core has an operation's first chunk still to send, this one is about to start one far behind.
  group_->note(1, SlotLayout::kSums, {.lowest_chunk = 0, .window_packets = 10});
  std::vector<float> memory(1'000'000, 1.0F);
  submit(*first, memory);
  submit(*first, memory);  // waits until little is left of the one before
  for (int i = 0; i < 10; ++i) {
    (void)first->collect(0);
    first->on_tick(0);
  }
  EXPECT_LE(first->next_tick_us(), 100) << "long before the next HELLO";
  group_->note(1, SlotLayout::kSums, {});
  EXPECT_FALSE(first->idle());
}

TEST_F(CoresTest, ACoreStartsWhatAnotherOneIsAheadIn) {
  options_.stripe_weights = {1, 1, 1, 1};
  options_.balance_period = 1'000'000;
  const auto first = core(0);
  group_->note(1, SlotLayout::kSums, {.lowest_chunk = 500, .window_packets = 10});
  std::vector<float> memory(1'000'000, 1.0F);
  submit(*first, memory);
  (void)first->collect(0);
  EXPECT_LT(group_->progress(SlotLayout::kSums).lowest_chunk, 500u);
}

}  // namespace
}  // namespace netsum::core_group_test
