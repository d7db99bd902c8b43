#include "src/plan/graph_testing.h"

#include <algorithm>

namespace netsum::plan::testing {

Graph ranks(size_t count) {
  Graph graph;
  for (size_t i = 0; i < count; ++i) graph.add("rank" + std::to_string(i), VertexKind::kRank);
  return graph;
}

Graph star(size_t count, int64_t rate) {
  Graph graph = ranks(count);
  const size_t tor = graph.add("tor", VertexKind::kSwitch);
  for (size_t i = 0; i < count; ++i) graph.link(i, tor, rate);
  return graph;
}

Graph racks(size_t count, size_t ranks_each, int64_t rate, int64_t uplink) {
  Graph graph = ranks(count * ranks_each);
  for (size_t i = 0; i < count; ++i) graph.add("tor" + std::to_string(i), VertexKind::kSwitch);
  const size_t core = graph.add("core", VertexKind::kSwitch);
  for (size_t i = 0; i < count * ranks_each; ++i) graph.link(i, count * ranks_each + i / ranks_each, rate);
  for (size_t i = 0; i < count; ++i) graph.link(count * ranks_each + i, core, uplink);
  return graph;
}

Graph torus(size_t rows, size_t columns) {
  Graph graph = ranks(rows * columns);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      graph.link(row * columns + column, row * columns + (column + 1) % columns, 1);
      graph.link(row * columns + column, (row + 1) % rows * columns + column, 1);
    }
  }
  return graph;
}

Graph dgx1(bool second) {
  Graph graph = ranks(8);
  const std::vector<std::pair<size_t, size_t>> double_links = {{0, 3}, {0, 4}, {1, 2}, {1, 5},
                                                               {2, 3}, {4, 7}, {5, 6}, {6, 7}};
  for (const auto& [a, b] : std::vector<std::pair<size_t, size_t>>{{0, 1},
                                                                   {0, 2},
                                                                   {0, 3},
                                                                   {1, 2},
                                                                   {1, 3},
                                                                   {2, 3},
                                                                   {4, 5},
                                                                   {4, 6},
                                                                   {4, 7},
                                                                   {5, 6},
                                                                   {5, 7},
                                                                   {6, 7},
                                                                   {0, 4},
                                                                   {1, 5},
                                                                   {2, 6},
                                                                   {3, 7}}) {
    const bool is_double =
        std::find(double_links.begin(), double_links.end(), std::pair(a, b)) != double_links.end();
    graph.link(a, b, second && is_double ? 2 : 1);
  }
  return graph;
}

Graph part_of(const Graph& graph, const std::vector<size_t>& vertices) {
  Graph part;
  std::vector<size_t> number(graph.vertices.size(), SIZE_MAX);
  for (const size_t vertex : vertices)
    number[vertex] = part.add(graph.vertices[vertex].name, VertexKind::kRank);
  for (const Arc& arc : graph.arcs) {
    if (number[arc.from] != SIZE_MAX && number[arc.to] != SIZE_MAX) {
      part.arcs.push_back({number[arc.from], number[arc.to], arc.rate});
    }
  }
  return part;
}

Graph a100(size_t hosts) {
  Graph graph = ranks(8 * hosts);
  for (size_t host = 0; host < hosts; ++host) {
    const size_t inner = graph.add("inner" + std::to_string(host), VertexKind::kSwitch);
    for (size_t i = 0; i < 8; ++i) graph.link(8 * host + i, inner, 300);
  }
  if (hosts < 2) return graph;
  const size_t even = graph.add("even", VertexKind::kSwitch), odd = graph.add("odd", VertexKind::kSwitch);
  for (size_t i = 0; i < 8 * hosts; ++i) graph.link(i, i % 2 == 0 ? even : odd, 25);
  return graph;
}

Graph mi250(size_t hosts) {
  struct Wires {
    size_t a, b;
    int64_t count;
  };
  static constexpr Wires kWires[] = {
      {0, 1, 4},   {0, 4, 2},   {0, 8, 1},   {1, 5, 1},   {1, 9, 1},   {1, 10, 1},  {2, 3, 4},
      {2, 6, 1},   {2, 9, 1},   {2, 10, 1},  {3, 7, 2},   {3, 11, 1},  {4, 5, 4},   {4, 6, 1},
      {5, 6, 1},   {5, 7, 1},   {6, 7, 4},   {8, 9, 4},   {8, 12, 2},  {9, 13, 1},  {10, 11, 4},
      {10, 14, 1}, {11, 15, 2}, {12, 13, 4}, {12, 14, 1}, {13, 14, 1}, {13, 15, 1}, {14, 15, 4}};
  Graph graph = ranks(16 * hosts);
  for (size_t host = 0; host < hosts; ++host) {
    for (const Wires& wires : kWires) graph.link(16 * host + wires.a, 16 * host + wires.b, 50 * wires.count);
  }
  if (hosts < 2) return graph;
  const size_t network = graph.add("network", VertexKind::kSwitch);
  for (size_t i = 0; i < 16 * hosts; ++i) graph.link(i, network, 16);
  return graph;
}

Graph rails(bool one_dead) {
  Graph graph = ranks(8);
  const size_t first = graph.add("rail0", VertexKind::kSwitch),
               second = graph.add("rail1", VertexKind::kSwitch);
  for (size_t host = 0; host < 4; ++host) {
    const size_t inner = graph.add("inner" + std::to_string(host), VertexKind::kSwitch);
    for (size_t i = 0; i < 2; ++i) {
      graph.link(2 * host + i, inner, 8);
      if (!one_dead || host + i > 0) graph.link(2 * host + i, i == 0 ? first : second, 1);
    }
  }
  return graph;
}

Graph butterfly() {
  Graph graph = ranks(3);
  for (const char* name : {"a", "b", "c", "d"}) graph.add(name, VertexKind::kAggregator);
  // Rank 0 sends; the ranks' arcs back make the graph connected.
  for (const auto& [from, to] : std::vector<std::pair<size_t, size_t>>{
           {0, 3}, {0, 4}, {3, 1}, {3, 5}, {4, 2}, {4, 5}, {5, 6}, {6, 1}, {6, 2}, {1, 0}, {2, 0}}) {
    graph.arcs.push_back({from, to, 1});
  }
  return graph;
}

Graph fat_tree(size_t k) {
  const size_t half = k / 2;
  Graph graph = ranks(k * half * half);
  const size_t edge = graph.vertices.size(), middle = edge + k * half, core = middle + k * half;
  for (size_t i = 0; i < 2 * k * half + half * half; ++i)
    graph.add("switch" + std::to_string(i), VertexKind::kSwitch);
  for (size_t i = 0; i < edge; ++i) graph.link(i, edge + i / half, 10);
  for (size_t pod = 0; pod < k; ++pod) {
    for (size_t i = 0; i < half; ++i) {
      for (size_t j = 0; j < half; ++j) {
        graph.link(edge + pod * half + i, middle + pod * half + j, 10);
        graph.link(middle + pod * half + i, core + i * half + j, 10);
      }
    }
  }
  return graph;
}

Graph random_racks(Rng& rng, size_t most) {
  Graph graph;
  std::vector<size_t> switches = {graph.add("core", VertexKind::kSwitch)};
  const size_t racks = 1 + rng.below(3);
  for (size_t i = 0; i < racks; ++i) {
    const size_t upper = switches[rng.below(switches.size())];
    switches.push_back(graph.add("switch" + std::to_string(i), VertexKind::kSwitch));
    graph.link(switches.back(), upper, static_cast<int64_t>(1 + rng.below(9)));
  }
  const size_t count = 2 + rng.below(most - 1);
  for (size_t i = 0; i < count; ++i) {
    const size_t rank = graph.add("rank" + std::to_string(i), VertexKind::kRank);
    graph.link(rank, switches[rng.below(switches.size())], static_cast<int64_t>(1 + rng.below(6)));
  }
  for (const size_t each : switches) {
    if (!rng.chance(0.2)) continue;
    graph.link(graph.add("sums" + std::to_string(each), VertexKind::kAggregator), each, kUnlimited);
  }
  return graph;
}

}  // namespace netsum::plan::testing
