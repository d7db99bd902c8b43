#include "tools/netsum/graph_report.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <numeric>

namespace netsum::tool {
namespace {

constexpr double kBitsPerGigabyte = 8e9;
constexpr size_t kMostPrintedTrees = 12;  // printed
constexpr size_t kMostLinks = 12;         // printed
constexpr size_t kMostEdges = 16;         // of a tree, printed

double s_per_gigabyte(const plan::Fraction& time) {
  return time.to_double() * kBitsPerGigabyte;
}

bool all_reduce(const GraphReport& report) {
  return report.plan.collective == plan::TreeCollective::kAllReduce;
}

std::string counts(const plan::Graph& graph) {
  size_t of_kind[3] = {};
  for (const plan::Vertex& vertex : graph.vertices) ++of_kind[static_cast<size_t>(vertex.kind)];
  return fmt::format("{} ranks, {} switches, {} aggregators, {} links in one direction", of_kind[0],
                     of_kind[1], of_kind[2], graph.arcs.size());
}

std::string schedule_row(const std::string& name, const plan::Fraction& time, const GraphReport& report,
                         const std::string& how) {
  const double ratio = time > 0 ? (time / report.plan.time).to_double() : 0;
  return fmt::format("{:<26}  {:>10.4g}  {:>6.2f}  {}\n", name, s_per_gigabyte(time), ratio, how);
}

std::string bound_text(const plan::Bound& bound) {
  return bound.how + (bound.exact ? "" : "; a bound only, the best schedule may take longer");
}

std::string tree_times(const GraphReport& report) {
  const plan::TreePlan& plan = report.plan;
  std::string text = fmt::format("{:<26}  {:>10}  {:>6}\n", "", "S PER GB", "RATIO");
  text += schedule_row(
      all_reduce(report) ? "all-reduce by these trees" : "broadcast by these trees", plan.time, report,
      fmt::format("{:.2g} % above the best fractional shares", 100 * std::max(0.0, plan.rounding_loss())));
  text += schedule_row("bound", plan.bound.time, report, bound_text(plan.bound));
  if (plan.ring > 0) text += schedule_row("one ring", plan.ring, report, "for comparison");
  if (report.all_gather) {
    text +=
        schedule_row("all-gather, bound", report.all_gather->time, report, bound_text(*report.all_gather));
  }
  return text;
}

std::string tree_text(const GraphReport& report, const plan::Tree& tree) {
  const auto& vertices = report.graph.vertices;
  std::string text =
      fmt::format("  {:>6.2f} %  root {}, height {}:", 100.0 * tree.weight / report.plan.period,
                  vertices[tree.root].name, height(tree));
  for (size_t i = 0; i < std::min(tree.edges.size(), kMostEdges); ++i) {
    text += fmt::format(" {}>{}", vertices[tree.edges[i].child].name, vertices[tree.edges[i].parent].name);
  }
  if (tree.edges.size() > kMostEdges) text += fmt::format(" and {} more", tree.edges.size() - kMostEdges);
  return text + "\n";
}

std::vector<size_t> busiest(const GraphReport& report) {
  std::vector<size_t> arcs(report.graph.arcs.size());
  std::iota(arcs.begin(), arcs.end(), size_t{0});
  std::vector<double> use;
  for (const size_t arc : arcs) use.push_back(link_use(report, arc));
  std::stable_sort(arcs.begin(), arcs.end(), [&](size_t a, size_t b) { return use[a] > use[b]; });
  return arcs;
}

nlohmann::json fraction(const plan::Fraction& time) {
  return {{"exact", time.text()}, {"s_per_gigabyte", s_per_gigabyte(time)}};
}

nlohmann::json names(const plan::Graph& graph, const std::vector<size_t>& arcs) {
  nlohmann::json list = nlohmann::json::array();
  if (!arcs.empty()) list.push_back(graph.vertices[graph.arcs[arcs.front()].from].name);
  for (const size_t arc : arcs) list.push_back(graph.vertices[graph.arcs[arc].to].name);
  return list;
}

nlohmann::json tree_json(const plan::Graph& graph, const plan::Tree& tree) {
  nlohmann::json edges = nlohmann::json::array();
  for (const plan::TreeEdge& edge : tree.edges) {
    edges.push_back({{"child", graph.vertices[edge.child].name},
                     {"parent", graph.vertices[edge.parent].name},
                     {"up", names(graph, edge.up)},
                     {"down", names(graph, edge.down)}});
  }
  return {{"root", graph.vertices[tree.root].name}, {"weight", tree.weight}, {"edges", edges}};
}

}  // namespace

nlohmann::json bound_json(const plan::Bound& bound) {
  nlohmann::json json = fraction(bound.time);
  json["how"] = bound.how;
  json["reached"] = bound.exact;
  return json;
}

double link_use(const GraphReport& report, size_t arc) {
  const int64_t rate = report.graph.arcs[arc].rate;
  if (rate == plan::kUnlimited || report.plan.time == plan::Fraction(0)) return 0;
  return (report.plan.load[arc] / (report.plan.time * plan::Fraction(rate))).to_double();
}

std::string way_text(const plan::Graph& graph, const std::vector<size_t>& arcs, const char* between) {
  std::string text = arcs.empty() ? "" : graph.vertices[graph.arcs[arcs.front()].from].name;
  for (const size_t arc : arcs) text += between + graph.vertices[graph.arcs[arc].to].name;
  return text;
}

std::string graph_text(const GraphReport& report) {
  const plan::TreePlan& plan = report.plan;
  std::string text = counts(report.graph) + "\n\n" + tree_times(report);
  if (plan.trees.empty()) return text;
  text += fmt::format("\n{} trees, shares of {} chunks\n", plan.trees.size(), plan.period);
  for (size_t i = 0; i < std::min(plan.trees.size(), kMostPrintedTrees); ++i)
    text += tree_text(report, plan.trees[i]);
  if (plan.trees.size() > kMostPrintedTrees)
    text += fmt::format("  and {} more (--json)\n", plan.trees.size() - kMostPrintedTrees);
  text += "\nBusiest links\n";
  const std::vector<size_t> arcs = busiest(report);
  for (size_t i = 0; i < std::min(arcs.size(), kMostLinks); ++i) {
    text += fmt::format("  {:<34}  {:>10.4g} gradients  {:>5.1f} % busy\n",
                        way_text(report.graph, {arcs[i]}, " > "), plan.load[arcs[i]].to_double(),
                        100 * link_use(report, arcs[i]));
  }
  if (arcs.size() > kMostLinks) text += fmt::format("  and {} more (--json)\n", arcs.size() - kMostLinks);
  if (plan.ring > 0 && plan.ring < plan.time) text += "\nwarning: a ring would be faster\n";
  return text;
}

nlohmann::json graph_json(const GraphReport& report) {
  const plan::TreePlan& plan = report.plan;
  nlohmann::json json = {{"collective", all_reduce(report) ? "all-reduce" : "broadcast"},
                         {"time", fraction(plan.time)},
                         {"optimum", fraction(plan.optimum)},
                         {"bound", bound_json(plan.bound)},
                         {"period", plan.period},
                         {"trees", nlohmann::json::array()},
                         {"links", nlohmann::json::array()}};
  if (all_reduce(report)) json["ring"] = fraction(plan.ring);
  for (const size_t rank : plan.ring_order) json["ring"]["order"].push_back(report.graph.vertices[rank].name);
  if (report.all_gather) json["all_gather_bound"] = bound_json(*report.all_gather);
  for (const plan::Tree& tree : plan.trees) json["trees"].push_back(tree_json(report.graph, tree));
  for (size_t i = 0; i < report.graph.arcs.size(); ++i) {
    const plan::Arc& arc = report.graph.arcs[i];
    nlohmann::json link = {{"from", report.graph.vertices[arc.from].name},
                           {"to", report.graph.vertices[arc.to].name},
                           {"load", plan.load[i].text()},
                           {"use", link_use(report, i)}};
    if (arc.rate != plan::kUnlimited) link["rate_bps"] = arc.rate;
    json["links"].push_back(link);
  }
  return json;
}

}  // namespace netsum::tool
