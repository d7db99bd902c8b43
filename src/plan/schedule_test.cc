// Schedules of planned trees, and of wrong programs.
#include "src/plan/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "src/base/rng.h"
#include "src/plan/graph_testing.h"

namespace netsum::plan::schedule_test {
namespace {

using ::testing::HasSubstr;
using Kind = BlockStepKind;
constexpr BlockBuffer kIn = BlockBuffer::kInput, kOut = BlockBuffer::kOutput,
                      kScratch = BlockBuffer::kScratch;

Schedule scheduled(const Graph& graph) {
  const Result<TreePlan> plan = plan_trees(graph, TreeCollective::kAllReduce);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  if (!plan.ok()) return {};
  Result<Schedule> schedule = schedule_of(graph, *plan);
  EXPECT_TRUE(schedule.ok()) << schedule.status().message();
  return schedule.ok() ? std::move(schedule).value() : Schedule();
}

std::string verdict(const Schedule& schedule) {
  const Status status = verify(schedule);
  EXPECT_TRUE(status.ok() || status.code() == ErrorCode::kInvalidArgument);
  return status.message();
}

BlockStep step(Kind kind, uint32_t chunk, BlockBuffer from = kIn, BlockBuffer to = kIn) {
  return {.kind = kind, .source = {from, chunk}, .destination = {to, chunk}};
}
BlockStep after(int block, int index, BlockStep step) {
  step.after_block = block;
  step.after_step = index;
  return step;
}

// Each of two ranks sends one of its two chunks, and then the sum of the other one.
Schedule two_ranks() {
  Schedule schedule{.chunks = 2, .ranks = std::vector<RankSchedule>(2)};
  for (int rank = 0; rank < 2; ++rank) {
    const auto own = static_cast<uint32_t>(rank);
    schedule.ranks[own].chunks = {2, 0, 0};
    schedule.ranks[own].blocks = {{.send = 1 - rank,
                                   .receive = 1 - rank,
                                   .steps = {step(Kind::kSend, 1 - own), step(Kind::kReceiveReduceCopy, own),
                                             step(Kind::kSend, own), step(Kind::kReceive, 1 - own)}}};
  }
  return schedule;
}

Schedule with_puts(const Schedule& schedule) {
  Result<Schedule> made = one_sided(schedule);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.ok() ? std::move(made).value() : Schedule();
}

TEST(Schedule, WithPutsIsRight) {
  for (const Graph& graph : {testing::dgx1(false), testing::dgx1(true)}) {
    const Schedule made = with_puts(scheduled(graph));
    EXPECT_EQ(verdict(made), "");
    size_t puts = 0, waits = 0;
    for (const RankSchedule& rank : made.ranks) {
      for (const ThreadBlock& block : rank.blocks) {
        for (const BlockStep& one : block.steps) {
          EXPECT_FALSE(sends(one.kind) || receives(one.kind));
          puts += one.kind == Kind::kPut;
          waits += one.kind == Kind::kWait;
        }
      }
    }
    EXPECT_GT(puts, 0u);
    EXPECT_EQ(puts, waits);
  }
}

TEST(Schedule, WrongPutsAreFound) {
  const Schedule right = with_puts(two_ranks());
  ASSERT_EQ(verdict(right), "");
  // Of each rank: put, signal, wait, reduce, put, signal, wait.
  const auto changed = [&](const std::function<void(std::vector<BlockStep>*)>& change) {
    Schedule wrong = right;
    change(&wrong.ranks[0].blocks[0].steps);
    return verdict(wrong);
  };
  EXPECT_THAT(changed([](auto* steps) { steps->erase(steps->begin() + 1); }), HasSubstr("deadlock"));
  EXPECT_THAT(changed([](auto* steps) { steps->erase(steps->begin() + 2); }),
              HasSubstr("which nothing has written"));
  EXPECT_THAT(changed([](auto* steps) { steps->erase(steps->begin() + 3); }),
              HasSubstr("lacks chunk 0 of rank 1"));
  EXPECT_THAT(changed([](auto* steps) { std::swap((*steps)[0], (*steps)[1]); }), HasSubstr("wait for"));
  EXPECT_THAT(changed([](auto* steps) {
                (*steps)[0].destination = {kIn, 0};
              }),
              HasSubstr("does not wait for rank 0, block 0, step 0, which writes it"));
  EXPECT_THAT(changed([](auto* steps) { (*steps)[4].source.chunk = 1; }),
              HasSubstr("does not wait for rank 1, block 0, step 4"));
  EXPECT_THAT(changed([](auto* steps) { (*steps)[0].destination.chunk = 1; }), HasSubstr("uses 1 chunks"));
  EXPECT_THAT(changed([](auto* steps) { steps->push_back({.kind = Kind::kSignal}); }),
              HasSubstr("does not receive"));
  Schedule wrong = right;
  std::vector<BlockStep>& steps = wrong.ranks[1].blocks[0].steps;
  steps.insert(steps.begin(), step(Kind::kCopy, 0, kIn, kScratch));
  EXPECT_THAT(
      verdict(wrong),
      HasSubstr("writes scratch chunk 0, and does not wait for rank 0, block 0, step 0, which writes"));
  wrong = right;
  wrong.ranks[1].blocks[0].steps[0].destination = {kIn, 1};
  EXPECT_THAT(verdict(wrong), HasSubstr("writes input chunk 1 of rank 0, and does not wait for rank 0, block "
                                        "0, step 0, which reads it"));
}

TEST(Schedule, OfPlannedTreesIsRight) {
  for (const Graph& graph : {testing::dgx1(true), testing::torus(3, 3), testing::racks(2, 4, 2, 1),
                             testing::a100(2), testing::star(5, 1)})
    EXPECT_EQ(verdict(scheduled(graph)), "");
  Schedule apart = scheduled(testing::dgx1(false));
  apart.in_place = false;
  apart.out_of_place = true;
  EXPECT_THAT(verdict(apart),
              HasSubstr("rank 0 ends with a wrong output chunk 0: it lacks chunk 0 of rank 0"));
}

TEST(Schedule, OfRandomGraphsIsRightAndWaitsForNothingInVain) {
  const char* given = std::getenv("NETSUM_SIM_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  SCOPED_TRACE("NETSUM_SIM_SEED=" + std::to_string(seed));
  for (uint64_t i = 0; i < 30; ++i) {
    Rng rng(seed + i);
    Graph graph = testing::ranks(2 + rng.below(6));
    for (size_t a = 1; a < graph.vertices.size(); ++a) graph.link(a, rng.below(a), 1 + int64_t(rng.below(5)));
    const Schedule schedule = scheduled(graph);
    ASSERT_EQ(verdict(schedule), "");
    // Without any one of its waits, something is used in an order that nothing enforces.
    for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      for (size_t block = 0; block < schedule.ranks[rank].blocks.size(); ++block) {
        for (size_t s = 0; s < schedule.ranks[rank].blocks[block].steps.size(); ++s) {
          Schedule hasty = schedule;
          BlockStep& changed = hasty.ranks[rank].blocks[block].steps[s];
          if (changed.after_block < 0) continue;
          changed.after_block = -1;
          ASSERT_NE(verdict(hasty), "") << rank << " " << block << " " << s;
        }
      }
    }
  }
}

TEST(Schedule, TreesThatMscclCannotRunAreRefused) {
  Graph graph = testing::star(4, 4);
  graph.link(graph.add("tor sums", VertexKind::kAggregator), 4, kUnlimited);
  const Result<TreePlan> plan = plan_trees(graph, TreeCollective::kAllReduce);
  ASSERT_TRUE(plan.ok());
  const Status status = schedule_of(graph, *plan).status();
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("'tor sums', which is no rank"));
  const Graph hosts = testing::star(4, 4);
  EXPECT_EQ(schedule_of(hosts, *plan_trees(hosts, TreeCollective::kBroadcast)).status().code(),
            ErrorCode::kUnsupported);
  const Graph wide = testing::star(40, 4);
  TreePlan hub{.trees = {{.root = 0, .edges = {}, .weight = 1}}, .period = 1};
  for (size_t i = 1; i < 40; ++i) hub.trees[0].edges.push_back({.child = i, .parent = 0});
  EXPECT_THAT(schedule_of(wide, hub).status().message(), HasSubstr("32 neighbours"));
}

TEST(Schedule, WrongProgramsAreNamed) {
  EXPECT_EQ(verdict(two_ranks()), "");
  struct Wrong {
    std::function<void(std::vector<BlockStep>&, Schedule&)> change;  // the steps of rank 0
    const char* message;
  };
  const Wrong wrong[] = {
      {[](auto& steps, auto&) { steps[2].source.chunk = 1; },
       "rank 1 ends with a wrong output chunk 0: it lacks chunk 0 of rank 0"},
      {[](auto& steps, auto& all) {
         std::swap(steps[0], steps[1]);
         std::swap(all.ranks[1].blocks[0].steps[0], all.ranks[1].blocks[0].steps[1]);
       },
       "deadlock; rank 0, block 0, step 0 waits for rank 1 to send; rank 1, block 0, step 0 waits for rank "
       "0"},
      {[](auto& steps, auto&) { steps.pop_back(); },
       "rank 1 sends to rank 0 on channel 0 what that one does"},
      {[](auto& steps, auto&) { steps[1].kind = Kind::kReceive; },
       "rank 0 ends with a wrong output chunk 0: it lacks chunk 0 of rank 0"},
      {[](auto& steps, auto&) { steps.push_back(step(Kind::kReduce, 0)); },
       "rank 0, block 0, step 4: adds chunk 0 of rank 0 a second time"},
      {[](auto& steps, auto&) { steps[0].count = 2, steps[0].source.chunk = 0; },
       "rank 1, block 0, step 1: receives 1 chunks where rank 0 sends 2"},
      {[](auto& steps, auto&) { steps[0].source.chunk = 2; },
       "rank 0, block 0, step 0: uses 1 chunks from input chunk 2, of 2"},
      {[](auto& steps, auto&) { steps[0].count = 0; }, "uses 0 chunks"},
      {[](auto& steps, auto&) { steps[0] = after(3, 0, steps[0]); },
       "waits for step 0 of block 3, which the"},
      {[](auto& steps, auto&) { steps[0] = after(0, 9, steps[0]); },
       "waits for step 9 of block 0, which the"},
      {[](auto&, auto& all) { all.ranks[0].blocks[0].send = -1; }, "sends, but its block has nobody"},
      {[](auto&, auto& all) { all.ranks[0].blocks[0].receive = -1; }, "receives, but its block has nobody"},
      {[](auto&, auto& all) { all.ranks[0].blocks[0].send = 0; }, "block 0: its peer is rank 0"},
      {[](auto&, auto& all) { all.ranks[0].blocks[0].send = 7; }, "block 0: its peer is rank 7"},
      {[](auto&, auto& all) { all.ranks[0].blocks.push_back(all.ranks[0].blocks[0]); },
       "rank 0, block 1 sends to rank 1 on channel 0, and so does rank 0, block 0"},
      {[](auto&, auto& all) {
         all.ranks[1].blocks.push_back({.steps = {step(Kind::kCopy, 1, kIn, kScratch)}});
         all.ranks[1].chunks[2] = 2;
       },
       "rank 1, block 1, step 0: reads input chunk 1, and does not wait for rank 1, block 0, step 1, which"},
      {[](auto&, auto& all) {
         all.ranks[0].blocks.insert(all.ranks[0].blocks.begin(),
                                    {.steps = {step(Kind::kCopy, 0, kIn, kScratch)}});
         all.ranks[0].chunks[2] = 1;
       },
       "rank 0, block 1, step 1: writes input chunk 0, and does not wait for rank 0, block 0, step 0, which "
       "reads"},
      {[](auto& steps, auto& all) {
         steps.push_back(step(Kind::kCopy, 0, kScratch, kIn));
         all.ranks[0].chunks[2] = 1;
       },
       "reads scratch chunk 0, which nothing has written"},
      {[](auto&, auto& all) { all.ranks.clear(); }, "no ranks"},
      {[](auto&, auto& all) { all.chunks = 0; }, "no chunks"},
      {[](auto&, auto& all) {
         all.collective = ScheduleCollective::kAllGather;
         all.chunks = 3;
       },
       "3 chunks cannot be divided among 2 ranks"},
  };
  for (const Wrong& one : wrong) {
    Schedule schedule = two_ranks();
    one.change(schedule.ranks[0].blocks[0].steps, schedule);
    EXPECT_THAT(verdict(schedule), HasSubstr(one.message));
  }
}

// Of two ranks. In place, a rank's smaller buffer is its part of the larger one.
TEST(Schedule, GathersAndScatters) {
  for (const bool gathers : {true, false}) {
    for (const bool in_place : {true, false}) {
      Schedule schedule{
          .collective = gathers ? ScheduleCollective::kAllGather : ScheduleCollective::kReduceScatter,
          .chunks = 2,
          .in_place = in_place,
          .out_of_place = !in_place,
          .ranks = std::vector<RankSchedule>(2)};
      for (int rank = 0; rank < 2; ++rank) {
        const auto own = static_cast<uint32_t>(rank), other = 1 - own;
        ThreadBlock block{.send = 1 - rank, .receive = 1 - rank};
        if (gathers) {
          block.steps = {step(Kind::kSend, 0), step(Kind::kReceive, other, kIn, kOut)};
          if (!in_place)
            block.steps.push_back({.kind = Kind::kCopy, .source = {kIn, 0}, .destination = {kOut, own}});
        } else {
          block.steps = {step(Kind::kSend, other),
                         {.kind = Kind::kReceiveReduceCopy, .source = {kIn, own}, .destination = {kOut, 0}}};
        }
        schedule.ranks[own].blocks.push_back(block);
      }
      EXPECT_EQ(verdict(schedule), "") << gathers << in_place;
      schedule.ranks[1].blocks[0].steps.back().destination.chunk ^= gathers;
      schedule.ranks[1].blocks[0].steps.back().source.chunk ^= !gathers;
      EXPECT_NE(verdict(schedule), "");
    }
  }
}

// Rank 1 passes on to rank 2 what rank 0 sends, in each of the ways there are, and rank 2 sends the sum back to both.
TEST(Schedule, ReceivedChunksArePassedOn) {
  for (const Kind kind : {Kind::kReceiveReduceSend, Kind::kReceiveReduceCopySend, Kind::kReceiveCopySend}) {
    Schedule schedule{.chunks = 1, .ranks = std::vector<RankSchedule>(3)};
    schedule.ranks[0].blocks = {
        {.send = 1, .receive = 2, .steps = {step(Kind::kSend, 0), step(Kind::kReceive, 0)}}};
    schedule.ranks[1].blocks = {{.send = 2, .receive = 0, .steps = {step(kind, 0)}},
                                {.receive = 2, .steps = {after(0, 0, step(Kind::kReceive, 0))}}};
    schedule.ranks[2].blocks = {{.send = 0, .receive = 1, .steps = {step(Kind::kReceiveReduceCopySend, 0)}},
                                {.send = 1, .steps = {after(0, 0, step(Kind::kSend, 0))}}};
    const std::string lost = kind == Kind::kReceiveCopySend
                                 ? "rank 0 ends with a wrong output chunk 0: it lacks chunk 0 of rank 1"
                                 : "";
    EXPECT_EQ(verdict(schedule), lost);
  }
}

}  // namespace
}  // namespace netsum::plan::schedule_test
