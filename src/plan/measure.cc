// The judge of plans: it shares no code with what makes them.
#include <algorithm>
#include <set>

#include "src/plan/tree_plan.h"

namespace netsum::plan {
namespace {

class Judge {
 public:
  Judge(const Graph& graph, TreeCollective collective) : graph_(graph), collective_(collective) {}

  Status judge(const Tree& tree, size_t number) {
    where_ = "tree " + std::to_string(number) + ": ";
    std::vector<bool> in(graph_.vertices.size());
    if (tree.root >= in.size() || forwards(tree.root)) return wrong("its root neither is a rank nor sums");
    in[tree.root] = true;
    for (const TreeEdge& edge : tree.edges) {
      if (edge.child >= in.size() || edge.parent >= in.size()) return wrong("an edge ends nowhere");
      const std::string name =
          "the edge from " + graph_.vertices[edge.child].name + " to " + graph_.vertices[edge.parent].name;
      if (!in[edge.parent]) return wrong(name + " is not below the root, or comes before its parent's");
      if (in[edge.child]) return wrong(name + " closes a circle");
      if (forwards(edge.child)) return wrong(name + " begins at a switch that does not sum");
      in[edge.child] = true;
      const bool reduces = collective_ == TreeCollective::kAllReduce;
      if (reduces ? !is_way(edge.up, edge.child, edge.parent) : !edge.up.empty()) {
        return wrong(name + " has no way up through switches");
      }
      if (!is_way(edge.down, edge.parent, edge.child))
        return wrong(name + " has no way down through switches");
    }
    for (const size_t rank : graph_.ranks()) {
      if (!in[rank]) return wrong("it does not reach " + graph_.vertices[rank].name);
    }
    return check_relays(tree);
  }

 private:
  Status wrong(const std::string& what) const { return {ErrorCode::kInvalidArgument, where_ + what}; }
  bool forwards(size_t vertex) const { return graph_.vertices[vertex].kind == VertexKind::kSwitch; }

  bool is_way(const std::vector<size_t>& arcs, size_t from, size_t to) const {
    size_t at = from;
    for (size_t i = 0; i < arcs.size(); ++i) {
      if (arcs[i] >= graph_.arcs.size() || graph_.arcs[arcs[i]].from != at) return false;
      at = graph_.arcs[arcs[i]].to;
      if (i + 1 < arcs.size() && !forwards(at)) return false;
    }
    return at == to && !arcs.empty();
  }

  Status check_relays(const Tree& tree) const {
    std::vector<size_t> edges(graph_.vertices.size());
    for (const TreeEdge& edge : tree.edges) {
      ++edges[edge.child];
      ++edges[edge.parent];
    }
    for (size_t i = 0; i < edges.size(); ++i) {
      const bool root = collective_ == TreeCollective::kBroadcast && i == tree.root;
      if (graph_.vertices[i].kind == VertexKind::kRank && !graph_.vertices[i].relay && edges[i] > 1 &&
          !root) {
        return wrong(graph_.vertices[i].name + " must not relay");
      }
    }
    return {};
  }

  const Graph& graph_;
  const TreeCollective collective_;
  std::string where_;
};

}  // namespace

Status measure(const Graph& graph, TreePlan* plan) {
  Judge judge(graph, plan->collective);
  std::vector<uint64_t> load(graph.arcs.size()), sums(graph.vertices.size());
  uint64_t period = 0;
  for (size_t i = 0; i < plan->trees.size(); ++i) {
    const Tree& tree = plan->trees[i];
    if (Status s = judge.judge(tree, i); !s.ok()) return s;
    period += tree.weight;
    std::set<size_t> summing;
    for (const TreeEdge& edge : tree.edges) {
      for (const size_t arc : edge.up) load[arc] += tree.weight;
      for (const size_t arc : edge.down) load[arc] += tree.weight;
      if (!edge.up.empty()) summing.insert(edge.parent);
    }
    for (const size_t vertex : summing) sums[vertex] += tree.weight;
  }
  if (period == 0 || period > UINT32_MAX)
    return {ErrorCode::kInvalidArgument, "the weights of the trees add up to 0 or to 2^32"};
  plan->period = static_cast<uint32_t>(period);
  plan->time = 0;
  plan->load.clear();
  plan->sums.clear();
  for (size_t i = 0; i < load.size(); ++i) {
    plan->load.emplace_back(Integer(load[i]), Integer(period));
    if (graph.arcs[i].rate == kUnlimited) continue;
    plan->time = std::max(plan->time, plan->load[i] / Fraction(graph.arcs[i].rate));
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    plan->sums.emplace_back(Integer(sums[i]), Integer(period));
    const Vertex& vertex = graph.vertices[i];
    if (vertex.kind != VertexKind::kAggregator || vertex.sum_rate == kUnlimited) continue;
    plan->time = std::max(plan->time, plan->sums[i] / Fraction(vertex.sum_rate));
  }
  return {};
}

}  // namespace netsum::plan
