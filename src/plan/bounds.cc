#include "src/plan/bounds.h"

#include <algorithm>

#include "src/plan/flow.h"

namespace netsum::plan {
namespace {

// Ranks times arcs, above which a graph that is no tree is not examined by flows.
constexpr size_t kMostFlowWork = 5'000'000;

Integer whole(size_t value) {
  return Integer(value);
}

// Vertices that sum or replicate without a gradient of their own may make a cut larger than what trees carry; so may
// switches with more capacity in one direction, and ranks that do not relay make it smaller.
bool cuts_are_exact(const Graph& graph) {
  std::vector<Integer> balance(graph.vertices.size());
  for (const Arc& arc : graph.arcs) {
    balance[arc.from] += arc.rate;
    balance[arc.to] -= arc.rate;
  }
  for (size_t i = 0; i < balance.size(); ++i) {
    const Vertex& vertex = graph.vertices[i];
    if (vertex.kind == VertexKind::kAggregator || (vertex.kind == VertexKind::kRank && !vertex.relay))
      return false;
    if (vertex.kind == VertexKind::kSwitch && balance[i] != 0) return false;
  }
  return true;
}

Status check_work(const Graph& graph, size_t flows) {
  if (graph.arcs.size() * flows <= kMostFlowWork) return {};
  return {ErrorCode::kResourceExhausted, "the graph has " + std::to_string(flows) + " ranks and " +
                                             std::to_string(graph.arcs.size()) +
                                             " arcs, and is no fabric of equal tiers; plan a part of it"};
}

// The largest ratio of the ranks in a set of vertices to the capacity that leaves it, over all sets that leave out a
// rank. Discrete Newton: a flow tells whether a larger ratio than the known one exists, and a minimum cut is one.
class RatioSearch {
 public:
  explicit RatioSearch(const Graph& graph)
      : graph_(graph), ranks_(graph.ranks()), net_(graph.vertices.size() + 1) {
    for (const Arc& arc : graph.arcs) net_.add(arc.from, arc.to, 0);
    for (const size_t rank : ranks_) net_.add(source(), rank, 0);
  }

  Fraction largest() {
    for (const size_t rank : ranks_) {
      std::vector<bool> others(graph_.vertices.size(), true);
      others[rank] = false;
      best_ = std::max(best_, ratio(others));
    }
    while (improve()) {
    }
    return best_;
  }

 private:
  size_t source() const { return graph_.vertices.size(); }

  Fraction ratio(const std::vector<bool>& set) const {
    Integer leaving = 0, ranks = 0;
    for (const Arc& arc : graph_.arcs) {
      if (!set[arc.from] || set[arc.to]) continue;
      if (arc.rate == kUnlimited) return 0;
      leaving += arc.rate;
    }
    for (const size_t rank : ranks_) ranks += set[rank] ? 1 : 0;
    return {ranks, leaving};
  }

  bool improve() {
    const Flow over(best_.over()), under(best_.under());
    const Flow needed = under * static_cast<int64_t>(ranks_.size());
    for (size_t i = 0; i < graph_.arcs.size(); ++i) {
      net_.set(i, graph_.arcs[i].rate == kUnlimited ? needed : Flow(graph_.arcs[i].rate * over));
    }
    for (size_t i = 0; i < ranks_.size(); ++i) net_.set(graph_.arcs.size() + i, under);
    const Fraction before = best_;
    for (const size_t rank : ranks_) {
      if (net_.max_flow(source(), rank) < needed) best_ = std::max(best_, ratio(net_.source_side(source())));
    }
    return before < best_;
  }

  const Graph& graph_;
  const std::vector<size_t> ranks_;
  FlowNetwork net_;
  Fraction best_;
};

// In a tree one link separates the largest such set: for several, the ratio is at most that of one of them.
Fraction largest_ratio(const Fold& fold) {
  Fraction best;
  const size_t all = fold.nodes.front().ranks;
  for (const FoldNode& node : fold.nodes) {
    if (node.parent == kNone || node.ranks == all) continue;
    best = std::max(best, Fraction(whole(std::max(node.ranks, all - node.ranks)), node.up));
  }
  return best;
}

// a - b T, as a function of the time T.
struct Line {
  Integer a;
  Integer b;

  Line operator+(const Line& other) const { return {a + other.a, b + other.b}; }
};

// For every node, the least value of f = 2 (its parts) - (trees' edges that leave it), averaged over the trees, and at
// every switch the condition that its parts can be joined. A condition that does not hold gives a larger time; the
// search from below ends at the least time for which all hold, because all are convex.
class RackTime {
 public:
  explicit RackTime(const Fold& fold) : fold_(fold), least_(fold.nodes.size()) {}

  Fraction least() {
    Fraction time;
    for (const FoldNode& node : fold_.nodes) {
      if (leads_out(node)) time = std::max(time, Fraction(1, node.up));
    }
    for (Fraction next = pass(time); time < next; next = pass(time)) time = next;
    return time;
  }

 private:
  bool leads_out(const FoldNode& node) const {
    return node.parent != kNone && node.ranks < fold_.nodes.front().ranks;
  }

  // The largest time that a condition demands, or `time`.
  Fraction pass(const Fraction& time) {
    Fraction demanded = time;
    const Integer &p = time.over(), &q = time.under();
    for (size_t i = fold_.nodes.size(); i-- > 0;) {
      const FoldNode& node = fold_.nodes[i];
      const bool out = leads_out(node);
      const Line closed = out ? Line{2, node.up} : Line{0, 0};
      least_[i] = closed;
      if (node.is_rank || node.sums) continue;
      Line below{0, 0};
      for (const size_t child : node.children) below = below + least_[child];
      const Line joined = below + closed;
      if (Integer(joined.a * q - joined.b * p) > 2 * q) {
        demanded = std::max(demanded, Fraction(joined.a - 2, joined.b));
      }
      if (!out || Integer(below.a * q - below.b * p) > Integer(closed.a * q - closed.b * p))
        least_[i] = below;
    }
    return demanded;
  }

  const Fold& fold_;
  std::vector<Line> least_;
};

}  // namespace

Fraction all_reduce_time(const Fold& fold) {
  return fold.nodes.front().ranks < 2 ? Fraction() : RackTime(fold).least();
}

Result<Bound> all_gather_bound(const Graph& graph) {
  if (Status s = check(graph); !s.ok()) return s;
  const size_t ranks = graph.ranks().size();
  if (ranks < 2) return Bound{0, "a single rank", true};
  const Fraction shard(1, whole(ranks));
  const std::optional<Fold> tree = fold(graph);
  const Status work = check_work(graph, ranks);
  if (tree && (tree->exact || !work.ok())) {
    return Bound{largest_ratio(*tree) * shard, "the narrowest link of the tree of switches", tree->exact};
  }
  if (!work.ok()) return work;
  return Bound{RatioSearch(graph).largest() * shard, "the narrowest cut, by maximum flows",
               cuts_are_exact(graph)};
}

Result<Bound> broadcast_bound(const Graph& graph, size_t root) {
  if (Status s = check(graph); !s.ok()) return s;
  if (root >= graph.vertices.size() || graph.vertices[root].kind != VertexKind::kRank) {
    return Status(ErrorCode::kInvalidArgument, "the root of a broadcast is a rank; give one of them");
  }
  const std::vector<size_t> ranks = graph.ranks();
  if (ranks.size() < 2) return Bound{0, "a single rank", true};
  if (Status s = check_work(graph, ranks.size()); !s.ok()) return s;
  FlowNetwork net(graph.vertices.size());
  Flow all = 1;
  for (const Arc& arc : graph.arcs) all += arc.rate == kUnlimited ? 0 : arc.rate;
  for (const Arc& arc : graph.arcs) net.add(arc.from, arc.to, arc.rate == kUnlimited ? all : Flow(arc.rate));
  Flow least = all;
  for (const size_t rank : ranks) {
    if (rank != root) least = std::min(least, net.max_flow(root, rank));
  }
  return Bound{Fraction(1, Integer(least)), "the narrowest cut, by maximum flows", cuts_are_exact(graph)};
}

std::optional<Bound> all_reduce_bound_of_racks(const Graph& graph) {
  const std::optional<Fold> tree = fold(graph);
  if (!tree) return {};
  return Bound{all_reduce_time(*tree), "the closed form for trees of switches", tree->exact};
}

}  // namespace netsum::plan
