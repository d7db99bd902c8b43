// What netsum plan reports of a graph: text, JSON, Graphviz, a page with a drawing.
#ifndef NETSUM_TOOLS_NETSUM_GRAPH_REPORT_H_
#define NETSUM_TOOLS_NETSUM_GRAPH_REPORT_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "src/plan/tree_plan.h"

namespace netsum::tool {

struct GraphReport {
  plan::Graph graph;  // rates in bit/s
  plan::TreePlan plan;
  std::optional<plan::Bound> all_gather;
};

std::string graph_text(const GraphReport& report);
nlohmann::json graph_json(const GraphReport& report);
nlohmann::json bound_json(const plan::Bound& bound);
// For Graphviz: links with their use, the trees in colours.
std::string graph_dot(const GraphReport& report);
std::string graph_html(const GraphReport& report);

// The part of the plan's time for which an arc is busy.
double link_use(const GraphReport& report, size_t arc);
// "leaf0 > leaf1", and the vertices of a way.
std::string way_text(const plan::Graph& graph, const std::vector<size_t>& arcs, const char* between);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_GRAPH_REPORT_H_
