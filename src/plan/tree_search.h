// The cheapest tree of a graph for given prices of its arcs: what column generation adds next (pack.h).
//
// A Steiner tree is found by one spanning tree for each set of aggregators, which is exact for up to kMostSearchedAggregators of
// them. Prices are doubles, or whole numbers for a proof.
#ifndef NETSUM_SRC_PLAN_TREE_SEARCH_H_
#define NETSUM_SRC_PLAN_TREE_SEARCH_H_

#include <cstddef>
#include <optional>
#include <vector>

#include "src/plan/fraction.h"
#include "src/plan/graph.h"
#include "src/plan/tree.h"

namespace netsum::plan {

inline constexpr size_t kMostSearchedAggregators =
    10;  // beyond it, sets are searched by adding and dropping one at a time

// What shares one limit in the master program: an arc, or the sums of an aggregator. For two-way trees in a symmetric
// graph also an arc with its reverse, because results take the ways of the contributions backwards.
struct Rows {
  Rows(const Graph& graph, bool two_way);

  bool symmetric = false;         // of two-way trees
  std::vector<size_t> of_arc;     // [arc]: row, or kNone without limit
  std::vector<size_t> of_vertex;  // [vertex]: row of an aggregator's sums, or kNone
  std::vector<int64_t> limit;     // [row]
  std::vector<size_t> reverse;    // [arc]: the reverse arc, if symmetric
};

// The rows that a tree loads for its weight 1, each as often as it does.
std::vector<size_t> rows_of(const Rows& rows, const Tree& tree);

template <typename Number>
class TreeSearch {
 public:
  struct Found {
    Tree tree;
    Number price;
  };

  TreeSearch(const Graph& graph, const Rows& rows);

  // [row], at least 0.
  void set_prices(const std::vector<Number>& prices);

  // Two-way trees: each edge carries contributions up and results down. None if no tree exists, because ranks that must
  // not relay are in the way.
  std::optional<Found> cheapest() const;
  // Out-trees from a rank.
  std::optional<Found> cheapest_from(size_t root) const;
  // An in-tree and an out-tree of one root, as the edges of one tree: with only `up`, then with only `down`.
  std::optional<Found> cheapest_pair() const;

 private:
  struct Reach {
    std::vector<Number> price;  // [vertex]; meaningful where `arc` is known
    std::vector<size_t> arc;    // [vertex]: the last arc of the way, or kNone
  };
  struct Edge {
    size_t from = 0;
    size_t to = 0;
    Number price;
  };
  struct Choice {
    std::vector<Edge> edges;
    Number price;
  };

  void explore(size_t terminal);
  std::vector<size_t> way(size_t from, size_t to) const;
  bool joined(size_t a, size_t b) const;
  Number price_of(size_t a, size_t b) const;
  std::optional<Choice> span(const std::vector<size_t>& aggregators) const;
  std::optional<Choice> arborescence(size_t root, const std::vector<size_t>& aggregators, bool inwards) const;
  template <typename Make>
  std::optional<Choice> best_set(Make make) const;
  Tree two_way(const Choice& choice) const;
  std::vector<TreeEdge> one_way(const Choice& choice, size_t root, bool inwards) const;

  const Graph& graph_;
  const Rows& rows_;
  std::vector<std::vector<size_t>> next_;  // [vertex]: arcs
  std::vector<size_t> ranks_;
  std::vector<size_t> aggregators_;
  std::vector<Number> prices_;
  std::vector<Reach> reach_;  // [vertex], of ranks and aggregators
};

extern template class TreeSearch<double>;
extern template class TreeSearch<Integer>;

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_TREE_SEARCH_H_
