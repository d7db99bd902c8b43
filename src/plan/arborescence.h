// The cheapest tree of directed edges from a root to all vertices (Chu and Liu 1965, Edmonds 1967).
#ifndef NETSUM_SRC_PLAN_ARBORESCENCE_H_
#define NETSUM_SRC_PLAN_ARBORESCENCE_H_

#include <cstddef>
#include <optional>
#include <vector>

namespace netsum::plan {

template <typename Number>
struct ArborescenceEdge {
  size_t from = 0;
  size_t to = 0;
  Number price;
};

// For min_arborescence(): the cheapest edge into each vertex, and the cycles that these form.
template <typename Number>
struct CheapestEdges {
  static constexpr size_t kNone = SIZE_MAX;

  std::vector<size_t> into;   // [vertex]: edge
  std::vector<size_t> group;  // [vertex]: vertices of a cycle are one group
  size_t groups = 0;
  bool complete = true;  // every vertex has an edge into it
  bool cyclic = false;

  CheapestEdges(size_t vertices, size_t root, const std::vector<ArborescenceEdge<Number>>& edges)
      : into(vertices, kNone), group(vertices, kNone) {
    for (size_t i = 0; i < edges.size(); ++i) {
      const auto& edge = edges[i];
      if (edge.to == root || edge.from == edge.to) continue;
      if (into[edge.to] == kNone || edge.price < edges[into[edge.to]].price) into[edge.to] = i;
    }
    std::vector<size_t> seen(vertices, kNone);
    for (size_t start = 0; start < vertices; ++start) {
      if (start != root && into[start] == kNone) complete = false;
      size_t at = start;
      while (at != root && seen[at] == kNone && into[at] != kNone) {
        seen[at] = start;
        at = edges[into[at]].from;
      }
      if (at == root || seen[at] != start || group[at] != kNone || into[at] == kNone) continue;
      cyclic = true;
      for (size_t next = at; group[next] == kNone; next = edges[into[next]].from) group[next] = groups;
      ++groups;
    }
    for (size_t& each : group) {
      if (each == kNone) each = groups++;
    }
  }
};

// Returns the numbers of the chosen edges, or none if some vertex cannot be reached.
template <typename Number>
std::optional<std::vector<size_t>> min_arborescence(size_t vertices, size_t root,
                                                    const std::vector<ArborescenceEdge<Number>>& edges) {
  const CheapestEdges<Number> cheapest(vertices, root, edges);
  if (!cheapest.complete) return {};
  std::vector<size_t> chosen;
  if (!cheapest.cyclic) {
    for (size_t vertex = 0; vertex < vertices; ++vertex) {
      if (vertex != root) chosen.push_back(cheapest.into[vertex]);
    }
    return chosen;
  }
  // Each cycle becomes one vertex; an edge into it replaces the cycle's edge into the same vertex.
  std::vector<ArborescenceEdge<Number>> outer;
  std::vector<size_t> numbers;
  for (size_t i = 0; i < edges.size(); ++i) {
    const auto& edge = edges[i];
    const size_t from = cheapest.group[edge.from], to = cheapest.group[edge.to];
    if (from == to || edge.to == root) continue;
    outer.push_back({from, to, Number(edge.price - edges[cheapest.into[edge.to]].price)});
    numbers.push_back(i);
  }
  const auto upper = min_arborescence(cheapest.groups, cheapest.group[root], outer);
  if (!upper) return {};
  std::vector<size_t> into = cheapest.into;
  for (const size_t i : *upper) into[edges[numbers[i]].to] = numbers[i];
  for (size_t vertex = 0; vertex < vertices; ++vertex) {
    if (vertex != root) chosen.push_back(into[vertex]);
  }
  return chosen;
}

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_ARBORESCENCE_H_
