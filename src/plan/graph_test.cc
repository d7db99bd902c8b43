#include "src/plan/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/plan/bounds.h"
#include "src/plan/graph_testing.h"
#include "src/plan/testing.h"
#include "src/plan/tree_plan.h"

namespace netsum::plan::graph_test {
namespace {

using ::testing::HasSubstr;

void refused(const Graph& graph, ErrorCode code, const std::string& words) {
  const Status status = check(graph);
  EXPECT_EQ(status.code(), code);
  EXPECT_THAT(status.message(), HasSubstr(words));
}

TEST(Graph, WrongOnesAreRefusedWithTheirLine) {
  Graph graph = testing::star(3, 10);
  EXPECT_TRUE(check(graph).ok());
  graph.arcs[2].rate = 0;
  graph.arcs[2].line = 7;
  refused(graph, ErrorCode::kInvalidArgument, "line 7: the link from 'rank1' to 'tor' has the rate 0");
  graph.arcs[2].rate = -5;
  refused(graph, ErrorCode::kInvalidArgument, "has the rate -5");
  graph.arcs[2].rate = kMostRate + 1;
  refused(graph, ErrorCode::kInvalidArgument, "give a rate from 1 to");
  graph.arcs[2].rate = kUnlimited;
  refused(graph, ErrorCode::kInvalidArgument, "no limit");
  graph = testing::star(3, 10);
  graph.arcs.push_back({1, 1, 5, 9});
  refused(graph, ErrorCode::kInvalidArgument, "line 9: 'rank1' is linked to itself");
  graph = testing::star(3, 10);
  graph.arcs.push_back({0, 3, 5});
  refused(graph, ErrorCode::kInvalidArgument, "is given twice");
  graph = testing::star(3, 10);
  graph.vertices[1].name = "rank0";
  refused(graph, ErrorCode::kInvalidArgument, "the name 'rank0' is given twice");
  graph = testing::star(3, 10);
  graph.link(graph.add("sums", VertexKind::kAggregator, 0), 3, kUnlimited);
  refused(graph, ErrorCode::kInvalidArgument, "sums at a rate of 0");
  refused(Graph(), ErrorCode::kInvalidArgument, "no rank");
  graph = testing::star(3, 10);
  graph.arcs.push_back({0, 99, 5});
  refused(graph, ErrorCode::kInvalidArgument, "does not exist");
}

TEST(Graph, DisconnectedOnesAreRefused) {
  Graph graph = testing::star(3, 10);
  graph.vertices[graph.add("alone", VertexKind::kRank)].line = 4;
  refused(graph, ErrorCode::kUnreachable, "line 4: there is no way from 'rank0' to 'alone'");
  graph.arcs.push_back({3, 4, 1});
  refused(graph, ErrorCode::kUnreachable, "no way from 'alone' to 'rank0'");
}

TEST(Graph, OfATopology) {
  Topology topology = testing::with_spare_hosts(8, 1);
  topology.places.push_back(testing::in_switch(25));
  const Result<Graph> graph = graph_of(topology);
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  const Result<TreePlan> trees = plan_trees(*graph, TreeCollective::kAllReduce);
  ASSERT_TRUE(trees.ok()) << trees.status().message();
  // 2 (N - 1) / ((N - 2) (R + k / N) + N), with links of 100 Mbit/s.
  EXPECT_EQ(trees->optimum,
            Fraction(14) / (Fraction(6) * Fraction(3, 8) + Fraction(8)) / Fraction(100'000'000));
}

TEST(Bounds, AllGather) {
  const auto lambda = [](const Graph& graph) {
    const Result<Bound> bound = all_gather_bound(graph);
    EXPECT_TRUE(bound.ok() && bound->exact);
    return bound->time * Fraction(static_cast<int64_t>(graph.ranks().size()));
  };
  EXPECT_EQ(lambda(testing::dgx1(true)), Fraction(7, 6));
  EXPECT_EQ(lambda(testing::a100(1)), Fraction(7, 300));
  EXPECT_EQ(lambda(testing::a100(2)), Fraction(3, 65));
  EXPECT_EQ(lambda(testing::mi250(1)), Fraction(7, 150));
  EXPECT_EQ(lambda(testing::mi250(2)), Fraction(15, 166));
  EXPECT_EQ(lambda(testing::torus(3, 3)), 2);
  EXPECT_EQ(lambda(testing::rails(false)), 3);
  EXPECT_EQ(lambda(testing::rails(true)), 6);
  EXPECT_EQ(lambda(testing::fat_tree(8)), Fraction(127, 10));
  EXPECT_EQ(lambda(testing::racks(2, 4, 4, 2)), 2);
}

TEST(Bounds, Broadcast) {
  const Result<Bound> bound = broadcast_bound(testing::dgx1(true), 3);
  ASSERT_TRUE(bound.ok());
  EXPECT_EQ(bound->time, Fraction(1, 6));
  EXPECT_FALSE(broadcast_bound(testing::star(3, 1), 3).ok()) << "a switch is no root";
}

TEST(Bounds, ACutIsNotExactWhereAggregatorsReplicate) {
  EXPECT_FALSE(broadcast_bound(testing::butterfly(), 0)->exact);
  EXPECT_FALSE(all_gather_bound(testing::butterfly())->exact);
}

// The largest rates that a file may have neither overflow nor lose a digit.
TEST(Bounds, LargestRates) {
  Graph graph = testing::star(8, kMostRate);
  for (size_t i = 0; i < graph.arcs.size(); ++i) graph.arcs[i].rate -= static_cast<int64_t>(i / 2);
  int64_t sum = 0;
  for (int64_t i = 0; i < 8; ++i) sum += kMostRate - i;
  const Result<TreePlan> plan = plan_trees(graph, TreeCollective::kAllReduce);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->optimum, Fraction(14, sum));
  EXPECT_TRUE(plan->bound.exact);
  graph.link(0, 1, 1);  // no tree of switches any more
  EXPECT_EQ(all_gather_bound(graph)->time, Fraction(7, 8 * (kMostRate - 7)));
}

}  // namespace
}  // namespace netsum::plan::graph_test
