// Spanning trees of a graph: what a plan consists of.
#ifndef NETSUM_SRC_PLAN_TREE_H_
#define NETSUM_SRC_PLAN_TREE_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace netsum::plan {

// An edge joins ranks or aggregators. Its ways are arcs of the graph, through switches.
struct TreeEdge {
  size_t child = 0;
  size_t parent = 0;
  std::vector<size_t> up;    // contributions, from child to parent; empty in a broadcast
  std::vector<size_t> down;  // results, from parent to child

  auto operator<=>(const TreeEdge&) const = default;
};

struct Tree {
  size_t root = 0;
  std::vector<TreeEdge> edges;  // an edge to a parent comes before those to its children
  uint32_t weight = 0;          // chunks per period

  auto operator<=>(const Tree&) const = default;
};

// The edges of an undirected tree as pairs of a child and its parent, parents first, below the vertex from which the
// longest way is shortest. `next` is by vertex; one without neighbours is not in the tree.
std::vector<std::pair<size_t, size_t>> from_centre(const std::vector<std::vector<size_t>>& next);
std::vector<std::pair<size_t, size_t>> from_root(const std::vector<std::vector<size_t>>& next, size_t root);

// Edges on the longest way from the root.
size_t height(const Tree& tree);

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_TREE_H_
