#include "src/plan/tree_search.h"

#include <algorithm>
#include <queue>
#include <unordered_map>

#include "src/plan/arborescence.h"

namespace netsum::plan {
namespace {

bool is_rank(const Graph& graph, size_t vertex) {
  return graph.vertices[vertex].kind == VertexKind::kRank;
}

bool relays(const Graph& graph, size_t vertex) {
  return !is_rank(graph, vertex) || graph.vertices[vertex].relay;
}

// Drops aggregators at the ends of a tree: they sum nothing.
void prune(const Graph& graph, std::vector<std::vector<size_t>>* next) {
  bool pruned = true;
  while (pruned) {
    pruned = false;
    for (size_t vertex = 0; vertex < next->size(); ++vertex) {
      if (is_rank(graph, vertex) || (*next)[vertex].size() != 1) continue;
      auto& others = (*next)[(*next)[vertex].front()];
      others.erase(std::find(others.begin(), others.end(), vertex));
      (*next)[vertex].clear();
      pruned = true;
    }
  }
}

}  // namespace

Rows::Rows(const Graph& graph, bool two_way)
    : symmetric(two_way && plan::symmetric(graph)),
      of_arc(graph.arcs.size(), kNone),
      of_vertex(graph.vertices.size(), kNone),
      reverse(graph.arcs.size(), kNone) {
  std::unordered_map<size_t, size_t> known;
  const size_t size = graph.vertices.size();
  for (size_t i = 0; i < graph.arcs.size(); ++i) {
    const Arc& arc = graph.arcs[i];
    const auto back = known.find(arc.to * size + arc.from);
    if (symmetric && back != known.end()) {
      reverse[i] = back->second;
      reverse[back->second] = i;
      of_arc[i] = of_arc[back->second];
      continue;
    }
    known.emplace(arc.from * size + arc.to, i);
    if (arc.rate == kUnlimited) continue;
    of_arc[i] = limit.size();
    limit.push_back(arc.rate);
  }
  for (size_t i = 0; i < size; ++i) {
    const Vertex& vertex = graph.vertices[i];
    if (vertex.kind != VertexKind::kAggregator || vertex.sum_rate == kUnlimited) continue;
    of_vertex[i] = limit.size();
    limit.push_back(vertex.sum_rate);
  }
}

std::vector<size_t> rows_of(const Rows& rows, const Tree& tree) {
  std::vector<size_t> loaded;
  std::vector<bool> counted(rows.of_vertex.size());
  const auto add = [&](size_t row) {
    if (row != kNone) loaded.push_back(row);
  };
  for (const TreeEdge& edge : tree.edges) {
    for (const size_t arc : edge.up) add(rows.of_arc[arc]);
    // In a symmetric graph, results load the reverse arcs exactly as contributions load the arcs.
    for (const size_t arc : edge.down) {
      if (!rows.symmetric) add(rows.of_arc[arc]);
    }
    if (edge.up.empty() || counted[edge.parent]) continue;
    counted[edge.parent] = true;
    add(rows.of_vertex[edge.parent]);
  }
  return loaded;
}

template <typename Number>
TreeSearch<Number>::TreeSearch(const Graph& graph, const Rows& rows)
    : graph_(graph),
      rows_(rows),
      next_(graph.vertices.size()),
      ranks_(graph.ranks()),
      reach_(graph.vertices.size()) {
  for (size_t i = 0; i < graph.arcs.size(); ++i) next_[graph.arcs[i].from].push_back(i);
  for (size_t i = 0; i < graph.vertices.size(); ++i) {
    if (graph.vertices[i].kind == VertexKind::kAggregator) aggregators_.push_back(i);
  }
}

template <typename Number>
void TreeSearch<Number>::set_prices(const std::vector<Number>& prices) {
  prices_ = prices;
  for (const size_t rank : ranks_) explore(rank);
  for (const size_t aggregator : aggregators_) explore(aggregator);
}

// The cheapest ways from one vertex to all others, through switches.
template <typename Number>
void TreeSearch<Number>::explore(size_t terminal) {
  Reach& reach = reach_[terminal];
  reach.price.assign(graph_.vertices.size(), Number(0));
  reach.arc.assign(graph_.vertices.size(), kNone);
  std::vector<bool> done(graph_.vertices.size());
  using Entry = std::pair<Number, size_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> waiting;
  waiting.emplace(Number(0), terminal);
  while (!waiting.empty()) {
    const auto [price, vertex] = waiting.top();
    waiting.pop();
    if (done[vertex]) continue;
    done[vertex] = true;
    if (vertex != terminal && graph_.vertices[vertex].kind != VertexKind::kSwitch) continue;
    for (const size_t arc : next_[vertex]) {
      const size_t other = graph_.arcs[arc].to, row = rows_.of_arc[arc];
      if (done[other]) continue;
      const Number total = row == kNone ? price : Number(price + prices_[row]);
      if (reach.arc[other] != kNone && !(total < reach.price[other])) continue;
      reach.price[other] = total;
      reach.arc[other] = arc;
      waiting.emplace(total, other);
    }
  }
}

template <typename Number>
std::vector<size_t> TreeSearch<Number>::way(size_t from, size_t to) const {
  std::vector<size_t> arcs;
  for (size_t at = to; at != from; at = graph_.arcs[arcs.back()].from) arcs.push_back(reach_[from].arc[at]);
  std::reverse(arcs.begin(), arcs.end());
  return arcs;
}

template <typename Number>
bool TreeSearch<Number>::joined(size_t a, size_t b) const {
  return reach_[a].arc[b] != kNone && reach_[b].arc[a] != kNone;
}

template <typename Number>
Number TreeSearch<Number>::price_of(size_t a, size_t b) const {
  return rows_.symmetric ? reach_[a].price[b] : Number(reach_[a].price[b] + reach_[b].price[a]);
}

// A minimum spanning tree over the ranks and these aggregators (Prim); ranks that must not relay are attached last.
template <typename Number>
auto TreeSearch<Number>::span(const std::vector<size_t>& aggregators) const -> std::optional<Choice> {
  std::vector<size_t> inner = aggregators, outer;
  for (const size_t rank : ranks_) (relays(graph_, rank) ? inner : outer).push_back(rank);
  if (inner.empty()) {
    if (outer.size() > 2) return {};
    inner = {outer.front()};
    outer.erase(outer.begin());
  }
  Choice choice{{}, Number(0)};
  std::vector<size_t> left(inner.begin() + 1, inner.end()), nearest(graph_.vertices.size(), kNone);
  size_t added = inner.front();
  const auto attach = [&](std::vector<size_t>& from) {
    size_t best = kNone;
    for (size_t i = 0; i < from.size(); ++i) {
      const size_t vertex = from[i];
      const auto price = [&](size_t other) { return price_of(nearest[other], other); };
      if (joined(added, vertex) && (nearest[vertex] == kNone || price_of(added, vertex) < price(vertex))) {
        nearest[vertex] = added;
      }
      if (nearest[vertex] == kNone) continue;
      if (best == kNone || price(vertex) < price(from[best])) best = i;
    }
    return best;
  };
  for (const size_t vertex : outer) {
    if (joined(added, vertex)) nearest[vertex] = added;
  }
  while (!left.empty()) {
    const size_t best = attach(left);
    if (best == kNone) return {};
    const size_t vertex = left[best];
    choice.edges.push_back({nearest[vertex], vertex, price_of(nearest[vertex], vertex)});
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(best));
    added = vertex;
    attach(outer);
  }
  for (const size_t vertex : outer) {
    if (nearest[vertex] == kNone) return {};
    choice.edges.push_back({nearest[vertex], vertex, price_of(nearest[vertex], vertex)});
  }
  for (const Edge& edge : choice.edges) choice.price += edge.price;
  for (const size_t vertex : aggregators) {
    if (rows_.of_vertex[vertex] != kNone) choice.price += prices_[rows_.of_vertex[vertex]];
  }
  return choice;
}

template <typename Number>
auto TreeSearch<Number>::arborescence(size_t root, const std::vector<size_t>& aggregators, bool inwards) const
    -> std::optional<Choice> {
  std::vector<size_t> vertices = ranks_;
  vertices.insert(vertices.end(), aggregators.begin(), aggregators.end());
  std::vector<ArborescenceEdge<Number>> edges;
  size_t at = kNone;
  for (size_t i = 0; i < vertices.size(); ++i) {
    if (vertices[i] == root) at = i;
    if (vertices[i] != root && !relays(graph_, vertices[i])) continue;
    for (size_t j = 0; j < vertices.size(); ++j) {
      const size_t from = inwards ? vertices[j] : vertices[i], to = inwards ? vertices[i] : vertices[j];
      if (i != j && reach_[from].arc[to] != kNone) edges.push_back({i, j, reach_[from].price[to]});
    }
  }
  if (at == kNone) return {};
  const std::optional<std::vector<size_t>> chosen = min_arborescence(vertices.size(), at, edges);
  if (!chosen) return {};
  Choice choice{{}, Number(0)};
  for (const size_t i : *chosen) {
    choice.edges.push_back({vertices[edges[i].from], vertices[edges[i].to], edges[i].price});
    choice.price += edges[i].price;
  }
  for (const size_t vertex : aggregators) {
    if (inwards && rows_.of_vertex[vertex] != kNone) choice.price += prices_[rows_.of_vertex[vertex]];
  }
  return choice;
}

// The cheapest choice over sets of aggregators.
template <typename Number>
template <typename Make>
auto TreeSearch<Number>::best_set(Make make) const -> std::optional<Choice> {
  std::optional<Choice> best;
  const auto consider = [&](const std::vector<bool>& used) {
    std::vector<size_t> set;
    for (size_t i = 0; i < used.size(); ++i) {
      if (used[i]) set.push_back(aggregators_[i]);
    }
    std::optional<Choice> choice = make(set);
    if (!choice || (best && !(choice->price < best->price))) return false;
    best = std::move(choice);
    return true;
  };
  const size_t count = aggregators_.size();
  std::vector<bool> used(count);
  if (count <= kMostSearchedAggregators) {
    for (size_t set = 0; set < size_t{1} << count; ++set) {
      for (size_t i = 0; i < count; ++i) used[i] = (set >> i & 1) != 0;
      consider(used);
    }
    return best;
  }
  consider(std::vector<bool>(count, true));
  consider(used);
  for (bool improved = true; improved;) {
    improved = false;
    for (size_t i = 0; i < count; ++i) {
      used[i] = !used[i];
      if (consider(used)) {
        improved = true;
      } else {
        used[i] = !used[i];
      }
    }
  }
  return best;
}

template <typename Number>
auto TreeSearch<Number>::cheapest() const -> std::optional<Found> {
  const auto choice = best_set([&](const std::vector<size_t>& set) { return span(set); });
  if (!choice) return {};
  return Found{two_way(*choice), choice->price};
}

template <typename Number>
auto TreeSearch<Number>::cheapest_from(size_t root) const -> std::optional<Found> {
  const auto choice =
      best_set([&](const std::vector<size_t>& set) { return arborescence(root, set, false); });
  if (!choice) return {};
  return Found{{root, one_way(*choice, root, false), 0}, choice->price};
}

template <typename Number>
auto TreeSearch<Number>::cheapest_pair() const -> std::optional<Found> {
  std::optional<Found> best;
  std::vector<size_t> roots = ranks_;
  roots.insert(roots.end(), aggregators_.begin(), aggregators_.end());
  for (const size_t root : roots) {
    if (!relays(graph_, root) && ranks_.size() > 2) continue;
    const auto in = best_set([&](const std::vector<size_t>& set) { return arborescence(root, set, true); });
    const auto out = best_set([&](const std::vector<size_t>& set) { return arborescence(root, set, false); });
    if (!in || !out) continue;
    const Number price = in->price + out->price;
    if (best && !(price < best->price)) continue;
    Tree tree{root, one_way(*in, root, true), 0};
    const std::vector<TreeEdge> down = one_way(*out, root, false);
    tree.edges.insert(tree.edges.end(), down.begin(), down.end());
    best = Found{std::move(tree), price};
  }
  return best;
}

template <typename Number>
Tree TreeSearch<Number>::two_way(const Choice& choice) const {
  std::vector<std::vector<size_t>> next(graph_.vertices.size());
  for (const Edge& edge : choice.edges) {
    next[edge.from].push_back(edge.to);
    next[edge.to].push_back(edge.from);
  }
  prune(graph_, &next);
  Tree tree;
  const std::vector<std::pair<size_t, size_t>> edges = from_centre(next);
  if (!edges.empty()) tree.root = edges.front().second;
  for (const auto& [child, parent] : edges) {
    TreeEdge edge{child, parent, way(child, parent), {}};
    if (rows_.symmetric) {
      for (auto arc = edge.up.rbegin(); arc != edge.up.rend(); ++arc)
        edge.down.push_back(rows_.reverse[*arc]);
    } else {
      edge.down = way(parent, child);
    }
    tree.edges.push_back(std::move(edge));
  }
  return tree;
}

template <typename Number>
std::vector<TreeEdge> TreeSearch<Number>::one_way(const Choice& choice, size_t root, bool inwards) const {
  std::vector<std::vector<size_t>> next(graph_.vertices.size());
  for (const Edge& edge : choice.edges) {
    next[edge.from].push_back(edge.to);
    next[edge.to].push_back(edge.from);
  }
  prune(graph_, &next);
  std::vector<TreeEdge> edges;
  for (const auto& [child, parent] : from_root(next, root)) {
    TreeEdge edge{child, parent, {}, {}};
    (inwards ? edge.up : edge.down) = inwards ? way(child, parent) : way(parent, child);
    edges.push_back(std::move(edge));
  }
  return edges;
}

template class TreeSearch<double>;
template class TreeSearch<Integer>;

}  // namespace netsum::plan
