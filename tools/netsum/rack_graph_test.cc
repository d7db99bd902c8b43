#include "tools/netsum/rack_graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tools/netsum/rack_graph_trees.h"
#include "tools/netsum/rack_plan.h"

namespace netsum::tool::rack_graph_test {
namespace {

using plan::VertexKind;

// Two racks of two hosts, whose leaves have two equally fast ways to each other, and a host `far` behind b1.
plan::Graph two_spines() {
  plan::Graph graph;
  for (const char* name : {"a0", "a1", "b0", "b1"}) graph.add(name, VertexKind::kRank);
  for (const char* name : {"leaf a", "leaf b", "spine 0", "spine 1"}) graph.add(name, VertexKind::kSwitch);
  graph.link(0, 4, 100), graph.link(1, 4, 100), graph.link(2, 5, 100), graph.link(3, 5, 100);
  for (const size_t leaf : {4, 5}) {
    for (const size_t spine : {6, 7}) graph.link(leaf, spine, 50);
  }
  const size_t far = graph.add("far", VertexKind::kRank);
  graph.link(3, far, 10);
  return graph;
}

size_t arc_of(const plan::Graph& graph, size_t from, size_t to) {
  for (size_t i = 0; i < graph.arcs.size(); ++i) {
    if (graph.arcs[i].from == from && graph.arcs[i].to == to) return i;
  }
  return SIZE_MAX;
}

std::vector<size_t> vertices_on(const plan::Graph& graph, const std::vector<size_t>& way) {
  std::vector<size_t> on;
  for (const size_t arc : way) on.push_back(graph.arcs[arc].to);
  return on;
}

TEST(GraphRoutes, ShortestWaysAndTurns) {
  const plan::Graph graph = two_spines();
  const GraphRoutes routes(graph);
  EXPECT_EQ(routes.nodes(), 9u);
  EXPECT_EQ(routes.links().size(), 9u);
  EXPECT_EQ(vertices_on(graph, routes.way(0, 1)), (std::vector<size_t>{4, 1}));
  // Between equally fast links, destinations take turns.
  EXPECT_EQ(vertices_on(graph, routes.way(0, 2)), (std::vector<size_t>{4, 6, 5, 2}));
  EXPECT_EQ(vertices_on(graph, routes.way(0, 3)), (std::vector<size_t>{4, 7, 5, 3}));
  EXPECT_EQ(vertices_on(graph, routes.way(0, 8)), (std::vector<size_t>{4, 6, 5, 3, 8}));
  EXPECT_FALSE(routes.next(0, 0));
}

TEST(GraphRoutes, TheFasterLinkOfShortestWays) {
  plan::Graph graph = two_spines();
  for (plan::Arc& arc : graph.arcs) {
    if (arc.from == 4 && arc.to == 7) arc.rate = 51;
  }
  const GraphRoutes routes(graph);
  EXPECT_EQ(routes.next(4, 2), arc_of(graph, 4, 7));
  EXPECT_EQ(routes.next(4, 3), arc_of(graph, 4, 7));
}

TEST(GraphRoutes, MoreLinksBeforeAHostBetween) {
  plan::Graph graph = two_spines();
  graph.link(0, 8, 1000);  // from a0 to b1 by `far`, two links, or by four links through switches
  const GraphRoutes routes(graph);
  EXPECT_EQ(routes.way(0, 3).size(), 4u);
  EXPECT_EQ(vertices_on(graph, routes.way(0, 8)), (std::vector<size_t>{8}));
}

TEST(GraphRoutes, OneDirection) {
  plan::Graph graph;
  for (const char* name : {"a", "b", "c"}) graph.add(name, VertexKind::kRank);
  graph.arcs = {{0, 1, 5}, {1, 2, 6}, {2, 0, 7}};
  const GraphRoutes routes(graph);
  EXPECT_EQ(vertices_on(graph, routes.way(1, 0)), (std::vector<size_t>{2, 0}));
  ASSERT_EQ(routes.links().size(), 3u);
  EXPECT_EQ(routes.links()[2].a_to_b, 0);
  EXPECT_EQ(routes.links()[2].b_to_a, 7);
}

TEST(RackGraph, IsRefusedWithFileAndLine) {
  plan::Graph graph = two_spines();
  EXPECT_TRUE(check_rack_graph(graph, "f").ok());
  graph.arcs.back().rate = kMostLinkRate + 1;
  graph.arcs.back().line = 7;
  Status status = check_rack_graph(graph, "f");
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(status.message().substr(0, 40), "f:7: the link from 'far' to 'b1' has 400");

  graph = two_spines();
  graph.add("lonely", VertexKind::kSwitch);
  graph.vertices.back().line = 3;
  status = check_rack_graph(graph, "f");
  EXPECT_EQ(status.code(), ErrorCode::kUnreachable);
  EXPECT_EQ(status.message(), "f:3: there is no way from 'a0' to 'lonely'; add the missing link");

  graph = two_spines();
  while (graph.vertices.size() < kMostGraphNodes) {
    graph.add("more", VertexKind::kRank);
    graph.link(graph.vertices.size() - 1, 4, 1);
  }
  // One inside a switch needs no namespace.
  graph.add("inside", VertexKind::kAggregator);
  graph.link(graph.vertices.size() - 1, 4, plan::kUnlimited);
  EXPECT_TRUE(check_rack_graph(graph, "f").ok());
  graph.add("last", VertexKind::kRank);
  status = check_rack_graph(graph, "f");
  EXPECT_EQ(status.code(), ErrorCode::kResourceExhausted);
  EXPECT_NE(status.message().find("'last' is one node too many"), std::string::npos);
}

RackOptions options_of(const plan::Graph& graph) {
  return {.name = "a", .workers = static_cast<int>(graph.ranks().size()), .graph = RackGraph{graph, {}}};
}

TEST(RackGraph, NodesAndLinks) {
  const RackPlan plan(options_of(two_spines()));
  ASSERT_EQ(plan.nodes().size(), 9u);
  EXPECT_EQ(plan.find_named("far")->id, "w4");
  EXPECT_EQ(plan.find_named("4"), plan.find_named("far"));
  EXPECT_EQ(plan.find_named("leaf b")->network_namespace, "netsum-a-sw1");
  EXPECT_EQ(plan.find_named("leaf b")->address, "10.77.1.2");
  EXPECT_EQ(plan.find_named(""), nullptr);
  const std::vector<RackLink> links = plan.links();
  ASSERT_EQ(links.size(), 18u);
  EXPECT_EQ(links[9].id, "spine 0>leaf a");
  EXPECT_EQ(links[9].rate_bits, 50u);
  EXPECT_EQ(links[9].lower_namespace, "netsum-a-sw2");
  EXPECT_EQ(links[9].shaped, std::vector<std::string>{"eth0"});
  EXPECT_EQ(links[9].receiver, "sw0");
  EXPECT_EQ(links[9].port, "eth2");
  EXPECT_NE(plan.rate_change(links[9], 60).lines.front().find("dev eth0 root tbf rate 60bit"),
            std::string::npos);
  EXPECT_TRUE(plan.rate_change(links[9], 60, false).lines.front().ends_with("limit 1"));
}

TEST(RackGraph, EachNodeHasARouteToEachOther) {
  const RackPlan plan(options_of(two_spines()));
  std::set<std::string> made, shaped;
  size_t routes = 0;
  for (const RackBatch& batch : plan.batches()) {
    for (const std::string& line : batch.lines) {
      if (line.starts_with("route add")) ++routes;
      if (line.starts_with("link add eth")) made.insert(batch.network_namespace + line);
      if (line.starts_with("qdisc add dev")) shaped.insert(batch.network_namespace + line);
    }
  }
  EXPECT_EQ(routes, 9u * 8);
  EXPECT_EQ(made.size(), 9u);
  EXPECT_EQ(shaped.size(), 18u);
  EXPECT_EQ(plan.parameters().size(), 9u * 5);
}

TEST(RackGraph, NoteHasAllOfIt) {
  RackOptions options = options_of(two_spines());
  options.graph->trees = {{.root = 1, .edges = {{0, 1}, {2, 1}}, .rate_bits = 12}};
  EXPECT_EQ(rack_options_from_json(to_json(options)), options);
  RackOptions other = options;
  EXPECT_EQ(difference(options, other), "");
  other.graph->trees.clear();
  EXPECT_EQ(difference(options, other), "another topology");
  other.graph.reset();
  EXPECT_EQ(difference(options, other), "another topology");
}

TEST(RackGraph, AggregatorsInSwitchesAndPlaces) {
  plan::Graph graph = two_spines();
  const size_t inside = graph.add("inside", VertexKind::kAggregator, 3000);
  graph.link(inside, 6, plan::kUnlimited);
  const size_t place = graph.add("spare", VertexKind::kAggregator);
  graph.link(place, 6, 2'000'000);
  const RackPlan plan(options_of(graph));
  EXPECT_EQ(plan.nodes().size(), 10u);
  const std::vector<RackService> services = plan.services();
  ASSERT_EQ(services.size(), 2u);
  EXPECT_EQ(services[0].node, "sw2");
  EXPECT_EQ(services[0].arguments,
            (std::vector<std::string>{"aggregator", "--listen", "10.77.1.3:5151", "--mtu", "1500", "--cores",
                                      "1", "--in-switch", "--sum-rate", "3kbit"}));
  EXPECT_EQ(services[1].id, "s0");
  EXPECT_EQ(services[1].arguments.back(), "2mbit");
  EXPECT_EQ(plan.aggregators_for(*plan.find("w0")), "10.77.1.3:5151,10.77.100.1:5151");
}

TEST(RackTrees, EachInnerVertexSumsBelowItsParent) {
  plan::Graph graph;
  for (const char* name : {"a", "b", "c", "d"}) graph.add(name, VertexKind::kRank);
  for (size_t i = 0; i < 4; ++i) graph.link(i, (i + 1) % 4, 3'000'000);
  plan::TreePlan planned = *plan_trees(graph, plan::TreeCollective::kAllReduce);
  ASSERT_TRUE(use_routes(GraphRoutes(graph), &planned).ok());
  const std::vector<RackTree> trees = *rack_trees(planned);
  ASSERT_FALSE(trees.empty());
  int64_t sum = 0;
  for (const RackTree& tree : trees) sum += tree.rate_bits;
  // Four links, of three tree edges for each part of the gradient: 3 / 4 of it at 3 Mbit/s.
  EXPECT_EQ(planned.time, plan::Fraction(plan::Integer(3), plan::Integer(4) * 3'000'000));
  EXPECT_NEAR(static_cast<double>(sum), 4e6, 4);

  RackOptions options = options_of(graph);
  options.graph->trees = trees;
  const RackPlan plan(options);
  const std::vector<RackService> services = plan.services();
  size_t count = 0;
  std::set<std::string> addresses, ids;
  for (const RackTree& tree : trees) {
    for (const size_t vertex : tree.inner()) {
      const RackService& one = services[count++];
      const auto flag = std::find(one.arguments.begin(), one.arguments.end(), "--parent");
      EXPECT_EQ(flag == one.arguments.end(), vertex == tree.root);
      // Parents start first.
      if (flag != one.arguments.end()) {
        EXPECT_TRUE(addresses.count(*(flag + 1)));
      }
      addresses.insert(one.address);
      ids.insert(one.id);
    }
  }
  EXPECT_EQ(count, services.size());
  EXPECT_EQ(ids.size(), services.size());
  EXPECT_EQ(addresses.size(), services.size());
  for (const RackNode& node : plan.nodes()) {
    const std::string list = plan.aggregators_for(node);
    EXPECT_EQ(static_cast<size_t>(std::count(list.begin(), list.end(), ',')) + 1, trees.size()) << list;
  }
}

TEST(RackTrees, TimeIsThatOfTheRoutes) {
  // Half of the gradient by each spine is planned; the rack's routes lead packets for one host by one of them.
  plan::Graph graph;
  for (const char* name : {"a", "b"}) graph.add(name, VertexKind::kRank);
  for (const char* name : {"leaf a", "leaf b", "spine 0", "spine 1"}) graph.add(name, VertexKind::kSwitch);
  graph.link(0, 2, 100), graph.link(1, 3, 100);
  for (const size_t leaf : {2, 3}) {
    for (const size_t spine : {4, 5}) graph.link(leaf, spine, 50);
  }
  plan::TreePlan planned = *plan_trees(graph, plan::TreeCollective::kAllReduce);
  EXPECT_EQ(planned.time, plan::Fraction(1, 100));
  ASSERT_TRUE(use_routes(GraphRoutes(graph), &planned).ok());
  EXPECT_EQ(planned.time, plan::Fraction(1, 50));
}

TEST(RackTrees, WhatAggregatorsCannotRun) {
  plan::TreePlan planned;
  planned.period = plan::kMaxPlaces + 1;
  planned.time = 1;
  planned.trees.assign(planned.period, plan::Tree{.root = 0, .edges = {{1, 0, {}, {}}}, .weight = 1});
  EXPECT_EQ(rack_trees(planned).status().code(), ErrorCode::kResourceExhausted);
  planned.trees.resize(1);
  ASSERT_TRUE(rack_trees(planned).ok());
  // A chain: the last vertex has no aggregator.
  for (size_t i = 1; i < plan::kMaxLevels; ++i) planned.trees.front().edges.push_back({i + 1, i, {}, {}});
  EXPECT_TRUE(rack_trees(planned).ok());
  planned.trees.front().edges.push_back({plan::kMaxLevels + 1, plan::kMaxLevels, {}, {}});
  EXPECT_EQ(rack_trees(planned).status().code(), ErrorCode::kResourceExhausted);
}

TEST(RackTrees, Commands) {
  plan::Graph graph;
  for (const char* name : {"a", "b"}) graph.add(name, VertexKind::kRank);
  graph.add("leaf", VertexKind::kSwitch);
  graph.add("leaf (sums)", VertexKind::kAggregator);
  const std::vector<RackTree> trees = {{.root = 3, .edges = {{0, 3}, {1, 3}}, .rate_bits = 5'000'000},
                                       {.root = 1, .edges = {{3, 1}, {0, 3}}, .rate_bits = 2'500'000}};
  EXPECT_EQ(
      tree_commands(graph, trees),
      "# On each host, aggregators: parents first.\n"
      "leaf: netsum aggregator --listen leaf:5151 --cores 1 --in-switch --sum-rate 5mbit\n"
      "b: netsum aggregator --listen b:5152 --cores 1 --in-switch --sum-rate 2.5mbit\n"
      "leaf: netsum aggregator --listen leaf:5152 --cores 1 --in-switch --sum-rate 2.5mbit --parent b:5152\n"
      "# The environment of each rank:\n"
      "a: NETSUM_HIERARCHY=1 NETSUM_AGGREGATOR=leaf:5151,leaf:5152\n"
      "b: NETSUM_HIERARCHY=1 NETSUM_AGGREGATOR=leaf:5151,b:5152\n");
  const std::string relays = relay_text(graph, trees, "two.yaml");
  EXPECT_EQ(relays,
            "# For all ranks: NETSUM_AGGREGATOR=plan:FILE. They are a b\n"
            "# Other aggregators to start:\n"
            "# leaf: netsum aggregator --listen leaf:5151 --cores 1 --in-switch --sum-rate 5mbit\n"
            "# leaf: netsum aggregator --listen leaf:5152 --cores 1 --in-switch --sum-rate 2.5mbit --parent "
            "b:5152\n"
            "network two.yaml\n"
            "ranks 2\n"
            "tree 5000000\n"
            "sum leaf:5151\n"
            "join leaf:5151 0 1\n"
            "tree 2500000\n"
            "sum b:5152 rank 1\n"
            "sum leaf:5152 below b:5152\n"
            "join b:5152 1\n"
            "join leaf:5152 0\n");
  EXPECT_TRUE(plan::parse_relay_plan(relays, "file").ok());
}

TEST(RackTrees, OneRankHasNone) {
  plan::Graph graph;
  graph.add("a", VertexKind::kRank);
  const plan::TreePlan planned = *plan_trees(graph, plan::TreeCollective::kAllReduce);
  EXPECT_EQ(rack_trees(planned).status().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace netsum::tool::rack_graph_test
