#include "src/plan/relay_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace netsum::plan::relay_plan_test {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

constexpr const char* kText =
    "network racks.yaml\n"
    "job train\n"
    "ranks 4\n"
    "tree 50000000\n"
    "sum a:5151 rank 0\n"
    "sum [::1]:5151 below a:5151\n"
    "join a:5151 0 1\n"
    "join [::1]:5151 2 3\n"
    "tree 1000\n"
    "sum b:5152 rank 3\n"
    "join b:5152 0 1 2 3\n";

std::string why_not(const std::string& text) {
  const Result<RelayPlan> plan = parse_relay_plan(text, "file");
  EXPECT_EQ(plan.status().code(), ErrorCode::kInvalidArgument) << text;
  return plan.status().message();
}

TEST(RelayPlanTest, WhatIsWrittenIsRead) {
  const Result<RelayPlan> plan = parse_relay_plan(std::string("# by hand\n\n") + kText, "file");
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  EXPECT_EQ(to_text(*plan), kText);
  EXPECT_EQ(plan->network, "racks.yaml");
  EXPECT_EQ(plan->job, "train");
  EXPECT_EQ(plan->ranks, 4);
  ASSERT_EQ(plan->trees.size(), 2u);
  const RelayTree& tree = plan->trees[0];
  EXPECT_EQ(tree.rate_bps, 50'000'000);
  EXPECT_EQ(tree.aggregators[0].rank, 0);
  EXPECT_EQ(tree.aggregators[1].rank, -1);
  EXPECT_EQ(tree.aggregators[1].above, 0u);
  EXPECT_THAT(tree.joins, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(plan->name(), StartsWith("racks.yaml "));
  RelayPlan other = *plan;
  EXPECT_EQ(other.name(), plan->name());
  other.trees[1].rate_bps = 1001;
  EXPECT_NE(other.name(), plan->name());
  other.network = "#a b.yaml";  // a file's name may be anything
  EXPECT_EQ(parse_relay_plan(to_text(other), "file")->network, "_a_b.yaml");
}

TEST(RelayPlanTest, AnErrorNamesTheLine) {
  const std::string head = "network n\nranks 2\n", tree = head + "tree 1000\n",
                    sum = tree + "sum a:1 rank 0\n";
  EXPECT_EQ(why_not(""), "file:1: there is no 'network'");
  EXPECT_EQ(why_not("network n\n"), "file:1: there is no 'tree'");
  EXPECT_EQ(why_not("network a b\n"), "file:1: 'network' has one name, without spaces");
  EXPECT_EQ(why_not("network n\nnetwork n\n"), "file:2: 'network' is given twice");
  EXPECT_EQ(why_not("nodes 4\n"), "file:1: 'nodes' is unknown");
  for (const char* ranks : {"0", "-1", "513", "4x", "", "99999999999999999999"})
    EXPECT_EQ(why_not(std::string("\nranks ") + ranks), "file:2: 'ranks' is a number from 1 to 512");
  EXPECT_EQ(why_not("tree 1000\n"), "file:1: 'ranks' must come before the first 'tree'");
  EXPECT_EQ(why_not("sum a:1\n"), "file:1: 'sum' belongs to a tree, and none has begun");
  for (const char* rate : {"0", "-5", "999", "100000000000001", "99999999999999999999", "fast"})
    EXPECT_THAT(why_not(head + "tree " + rate), StartsWith("file:3: 'tree' has a rate in bit/s"));
  for (const char* address : {"", "a", "a:", "a:0", "a:65536", ":1"})
    EXPECT_EQ(why_not(tree + "sum " + address), "file:4: 'sum' has an address, host:port");
  EXPECT_EQ(why_not(tree + "sum a:1 rank 2"), "file:4: there is no rank '2'");
  EXPECT_EQ(why_not(tree + "sum a:1 below a:1"), "file:4: 'a:1' is not in this tree, or comes later");
  EXPECT_THAT(why_not(sum + "sum b:1 rank 1"), StartsWith("file:5: 'below' is missing"));
  EXPECT_EQ(why_not(sum + "sum a:1 below a:1"), "file:5: a:1 has a 'sum' already");
  EXPECT_THAT(why_not(tree + "sum a:1 top"), StartsWith("file:4: after its address"));
  EXPECT_EQ(why_not(sum + "join b:1 0"), "file:5: 'b:1' does not sum in this tree");
  EXPECT_EQ(why_not(sum + "join a:1"), "file:5: 'join' has an address, and ranks");
  EXPECT_EQ(why_not(sum + "join a:1 0 1 0"), "file:5: rank 0 joins this tree twice");
  EXPECT_EQ(why_not(sum + "join a:1 2"), "file:5: there is no rank '2'");
  EXPECT_EQ(why_not(sum + "join a:1 0"), "file:5: rank 1 joins nowhere in the tree that ends here");
  EXPECT_EQ(why_not(sum + "join a:1 0\ntree 1000"),
            "file:6: rank 1 joins nowhere in the tree that ends here");
  EXPECT_EQ(why_not(sum + "join a:1 0 1\ntree 1000\nsum a:1"), "file:7: a:1 has a 'sum' already");
  EXPECT_THAT(why_not(std::string(kMostRelayPlanBytes + 1, '#')), StartsWith("file:1: a plan has at most"));
}

}  // namespace
}  // namespace netsum::plan::relay_plan_test
