#include "src/plan/ring.h"

#include <algorithm>

#include "src/plan/fold.h"

namespace netsum::plan {
namespace {

constexpr size_t kMostOrders = 8;  // ranks of which all orders are tried

class Router {
 public:
  explicit Router(const Graph& graph)
      : graph_(graph), next_(graph.vertices.size()), load_(graph.arcs.size()) {
    for (size_t i = 0; i < graph.arcs.size(); ++i) next_[graph.arcs[i].from].push_back(i);
  }

  // The largest load divided by a rate, if each rank sends 1 to its successor.
  Fraction slowest(const std::vector<size_t>& order) {
    std::fill(load_.begin(), load_.end(), 0);
    for (size_t i = 0; i < order.size(); ++i) send(order[i], order[(i + 1) % order.size()]);
    int64_t load = 0, rate = 1;
    for (size_t i = 0; i < load_.size(); ++i) {
      const int64_t other = graph_.arcs[i].rate;
      if (other == kUnlimited ||
          static_cast<__int128>(load_[i]) * rate <= static_cast<__int128>(load) * other)
        continue;
      load = load_[i];
      rate = other;
    }
    return {Integer(load), Integer(rate)};
  }

 private:
  // Of ways with as many arcs, the one whose arcs carry least so far.
  void send(size_t from, size_t to) {
    if (!reach(from, to, false)) reach(from, to, true);
    for (size_t at = to; at != from; at = graph_.arcs[by_[at]].from) ++load_[by_[at]];
  }

  bool reach(size_t from, size_t to, bool through_ranks) {
    by_.assign(graph_.vertices.size(), SIZE_MAX);
    std::vector<size_t> order = {from};
    std::vector<bool> seen(graph_.vertices.size());
    seen[from] = true;
    for (size_t i = 0; i < order.size() && !seen[to]; ++i) {
      const size_t at = order[i];
      if (i > 0 && !through_ranks && graph_.vertices[at].kind == VertexKind::kRank) continue;
      std::vector<size_t> arcs = next_[at];
      std::stable_sort(arcs.begin(), arcs.end(), [&](size_t a, size_t b) { return load_[a] < load_[b]; });
      for (const size_t arc : arcs) {
        const size_t other = graph_.arcs[arc].to;
        if (seen[other]) continue;
        seen[other] = true;
        by_[other] = arc;
        order.push_back(other);
      }
    }
    return seen[to];
  }

  const Graph& graph_;
  std::vector<std::vector<size_t>> next_;
  std::vector<int64_t> load_;
  std::vector<size_t> by_;  // [vertex]: the arc that leads to it
};

void ranks_below(const Fold& fold, size_t node, std::vector<size_t>* order) {
  if (fold.nodes[node].is_rank) order->push_back(fold.nodes[node].members.front());
  for (const size_t child : fold.nodes[node].children) ranks_below(fold, child, order);
}

}  // namespace

Ring ring_over(const Graph& graph) {
  std::vector<size_t> order = graph.ranks();
  const auto count = static_cast<int64_t>(order.size());
  const Fraction rounds(Integer(2 * (count - 1)), Integer(count));
  Router router(graph);
  if (order.size() > kMostOrders) {
    if (const std::optional<Fold> tree = fold(graph)) {
      order.clear();
      ranks_below(*tree, 0, &order);
    }
    return {order, router.slowest(order) * rounds};
  }
  Ring best{order, router.slowest(order)};
  while (count > 2 && std::next_permutation(order.begin() + 1, order.end())) {
    const Fraction slowest = router.slowest(order);
    if (slowest < best.time) best = {order, slowest};
  }
  best.time = best.time * rounds;
  return best;
}

}  // namespace netsum::plan
