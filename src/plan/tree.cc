#include "src/plan/tree.h"

#include <algorithm>
#include <map>

namespace netsum::plan {

std::vector<std::pair<size_t, size_t>> from_root(const std::vector<std::vector<size_t>>& next, size_t root) {
  std::vector<std::pair<size_t, size_t>> edges;
  std::vector<std::pair<size_t, size_t>> order = {{root, SIZE_MAX}};
  for (size_t i = 0; i < order.size(); ++i) {
    const auto [vertex, parent] = order[i];
    for (const size_t other : next[vertex]) {
      if (other == parent) continue;
      edges.emplace_back(other, vertex);
      order.emplace_back(other, vertex);
    }
  }
  return edges;
}

// Takes away the ends of the tree, round by round; what is left last is the centre.
std::vector<std::pair<size_t, size_t>> from_centre(const std::vector<std::vector<size_t>>& next) {
  std::vector<size_t> degree(next.size()), ends;
  for (size_t i = 0; i < next.size(); ++i) {
    degree[i] = next[i].size();
    if (degree[i] == 1) ends.push_back(i);
  }
  for (size_t i = 0; i < ends.size(); ++i) {
    for (const size_t other : next[ends[i]]) {
      if (--degree[other] == 1) ends.push_back(other);
    }
  }
  return from_root(next, ends.empty() ? 0 : ends.back());
}

size_t height(const Tree& tree) {
  std::map<size_t, size_t> depth;
  size_t most = 0;
  for (const TreeEdge& edge : tree.edges) {
    depth[edge.child] = depth[edge.parent] + 1;
    most = std::max(most, depth[edge.child]);
  }
  return most;
}

}  // namespace netsum::plan
