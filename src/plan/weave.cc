#include "src/plan/weave.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>

namespace netsum::plan {
namespace {

constexpr double kTolerance = 1e-9;
constexpr double kNearBound = 1.003;

// In each tree, what lies below a node of the fold has some parts, which are joined elsewhere, and some edges that leave
// it. Its balance is 2 parts - edges. Joining parts does not change their sum, so the balances of the nodes below a
// switch add up to its own; that of the root is 2. A rank has one part, and edges that its link limits.
class Balances {
 public:
  Balances(const Fold& fold, double time)
      : fold_(fold), least_(fold.nodes.size()), most_(least_), mean_(least_) {
    for (size_t i = fold.nodes.size(); i-- > 0;) limit(i, time);
    mean_.front() = 2;
    for (size_t i = 0; i < fold.nodes.size(); ++i) divide(i);
  }

  // [node]: sums over this many trees. Those below a switch add up to the switch's.
  std::vector<int64_t> totals(int64_t trees) const {
    std::vector<int64_t> total(mean_.size());
    total.front() = 2 * trees;
    for (size_t i = 0; i < fold_.nodes.size(); ++i) round_children(i, trees, &total);
    return total;
  }

  // How often a node is left by an edge, over all trees.
  int64_t leaving(size_t node, int64_t total, int64_t trees) const {
    return many_parts(node) ? total : 2 * trees - total;
  }
  double time_of(const std::vector<int64_t>& totals, int64_t trees) const {
    double longest = 0;
    for (size_t i = 1; i < totals.size(); ++i) {
      longest = std::max(longest, static_cast<double>(leaving(i, totals[i], trees)) / rate(i));
    }
    return longest / static_cast<double>(trees);
  }

 private:
  double rate(size_t node) const { return fold_.nodes[node].up.convert_to<double>(); }
  bool many_parts(size_t node) const { return mean_[node] > 1 + kTolerance; }
  bool sums(size_t node) const { return fold_.nodes[node].aggregator != kNone; }

  void limit(size_t i, double time) {
    const FoldNode& node = fold_.nodes[i];
    const double edges = time * rate(i);
    least_[i] = 2 - edges;
    most_[i] = 1;
    if (node.is_rank || sums(i)) return;
    double least = 0, most = 0;
    for (const size_t child : node.children) {
      least += least_[child];
      most += most_[child];
    }
    least_[i] = std::max(least_[i], least);
    most_[i] = std::max(least_[i], std::min(edges, most));
  }

  void divide(size_t i) {
    const auto& children = fold_.nodes[i].children;
    double least = 0, most = 0;
    for (const size_t child : children) {
      least += least_[child];
      most += most_[child];
    }
    double part = sums(i) || most - least < kTolerance ? 1 : (mean_[i] - least) / (most - least);
    part = std::clamp(part, 0.0, 1.0);
    for (const size_t child : children) mean_[child] = least_[child] + part * (most_[child] - least_[child]);
  }

  void round_children(size_t i, int64_t trees, std::vector<int64_t>* total) const {
    const auto& children = fold_.nodes[i].children;
    std::vector<std::pair<double, size_t>>
        order;  // by the time that a further 1 saves or, where it costs time, by less
    int64_t left = (*total)[i];
    for (const size_t child : children) {
      const double exact = mean_[child] * static_cast<double>(trees);
      // An aggregator joins what there is: its nodes need not add up to anything.
      const auto whole = static_cast<int64_t>(std::floor(exact + (sums(i) ? 0.5 : kTolerance)));
      (*total)[child] = whole;
      left -= whole;
      const bool costs = many_parts(child);
      const double edges = static_cast<double>(leaving(child, whole + (costs ? 1 : 0), trees)) / rate(child);
      order.emplace_back(costs ? edges : -edges, child);
    }
    if (sums(i)) return;
    std::stable_sort(order.begin(), order.end());
    // A rank leaves at least one edge in each tree.
    for (size_t k = 0; left > 0 && k < 2 * order.size(); ++k) {
      const size_t child = order[k % order.size()].second;
      if (fold_.nodes[child].is_rank && (*total)[child] >= trees) continue;
      ++(*total)[child];
      --left;
    }
    for (size_t k = 0; left < 0 && !order.empty(); ++k, ++left) --(*total)[order[k % order.size()].second];
  }

  const Fold& fold_;
  std::vector<double> least_;
  std::vector<double> most_;
  std::vector<double> mean_;
};

// Vertices that still have edges to give, once for each edge. All are in one part of a tree.
using Part = std::deque<size_t>;

class Weaver {
 public:
  Weaver(const Graph& graph, const Fold& fold) : graph_(graph), fold_(fold), load_(graph.arcs.size()) {
    node_of_.assign(graph.vertices.size(), kNone);
    out_.resize(graph.vertices.size());
    reverse_.assign(graph.arcs.size(), kNone);
    for (size_t i = 0; i < fold.nodes.size(); ++i) {
      for (const size_t member : fold.nodes[i].members) node_of_[member] = i;
    }
    for (size_t i = 0; i < graph.arcs.size(); ++i) out_[graph.arcs[i].from].push_back(i);
    for (size_t i = 0; i < graph.arcs.size(); ++i) {
      for (const size_t back : out_[graph.arcs[i].to]) {
        if (graph.arcs[back].to == graph.arcs[i].from) reverse_[i] = back;
      }
    }
  }

  std::vector<Tree> weave(const std::vector<int64_t>& totals, size_t trees) {
    spread(totals, trees);
    std::vector<Tree> woven;
    for (size_t t = 0; t < trees; ++t) woven.push_back(one(t));
    return woven;
  }

 private:
  struct Joint {
    size_t a = 0;
    size_t b = 0;
    size_t node = 0;  // where the edge turns
  };

  // balance_[node][tree]: the totals as evenly as possible, so that those below each switch add up in every tree.
  void spread(const std::vector<int64_t>& totals, size_t trees) {
    balance_.assign(fold_.nodes.size(), std::vector<int64_t>(trees, 2));
    for (size_t i = 0; i < fold_.nodes.size(); ++i) {
      const FoldNode& node = fold_.nodes[i];
      const bool sums = node.aggregator != kNone;
      std::vector<int64_t> missing = balance_[i];
      for (const size_t child : node.children) {
        const auto count = static_cast<int64_t>(trees);
        const int64_t floor =
            totals[child] >= 0 ? totals[child] / count : -((-totals[child] + count - 1) / count);
        for (size_t t = 0; t < trees; ++t) {
          balance_[child][t] = floor;
          missing[t] -= floor;
        }
      }
      for (const size_t child : node.children) {
        const int64_t more = totals[child] - balance_[child][0] * static_cast<int64_t>(trees);
        std::vector<size_t> order(trees);
        std::iota(order.begin(), order.end(), size_t{0});
        std::stable_sort(order.begin(), order.end(),
                         [&](size_t a, size_t b) { return missing[a] > missing[b]; });
        for (int64_t k = 0; k < more; ++k) {
          const size_t t = order[static_cast<size_t>(k)];
          ++balance_[child][t];
          if (!sums) --missing[t];
        }
      }
    }
  }

  Tree one(size_t t) {
    joints_.clear();
    parts(0, t);
    std::vector<std::vector<size_t>> next(graph_.vertices.size());
    std::map<std::pair<size_t, size_t>, size_t> turns;
    for (const Joint& joint : joints_) {
      next[joint.a].push_back(joint.b);
      next[joint.b].push_back(joint.a);
      turns[std::minmax(joint.a, joint.b)] = joint.node;
    }
    Tree tree;
    for (const auto& [child, parent] : from_centre(next)) {
      TreeEdge edge{child, parent, {}, {}};
      edge.up = route(child, parent, turns[std::minmax(child, parent)]);
      for (auto arc = edge.up.rbegin(); arc != edge.up.rend(); ++arc) edge.down.push_back(reverse_[*arc]);
      for (const size_t arc : edge.up) load_[arc] += 1 / static_cast<double>(graph_.arcs[arc].rate);
      for (const size_t arc : edge.down) load_[arc] += 1 / static_cast<double>(graph_.arcs[arc].rate);
      tree.edges.push_back(std::move(edge));
    }
    if (!tree.edges.empty()) tree.root = tree.edges.front().parent;
    tree.weight = 1;
    return tree;
  }

  std::vector<Part> parts(size_t i, size_t t) {
    const FoldNode& node = fold_.nodes[i];
    const int64_t balance = balance_[i][t];
    if (node.is_rank) {
      return {Part(static_cast<size_t>(std::max<int64_t>(1, 2 - balance)), node.members.front())};
    }
    std::vector<Part> all;
    for (const size_t child : node.children) {
      for (Part& part : parts(child, t)) all.push_back(std::move(part));
    }
    if (node.aggregator != kNone) return {sum(i, balance, std::move(all))};
    return join(i, std::move(all), balance > 1 && i != 0);
  }

  // The aggregator joins all parts, and gives the edges that leave the node.
  Part sum(size_t i, int64_t balance, std::vector<Part> all) {
    const size_t aggregator = fold_.nodes[i].aggregator;
    Part left;
    for (Part& part : all) {
      joints_.push_back({part.front(), aggregator, i});
      part.pop_front();
      left.insert(left.end(), part.begin(), part.end());
    }
    const auto edges = static_cast<size_t>(i == 0 ? 0 : std::max<int64_t>(1, 2 - balance));
    while (left.size() < edges) left.push_front(aggregator);
    return left;
  }

  // Joins parts, those with many edges first, to one or, if `open`, until each has one edge left.
  std::vector<Part> join(size_t i, std::vector<Part> all, bool open) {
    std::stable_sort(all.begin(), all.end(),
                     [](const Part& a, const Part& b) { return a.size() > b.size(); });
    std::vector<Part> joined;
    for (Part& part : all) {
      if (joined.empty() || (open && joined.back().size() == 1 && part.size() == 1)) {
        joined.push_back(std::move(part));
        continue;
      }
      Part& known = joined.back();
      if (known.empty()) known.push_back(part.front());  // cannot happen while balances add up
      joints_.push_back({known.front(), part.front(), i});
      known.pop_front();
      known.insert(known.end(), part.begin() + 1, part.end());
    }
    return joined;
  }

  // From `a` up to a switch of the node `turn` and down to `b`, by the arcs that are loaded least.
  std::vector<size_t> route(size_t a, size_t b, size_t turn) const {
    std::vector<size_t> arcs;
    const std::vector<size_t> up = nodes_to(a, turn), down = nodes_to(b, turn);
    std::vector<size_t> steps(up.begin() + 1, up.end());
    steps.insert(steps.end(), down.rbegin() + 1, down.rend());
    walk(a, b, steps, 0, &arcs);
    return arcs;
  }

  // The nodes from that of a vertex up to `turn`; an aggregator is below the node of its switch.
  std::vector<size_t> nodes_to(size_t vertex, size_t turn) const {
    std::vector<size_t> nodes;
    size_t node = node_of_[vertex];
    if (node == kNone) {
      nodes.push_back(kNone);
      node = node_of_[graph_.arcs[out_[vertex].front()].to];
    }
    for (; node != turn && node != kNone; node = fold_.nodes[node].parent) nodes.push_back(node);
    nodes.push_back(turn);
    return nodes;
  }

  bool walk(size_t at, size_t end, const std::vector<size_t>& steps, size_t step,
            std::vector<size_t>* arcs) const {
    if (step == steps.size()) return at == end;
    std::vector<size_t> choices;
    for (const size_t arc : out_[at]) {
      const size_t to = graph_.arcs[arc].to;
      const bool last = step + 1 == steps.size();
      if (last ? to == end : node_of_[to] == steps[step] && node_of_[to] != kNone) choices.push_back(arc);
    }
    std::stable_sort(choices.begin(), choices.end(), [&](size_t x, size_t y) { return load_[x] < load_[y]; });
    for (const size_t arc : choices) {
      arcs->push_back(arc);
      if (walk(graph_.arcs[arc].to, end, steps, step + 1, arcs)) return true;
      arcs->pop_back();
    }
    return false;
  }

  const Graph& graph_;
  const Fold& fold_;
  std::vector<double> load_;  // [arc]: time of what the trees so far send
  std::vector<size_t> node_of_;
  std::vector<std::vector<size_t>> out_;
  std::vector<size_t> reverse_;
  std::vector<std::vector<int64_t>> balance_;
  std::vector<Joint> joints_;
};

}  // namespace

std::vector<Tree> weave(const Graph& graph, const Fold& fold, double time, uint32_t most_trees) {
  const Balances balances(fold, time);
  uint32_t best = 1;
  double best_time = INFINITY;
  for (uint32_t trees = 1; trees <= most_trees; ++trees) {
    const double expected = balances.time_of(balances.totals(trees), trees);
    if (expected < best_time * (1 - kTolerance)) {
      best = trees;
      best_time = expected;
    }
    if (best_time <= time * kNearBound) break;
  }
  return Weaver(graph, fold).weave(balances.totals(best), best);
}

}  // namespace netsum::plan
