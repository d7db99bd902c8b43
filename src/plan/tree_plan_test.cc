// Plans of graphs against known values, as fractions, and large fabrics against their closed form.
#include "src/plan/tree_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "src/base/rng.h"
#include "src/plan/graph_testing.h"
#include "src/plan/pack.h"

namespace netsum::plan::tree_plan_test {
namespace {

// Plans, and checks what holds for every plan.
TreePlan planned(const Graph& graph, TreeCollective collective = TreeCollective::kAllReduce,
                 size_t root = 0) {
  Result<TreePlan> plan = plan_trees(graph, collective, root);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  if (!plan.ok()) return {};
  EXPECT_GE(plan->time, plan->optimum);
  EXPECT_GE(plan->optimum, plan->bound.time);
  EXPECT_LE(plan->period, kMostTreePeriod);
  EXPECT_LE(plan->rounding_loss(), 0.003);
  if (plan->trees.empty()) return std::move(plan).value();
  TreePlan again = *plan;
  EXPECT_TRUE(measure(graph, &again).ok());
  EXPECT_EQ(again.time, plan->time);
  return std::move(plan).value();
}

// The optimum with fractional weights, which is proved to be one.
Fraction optimum(const Graph& graph) {
  const TreePlan plan = planned(graph);
  EXPECT_TRUE(plan.bound.exact);
  EXPECT_EQ(plan.optimum, plan.bound.time);
  return plan.optimum;
}

Fraction broadcast_rate(const Graph& graph) {
  const TreePlan plan = planned(graph, TreeCollective::kBroadcast, 0);
  EXPECT_EQ(plan.optimum, plan.bound.time);
  return Fraction(1) / plan.optimum;
}

TEST(TreePlan, Dgx1) {
  EXPECT_EQ(optimum(testing::dgx1(false)), Fraction(7, 16));
  EXPECT_EQ(broadcast_rate(testing::dgx1(false)), 4);
  EXPECT_EQ(optimum(testing::dgx1(true)), Fraction(7, 24));
  EXPECT_EQ(broadcast_rate(testing::dgx1(true)), 6);
}

TEST(TreePlan, PartsOfADgx1) {
  const Graph all = testing::dgx1(true);
  EXPECT_EQ(optimum(testing::part_of(all, {0, 1, 3})), Fraction(1, 2));
  EXPECT_EQ(optimum(testing::part_of(all, {0, 1, 4})), 1);
  EXPECT_EQ(optimum(testing::part_of(all, {0, 1, 2, 3})), Fraction(1, 3));
  EXPECT_EQ(broadcast_rate(testing::part_of(all, {0, 1, 3})), 2);
  EXPECT_EQ(broadcast_rate(testing::part_of(all, {0, 1, 4})), 1);
  EXPECT_EQ(broadcast_rate(testing::part_of(all, {0, 1, 2, 3})), 4);
}

// 2 (N - 1) / ((N - 2) (R + k / N) + N), never below 1: docs/placement.md. The rate of a link is 4 here.
TEST(TreePlan, StarWithSpareHostsAndASwitchThatSums) {
  for (const int64_t spares : {0, 1, 2, 4}) {
    for (const int64_t quarters : {0, 1, 2, 8}) {
      Graph graph = testing::star(8, 4);
      if (quarters > 0) graph.link(graph.add("tor sums", VertexKind::kAggregator, quarters), 8, kUnlimited);
      for (int64_t i = 0; i < spares; ++i) {
        graph.link(graph.add("spare" + std::to_string(i), VertexKind::kAggregator), 8, 4);
      }
      const Fraction sums = Fraction(quarters, 4) + Fraction(spares, 8);
      const Fraction formula = Fraction(14) / (Fraction(6) * sums + Fraction(8));
      EXPECT_EQ(optimum(graph), std::max(formula, Fraction(1)) / Fraction(4)) << spares << " " << quarters;
    }
  }
}

TEST(TreePlan, Torus) {
  EXPECT_EQ(optimum(testing::torus(3, 3)), Fraction(4, 9));
  EXPECT_EQ(broadcast_rate(testing::torus(3, 3)), 4);
}

// In units of a host's link; the rates are multiples of a quarter.
TEST(TreePlan, Racks) {
  const auto racks = [](size_t count, size_t ranks, int64_t quarters) {
    return testing::racks(count, ranks, 4, quarters);
  };
  const Fraction host(4);
  EXPECT_EQ(host * optimum(racks(2, 4, 2)), 2);
  const TreePlan plain = planned(racks(2, 4, 2));
  EXPECT_EQ(host * plain.ring, Fraction(7, 2));
  EXPECT_EQ(host * plain.time, 2);
  EXPECT_EQ(host * optimum(racks(4, 4, 1)), 6);
  EXPECT_EQ(host * planned(racks(4, 4, 1)).ring, Fraction(15, 2));
  const auto with_sums = [&](Graph graph, std::vector<size_t> switches, int64_t rate) {
    for (const size_t each : switches) {
      graph.link(graph.add("sums" + std::to_string(each), VertexKind::kAggregator, rate), each, kUnlimited);
    }
    return host * optimum(graph);
  };
  // The switches of the racks follow the ranks, and the core follows them.
  EXPECT_EQ(with_sums(racks(2, 4, 2), {8, 9}, 4), 2);
  EXPECT_EQ(with_sums(racks(2, 4, 4), {8, 9}, 2), Fraction(5, 4));
  EXPECT_EQ(with_sums(racks(2, 4, 4), {8}, 4), Fraction(8, 5));
  EXPECT_EQ(with_sums(racks(2, 4, 8), {10}, 4), Fraction(4, 3));
  Graph spare = racks(2, 4, 4);
  spare.link(spare.add("spare", VertexKind::kAggregator), 10, 16);
  EXPECT_EQ(host * optimum(spare), Fraction(8, 5));
}

TEST(TreePlan, UnequalHosts) {
  Graph graph = testing::star(8, 2);
  for (Arc& arc : graph.arcs) arc.rate = std::min(arc.from, arc.to) < 4 ? 1 : 2;
  EXPECT_EQ(Fraction(2) * optimum(graph), Fraction(7, 3));
  // A rack of two hosts behind one link, beside a host that is twice as fast.
  Graph rack;
  for (const char* name : {"a", "b", "c"}) rack.add(name, VertexKind::kRank);
  const size_t inner = rack.add("rack", VertexKind::kSwitch), core = rack.add("core", VertexKind::kSwitch);
  rack.link(0, inner, 1);
  rack.link(1, inner, 1);
  rack.link(inner, core, 1);
  rack.link(2, core, 2);
  EXPECT_EQ(optimum(rack), Fraction(4, 3));
}

TEST(TreePlan, ADegradedLink) {
  for (const int64_t quarters : {1, 2, 3}) {
    Graph graph = testing::star(8, 4);
    for (Arc& arc : graph.arcs) arc.rate = std::min(arc.from, arc.to) == 0 ? quarters : 4;
    const Fraction f(quarters, 4);
    EXPECT_EQ(Fraction(4) * optimum(graph), std::max(Fraction(1) / f, Fraction(14) / (Fraction(7) + f)));
  }
}

TEST(TreePlan, Rails) {
  EXPECT_EQ(optimum(testing::rails(false)), Fraction(3, 4));
  EXPECT_EQ(optimum(testing::rails(true)), 1);
}

// A cut says 2; trees that an aggregator replicates for take 2/3 of a time unit: what is packed is reported, not the cut.
TEST(TreePlan, ButterflyIsPackedBelowItsCut) {
  const Graph graph = testing::butterfly();
  const TreePlan plan = planned(graph, TreeCollective::kBroadcast, 0);
  EXPECT_EQ(Fraction(1) / plan.optimum, Fraction(3, 2));
  EXPECT_EQ(Fraction(1) / plan.bound.time, 2);
  EXPECT_FALSE(plan.bound.exact);
}

TEST(TreePlan, ASpareHostIsNoShortcutThroughACut) {
  Graph graph = testing::star(8, 1);
  graph.link(graph.add("spare", VertexKind::kAggregator), 8, 1);
  EXPECT_EQ(optimum(graph), Fraction(8, 5)) << "the cut bound would be 14/9";
}

TEST(TreePlan, RanksThatMustNotRelay) {
  Graph graph = testing::star(4, 1);
  for (size_t i = 1; i < 4; ++i) graph.vertices[i].relay = false;
  EXPECT_EQ(optimum(graph), 3) << "rank 0 sums everything";
  graph.vertices[0].relay = false;
  const Result<TreePlan> none = plan_trees(graph, TreeCollective::kAllReduce);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), ErrorCode::kUnreachable);
  graph.link(graph.add("sums", VertexKind::kAggregator), 4, kUnlimited);
  EXPECT_EQ(optimum(graph), 1);
}

TEST(TreePlan, RatesThatDifferByDirection) {
  Graph graph = testing::star(4, 2);
  for (Arc& arc : graph.arcs) {
    if (arc.to == 0) arc.rate = 1;
  }
  const TreePlan plan = planned(graph);
  EXPECT_GE(plan.optimum, plan.bound.time);
  EXPECT_TRUE(plan.bound.exact);
}

TEST(TreePlan, FewRanks) {
  Graph graph;
  graph.add("alone", VertexKind::kRank);
  EXPECT_TRUE(planned(graph).trees.empty());
  graph.add("other", VertexKind::kRank);
  graph.link(0, 1, 5);
  EXPECT_EQ(optimum(graph), Fraction(1, 5));
}

// Woven trees against the closed form, and that against trees of any shape.
TEST(TreePlan, RandomRacksTakeTheirClosedForm) {
  Rng rng(20261128);
  int compared = 0;
  for (int i = 0; i < 60; ++i) {
    const Graph graph = testing::random_racks(rng, 10);
    const std::optional<Bound> closed = all_reduce_bound_of_racks(graph);
    ASSERT_TRUE(closed) << i;
    if (closed->exact) {
      EXPECT_EQ(optimum(graph), closed->time) << i;
      ++compared;
    } else {  // an aggregator at a switch without ranks
      EXPECT_GE(planned(graph).optimum, closed->time) << i;
    }
  }
  EXPECT_GE(compared, 40);
}

TEST(TreePlan, WovenTreesTakeTheClosedForm) {
  Rng rng(20261129);
  for (int i = 0; i < 20; ++i) {
    const Graph graph = testing::random_racks(rng, 60);
    if (graph.ranks().size() <= 32) continue;
    const TreePlan plan = planned(graph);
    EXPECT_GE(plan.optimum, plan.bound.time) << i;
    if (all_reduce_bound_of_racks(graph)->exact) EXPECT_EQ(plan.optimum, plan.bound.time) << i;
  }
}

TEST(TreePlan, LargeFabrics) {
  for (const Graph& graph :
       {testing::racks(10, 10, 4, 13), testing::racks(12, 7, 3, 20), testing::fat_tree(8)}) {
    const TreePlan plan = planned(graph);
    EXPECT_TRUE(plan.bound.exact);
    EXPECT_EQ(plan.optimum, plan.bound.time);
  }
  EXPECT_EQ(planned(testing::fat_tree(8)).bound.time, Fraction(2 * 127, 128 * 10));
}

TEST(TreePlan, AThousandRanksNeedFewTrees) {
  const TreePlan plan = planned(testing::fat_tree(16));
  EXPECT_LE(plan.trees.size(), 8u);
}

TEST(TreePlan, TheJudgeRefusesWrongTrees) {
  const Graph graph = testing::racks(2, 2, 2, 1);
  const TreePlan good = planned(graph);
  const auto refused = [&](auto change) {
    TreePlan plan = good;
    change(plan.trees.front());
    return !measure(graph, &plan).ok();
  };
  EXPECT_TRUE(refused([](Tree& tree) { tree.edges.pop_back(); })) << "a rank is missing";
  EXPECT_TRUE(refused([](Tree& tree) { tree.edges.push_back(tree.edges.back()); })) << "a circle";
  EXPECT_TRUE(refused([](Tree& tree) { tree.edges.front().up.pop_back(); })) << "a way with a gap";
  EXPECT_TRUE(refused([](Tree& tree) { tree.edges.front().down.clear(); }));
  EXPECT_TRUE(refused([](Tree& tree) { std::reverse(tree.edges.begin(), tree.edges.end()); }));
  EXPECT_TRUE(refused([](Tree& tree) { tree.root = 4; })) << "a switch that does not sum";
}

}  // namespace
}  // namespace netsum::plan::tree_plan_test
