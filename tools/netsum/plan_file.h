// The topology file of netsum plan: YAML. docs/placement.md describes it.
#ifndef NETSUM_TOOLS_NETSUM_PLAN_FILE_H_
#define NETSUM_TOOLS_NETSUM_PLAN_FILE_H_

#include <optional>
#include <string>
#include <string_view>

#include "src/plan/graph.h"
#include "src/plan/topology.h"

namespace netsum::tool {

// "100Mbit/s", "25G", "2.5gbit": bits per second. Error: kInvalidArgument.
Result<double> parse_link_rate(std::string_view text);

// What a file describes: hosts behind a fast network, places and racks; or, if it has links or switches, a graph.
struct PlanInput {
  std::optional<plan::Topology> topology;
  std::optional<plan::Graph> graph;
};

// Throws UsageError (flags.h), whose message starts with "file:line: ".
PlanInput parse_plan_input(const std::string& text, const std::string& file);
// The same from a file.
PlanInput load_plan_input(const std::string& file);
// As a graph. Throws UsageError, too, for a file with places below others.
plan::Graph load_graph(const std::string& file);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_PLAN_FILE_H_
