#include "tools/netsum/doctor_paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tools/netsum/plan_file.h"

namespace netsum::tool::doctor_paths_test {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

// Two hosts at each leaf; each leaf is linked to both spines, and the aggregator to a spine.
constexpr const char* kFile =
    "hosts: [{name: h, count: 8}]\n"
    "switches: [{name: leaf, count: 4}, {name: spine, count: 2}]\n"
    "places: [{name: place}]\n"
    "links:\n"
    "  - {between: ['h[0-1]', leaf0], rate: 1G}\n"
    "  - {between: ['h[2-3]', leaf1], rate: 1G}\n"
    "  - {between: ['h[4-5]', leaf2], rate: 1G}\n"
    "  - {between: ['h[6-7]', leaf3], rate: 1G}\n"
    "  - {between: [leaf, spine], rate: 1G}\n"
    "  - {between: [place, spine0], rate: 1G}\n";

plan::Graph network(const std::string& text = kFile) {
  return *parse_plan_input(text, "network.yaml").graph;
}

size_t vertex(const plan::Graph& graph, const std::string& name) {
  for (size_t i = 0; i < graph.vertices.size(); ++i)
    if (graph.vertices[i].name == name) return i;
  ADD_FAILURE() << name;
  return 0;
}

size_t arc(const plan::Graph& graph, const std::string& from, const std::string& to) {
  for (size_t i = 0; i < graph.arcs.size(); ++i)
    if (graph.vertices[graph.arcs[i].from].name == from && graph.vertices[graph.arcs[i].to].name == to)
      return i;
  ADD_FAILURE() << from << " to " << to;
  return 0;
}

// Walks all ways without a vertex twice, each with its part of the packets, and keeps the shortest.
std::map<size_t, double> walked(const plan::Graph& graph, size_t from, size_t to) {
  std::vector<std::vector<size_t>> shortest;
  std::vector<size_t> way;
  std::vector<bool> visited(graph.vertices.size());
  const std::function<void(size_t)> walk = [&](size_t at) {
    if (at == to) {
      if (!shortest.empty() && way.size() > shortest.front().size()) return;
      if (!shortest.empty() && way.size() < shortest.front().size()) shortest.clear();
      shortest.push_back(way);
      return;
    }
    if (at != from && graph.vertices[at].kind != plan::VertexKind::kSwitch) return;
    visited[at] = true;
    for (size_t i = 0; i < graph.arcs.size(); ++i) {
      if (graph.arcs[i].from != at || visited[graph.arcs[i].to]) continue;
      way.push_back(i);
      walk(graph.arcs[i].to);
      way.pop_back();
    }
    visited[at] = false;
  };
  walk(from);
  std::map<size_t, double> parts;
  const std::function<void(std::vector<std::vector<size_t>>, size_t, double)> divide =
      [&](const std::vector<std::vector<size_t>>& ways, size_t hop, double part) {
        std::map<size_t, std::vector<std::vector<size_t>>> by_next;
        for (const auto& one : ways)
          if (hop < one.size()) by_next[one[hop]].push_back(one);
        for (const auto& [next, rest] : by_next) {
          const double each = part / static_cast<double>(by_next.size());
          parts[next] += each;
          divide(rest, hop + 1, each);
        }
      };
  divide(shortest, 0, 1);
  return parts;
}

void expect_as_walked(const plan::Graph& graph) {
  Routes routes(graph);
  for (size_t from = 0; from < graph.vertices.size(); ++from) {
    for (size_t to = 0; to < graph.vertices.size(); ++to) {
      if (from == to || graph.vertices[from].kind == plan::VertexKind::kSwitch ||
          graph.vertices[to].kind == plan::VertexKind::kSwitch)
        continue;
      std::map<size_t, double> found;
      for (const auto& [link, part] : routes.between(from, to)) {
        EXPECT_EQ(found.count(link), 0u);
        found[link] = part;
      }
      const std::map<size_t, double> expected = walked(graph, from, to);
      ASSERT_EQ(found.size(), expected.size()) << from << " to " << to;
      for (const auto& [link, part] : expected) EXPECT_NEAR(found[link], part, 1e-9);
    }
  }
}

TEST(DoctorPaths, RoutesAreTheShortest) {
  expect_as_walked(network());
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    plan::Graph graph;
    for (size_t i = 0; i < 9; ++i)
      graph.add("v" + std::to_string(i), i < 3 ? plan::VertexKind::kRank : plan::VertexKind::kSwitch);
    for (size_t a = 0; a < 9; ++a)
      for (size_t b = 0; b < 9; ++b)
        if (a != b && random() % 3 == 0) graph.arcs.push_back({.from = a, .to = b, .rate = 1});
    expect_as_walked(graph);
  }
}

struct Sums {
  bool in_shards = false;
  std::vector<std::string> hosts;
};

// Of `packets` each way on each path, `loss` of those over `bad` are lost. Each pair takes one of the equal ways.
Json counted(const plan::Graph& graph, size_t bad, double loss, uint64_t seed, const Sums& sums) {
  constexpr uint64_t kPackets = 16'384;
  std::mt19937_64 random(seed);
  Routes routes(graph);
  const auto lost = [&](size_t from, size_t to) {
    bool over = false;
    for (const auto& [link, part] : routes.between(from, to))
      over |= link == bad && std::uniform_real_distribution<double>()(random) < part;
    return std::binomial_distribution<uint64_t>(kPackets, over ? loss : 1e-5)(random);
  };
  Json members = Json::array(), paths = Json::array();
  const std::vector<size_t> ranks = graph.ranks();
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    members.push_back({{"rank", rank}, {"host", sums.hosts.empty() ? "?" : sums.hosts[rank]}});
  const auto add = [&](size_t rank, int shard, size_t place) {
    const uint64_t to = lost(ranks[rank], place), from = lost(place, ranks[rank]);
    paths.push_back({{"ranks", {rank}},
                     {"shard", shard},
                     {"kept_to", kPackets - to},
                     {"lost_to", to},
                     {"kept_from", kPackets - from},
                     {"lost_from", from}});
  };
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!sums.in_shards) add(rank, -1, vertex(graph, "place"));
    for (size_t owner = 0; sums.in_shards && owner < ranks.size(); ++owner)
      if (owner != rank) add(rank, static_cast<int>(owner), ranks[owner]);
  }
  return {{"name", "train"}, {"members", members}, {"paths", paths}};
}

TEST(DoctorPaths, ALinkBetweenSwitchesIsNamed) {
  const plan::Graph graph = network();
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Json job = counted(graph, arc(graph, "leaf1", "spine0"), 0.005, seed, {});
    const std::vector<Finding> found = blame_links({{"10.0.0.9:5151", job}}, graph);
    ASSERT_THAT(found, SizeIs(1));
    EXPECT_EQ(found[0].grade, Grade::kFail);
    EXPECT_EQ(found[0].subject, "job train");
    EXPECT_THAT(found[0].found, HasSubstr("the link leaf1 to spine0 loses 0.")) << "seed " << seed;
  }
}

// Those of a leaf to the two spines are as likely: it is not known which packets take which.
TEST(DoctorPaths, OfShardsEachLinkIsNamed) {
  const plan::Graph graph = network();
  for (uint64_t seed = 1; seed <= 2 * graph.arcs.size(); ++seed) {
    const plan::Arc& bad = graph.arcs[seed % graph.arcs.size()];
    const std::string from = graph.vertices[bad.from].name, to = graph.vertices[bad.to].name;
    if (from == "place" || to == "place") continue;  // on no path
    const Json job = counted(graph, seed % graph.arcs.size(), 0.005, seed, {.in_shards = true});
    const std::vector<Finding> found = blame_links({{"10.0.0.1:5151", job}}, graph);
    ASSERT_THAT(found, SizeIs(1)) << "seed " << seed;
    EXPECT_THAT(found[0].found, HasSubstr(from + " to " + to)) << "seed " << seed;
    const bool between_switches = from.starts_with("leaf") && to.starts_with("spine");
    const bool back = from.starts_with("spine") && to.starts_with("leaf");
    if (!between_switches && !back) {
      EXPECT_TRUE(found[0].found.starts_with("the link")) << "seed " << seed << ": " << found[0].found;
      continue;
    }
    const std::string other = (back ? from : to) == "spine0" ? "spine1" : "spine0";
    EXPECT_TRUE(found[0].found.starts_with("one of these links")) << "seed " << seed;
    EXPECT_THAT(found[0].found, HasSubstr(back ? other + " to " + to : from + " to " + other));
    EXPECT_EQ(std::count(found[0].found.begin(), found[0].found.end(), ','), 1) << found[0].found;
  }
}

TEST(DoctorPaths, LinksOfTheSamePathsAreAGroup) {
  const std::string text =
      "hosts: [{name: h, count: 3}]\n"
      "switches: [{name: leaf, count: 2}, {name: spine}]\n"
      "places: [{name: place}]\n"
      "links:\n"
      "  - {between: ['h[0-1]', leaf0], rate: 1G}\n"
      "  - {between: [h2, leaf1], rate: 1G}\n"
      "  - {between: [leaf, spine], rate: 1G}\n"
      "  - {between: [place, leaf1], rate: 1G}\n";
  const plan::Graph graph = network(text);
  const Json job = counted(graph, arc(graph, "spine", "leaf1"), 0.01, 1, {});
  const std::vector<Finding> found = blame_links({{"10.0.0.9:5151", job}}, graph);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].found, HasSubstr("one of these links loses"));
  EXPECT_THAT(found[0].found, HasSubstr("leaf0 to spine, spine to leaf1"));
  EXPECT_THAT(found[0].advice, HasSubstr("no path of the job tells them apart"));
}

TEST(DoctorPaths, AGoodNetworkAndOneWithoutCounts) {
  const plan::Graph graph = network();
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    const std::vector<Finding> found =
        blame_links({{"10.0.0.9:5151", counted(graph, 0, 0, seed, {.in_shards = true})}}, graph);
    ASSERT_THAT(found, SizeIs(1));
    EXPECT_EQ(found[0].grade, Grade::kOk);
  }
  Json job = counted(graph, 0, 0, 1, {});
  job["paths"] = Json::array();
  EXPECT_EQ(blame_links({{"10.0.0.9:5151", job}}, graph)[0].grade, Grade::kWarn);
}

TEST(DoctorPaths, AJobOfTreesIsRefused) {
  const plan::Graph graph = network();
  Sums sums{.hosts = {"h0", "h1", "h2", "h3", "h4", "h5", "h6", "10.0.0.7:41234"}};
  const std::vector<Finding> found =
      blame_links({{"10.0.0.9:5151", counted(graph, 0, 0.01, 1, sums)}}, graph);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].grade, Grade::kFail);
  EXPECT_THAT(found[0].found, HasSubstr("aggregators below"));
}

TEST(DoctorPaths, NamesMustBeThoseOfTheJob) {
  const plan::Graph graph = network();
  Sums sums{.hosts = {"h0", "h1", "h2", "h3", "h4", "h5", "h6", "10.0.0.7"}};
  const auto found = [&](const plan::Graph& of) {
    return blame_links({{"place:5151", counted(graph, 0, 0, 1, sums)}}, of)[0];
  };
  EXPECT_THAT(found(graph).found, HasSubstr("has no 10.0.0.7"));
  sums.hosts = {"h1", "h0", "h2", "h3", "h4", "h5", "h6", "h7"};  // another order
  EXPECT_EQ(found(graph).grade, Grade::kOk);
  sums.hosts.clear();
  EXPECT_THAT(found(network("hosts: [{name: a}, {name: b}]\nlinks: [{between: [a, b], rate: 1G}]\n")).found,
              HasSubstr("has 2 hosts, the job 8"));
}

}  // namespace
}  // namespace netsum::tool::doctor_paths_test
