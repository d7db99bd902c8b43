#include "src/plan/fold.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace netsum::plan {
namespace {

class Folder {
 public:
  explicit Folder(const Graph& graph)
      : graph_(graph), next_(graph.vertices.size()), set_(graph.vertices.size()) {
    std::iota(set_.begin(), set_.end(), size_t{0});
  }

  std::optional<Fold> run() {
    for (size_t i = 0; i < graph_.arcs.size(); ++i) next_[graph_.arcs[i].from].push_back(i);
    if (!find_tiers()) return {};
    make_nodes();
    link_nodes();
    fold_.exact &= proportional();
    sort_by_depth();
    return std::move(fold_);
  }

 private:
  bool is(size_t vertex, VertexKind kind) const { return graph_.vertices[vertex].kind == kind; }

  // tier_: the distance to the nearest rank, through switches. Aggregators, and switches without ranks, have none.
  bool find_tiers() {
    tier_.assign(graph_.vertices.size(), kNone);
    std::vector<size_t> order = graph_.ranks();
    for (const size_t rank : order) tier_[rank] = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      for (const size_t arc : next_[order[i]]) {
        const size_t other = graph_.arcs[arc].to;
        if (is(other, VertexKind::kRank) && is(order[i], VertexKind::kRank)) return false;
        // A way over an aggregator with links of its own is left out; the one inside a switch has no other way.
        if (is(other, VertexKind::kAggregator) || tier_[other] != kNone) continue;
        tier_[other] = tier_[order[i]] + 1;
        order.push_back(other);
      }
      tiers_ = std::max(tiers_, tier_[order[i]]);
    }
    return true;
  }

  size_t find(size_t vertex) {
    while (set_[vertex] != vertex) vertex = set_[vertex] = set_[set_[vertex]];
    return vertex;
  }

  // The switches of one tier that are connected by it and the tiers below are one node.
  void make_nodes() {
    node_of_.assign(graph_.vertices.size(), kNone);
    std::vector<std::vector<size_t>> of_tier(tiers_ + 1);
    for (size_t i = 0; i < tier_.size(); ++i) {
      if (tier_[i] != kNone) of_tier[tier_[i]].push_back(i);
    }
    for (size_t tier = 0; tier <= tiers_; ++tier) {
      for (const size_t vertex : of_tier[tier]) {
        for (const size_t arc : next_[vertex]) {
          const size_t other = graph_.arcs[arc].to;
          if (tier_[other] != kNone && tier_[other] <= tier) set_[find(vertex)] = find(other);
        }
      }
      std::map<size_t, size_t> node_of_set;
      for (const size_t vertex : of_tier[tier]) {
        const auto [known, fresh] = node_of_set.emplace(find(vertex), fold_.nodes.size());
        if (fresh) fold_.nodes.emplace_back();
        FoldNode& node = fold_.nodes[known->second];
        node.members.push_back(vertex);
        node.is_rank = tier == 0;
        node.ranks = tier == 0 ? 1 : 0;
        node_of_[vertex] = known->second;
      }
    }
  }

  // Every node of a tier has one parent, because what it reaches above is connected by it.
  void link_nodes() {
    for (const Arc& arc : graph_.arcs) {
      const size_t from = node_of_[arc.from], to = node_of_[arc.to];
      if (is(arc.to, VertexKind::kAggregator) && from != kNone) {
        // What is limited is taken as unlimited: the tree is then only a bound.
        FoldNode& node = fold_.nodes[from];
        const bool limited = arc.rate != kUnlimited || graph_.vertices[arc.to].sum_rate != kUnlimited;
        node.sums = true;
        if (!limited && node.members.size() == 1) node.aggregator = arc.to;
        fold_.exact &= !limited;
        continue;
      }
      if (from == kNone || to == kNone || tier_[arc.to] != tier_[arc.from] + 1) continue;
      fold_.nodes[from].parent = to;
      fold_.nodes[from].up += arc.rate;
    }
    for (size_t i = 0; i < fold_.nodes.size(); ++i) {
      const size_t parent = fold_.nodes[i].parent;
      if (parent == kNone) continue;
      fold_.nodes[parent].children.push_back(i);
      fold_.nodes[parent].ranks += fold_.nodes[i].ranks;  // nodes are numbered by tier
    }
    for (const Vertex& vertex : graph_.vertices) {
      fold_.exact &= vertex.kind != VertexKind::kRank || vertex.relay;
    }
  }

  // Each member of a node has the same part of the links from every node below as of those to the node above. Traffic can
  // then be divided by these parts at every level, and no link carries more than its part of a link of the tree.
  bool proportional() const {
    std::vector<Integer> up(graph_.vertices.size());
    std::vector<std::map<size_t, Integer>> from_node(graph_.vertices.size());  // [vertex]: by lower node
    for (const Arc& arc : graph_.arcs) {
      const size_t from = node_of_[arc.from], to = node_of_[arc.to];
      if (from == kNone || to == kNone || tier_[arc.to] != tier_[arc.from] + 1) continue;
      up[arc.from] += arc.rate;
      from_node[arc.to][from] += arc.rate;
    }
    for (const FoldNode& node : fold_.nodes) {
      if (node.is_rank || node.members.size() == 1) continue;
      if (node.sums) return false;  // the aggregator of one of several switches
      for (const size_t member : node.members) {
        if (!same_parts(node, up[member], from_node[member])) return false;
      }
    }
    return true;
  }

  bool same_parts(const FoldNode& node, const Integer& up, const std::map<size_t, Integer>& from_node) const {
    const FoldNode& first = fold_.nodes[node.children.front()];
    const auto known = from_node.find(node.children.front());
    if (known == from_node.end() || from_node.size() != node.children.size()) return false;
    if (node.parent != kNone && up * first.up != known->second * node.up) return false;
    return std::all_of(from_node.begin(), from_node.end(), [&](const auto& each) {
      return each.second * first.up == known->second * fold_.nodes[each.first].up;
    });
  }

  // Nodes are numbered by tier, the root last.
  void sort_by_depth() {
    std::reverse(fold_.nodes.begin(), fold_.nodes.end());
    const size_t last = fold_.nodes.size() - 1;
    for (FoldNode& node : fold_.nodes) {
      if (node.parent != kNone) node.parent = last - node.parent;
      for (size_t& child : node.children) child = last - child;
      std::sort(node.children.begin(), node.children.end());
    }
  }

  const Graph& graph_;
  std::vector<std::vector<size_t>> next_;  // [vertex]: its arcs
  std::vector<size_t> set_;                // union-find over vertices
  std::vector<size_t> tier_;
  std::vector<size_t> node_of_;
  size_t tiers_ = 0;
  Fold fold_;
};

// A graph whose ranks are the ends of a tree of switches is that tree.
class TreeReader {
 public:
  explicit TreeReader(const Graph& graph) : graph_(graph), next_(graph.vertices.size()) {
    for (size_t i = 0; i < graph.arcs.size(); ++i) {
      const bool sums = is_aggregator(graph.arcs[i].from) || is_aggregator(graph.arcs[i].to);
      if (!sums) next_[graph.arcs[i].from].push_back(i);
    }
  }

  // None if there are circles, or a rank has several links. The rates of both directions must be alike.
  std::optional<Fold> read() {
    size_t root = kNone;
    for (size_t i = 0; i < next_.size(); ++i) {
      const VertexKind kind = graph_.vertices[i].kind;
      if (kind == VertexKind::kRank && next_[i].size() != 1) return {};
      if (kind == VertexKind::kSwitch && (root == kNone || next_[i].size() > next_[root].size())) root = i;
    }
    if (root == kNone || !add_all(root)) return {};
    count_ranks();
    for (const Arc& arc : graph_.arcs) note_aggregator(arc);
    return drop_empty();
  }

 private:
  bool is_aggregator(size_t vertex) const { return graph_.vertices[vertex].kind == VertexKind::kAggregator; }

  bool add_all(size_t root) {
    node_of_.assign(next_.size(), kNone);
    add(root, kNone, 0);
    for (size_t i = 0; i < fold_.nodes.size(); ++i) {
      const size_t vertex = fold_.nodes[i].members.front();
      for (const size_t arc : next_[vertex]) {
        const size_t other = graph_.arcs[arc].to;
        if (node_of_[other] != kNone) {
          if (node_of_[other] != fold_.nodes[i].parent) return false;
          continue;
        }
        if (fold_.nodes[i].is_rank) return false;
        add(other, i, graph_.arcs[arc].rate);
      }
    }
    return true;
  }

  void add(size_t vertex, size_t parent, int64_t rate) {
    node_of_[vertex] = fold_.nodes.size();
    FoldNode node{.members = {vertex}, .parent = parent, .up = rate};
    node.is_rank = graph_.vertices[vertex].kind == VertexKind::kRank;
    fold_.exact &= !node.is_rank || graph_.vertices[vertex].relay;
    fold_.nodes.push_back(std::move(node));
  }

  void count_ranks() {
    for (size_t i = fold_.nodes.size(); i-- > 0;) {
      fold_.nodes[i].ranks += fold_.nodes[i].is_rank ? 1 : 0;
      if (i > 0) fold_.nodes[fold_.nodes[i].parent].ranks += fold_.nodes[i].ranks;
    }
  }

  // One at a switch without ranks below it is taken as if it were at the next switch that has some.
  void note_aggregator(const Arc& arc) {
    if (!is_aggregator(arc.to) || is_aggregator(arc.from)) return;
    size_t at = node_of_[arc.from];
    if (at == kNone) return;
    bool limited = arc.rate != kUnlimited || graph_.vertices[arc.to].sum_rate != kUnlimited;
    for (; fold_.nodes[at].ranks == 0; at = fold_.nodes[at].parent) limited = true;
    fold_.nodes[at].sums = true;
    fold_.exact &= !limited;
    if (!limited) fold_.nodes[at].aggregator = arc.to;
  }

  Fold drop_empty() {
    std::vector<size_t> number(fold_.nodes.size(), kNone);
    Fold kept{{}, fold_.exact};
    for (size_t i = 0; i < fold_.nodes.size(); ++i) {
      FoldNode& node = fold_.nodes[i];
      if (node.ranks == 0) continue;
      number[i] = kept.nodes.size();
      if (node.parent != kNone) {
        node.parent = number[node.parent];
        kept.nodes[node.parent].children.push_back(number[i]);
      }
      kept.nodes.push_back(std::move(node));
    }
    return kept;
  }

  const Graph& graph_;
  std::vector<std::vector<size_t>> next_;  // [vertex]: its arcs, without those of aggregators
  std::vector<size_t> node_of_;
  Fold fold_;
};

}  // namespace

std::optional<Fold> fold(const Graph& graph) {
  if (!symmetric(graph)) return {};
  if (std::optional<Fold> tree = TreeReader(graph).read()) return tree;
  return Folder(graph).run();
}

}  // namespace netsum::plan
