// A topology file that describes a graph: hosts, switches, places and the links between them. docs/placement.md.
#ifndef NETSUM_TOOLS_NETSUM_GRAPH_FILE_H_
#define NETSUM_TOOLS_NETSUM_GRAPH_FILE_H_

#include <yaml-cpp/yaml.h>

#include <string>

#include "netsum/status.h"
#include "src/plan/graph.h"

namespace netsum::tool {

// Follows the switch's name in that of an aggregator inside a switch. No name in the file has it.
inline constexpr const char* kInSwitch = " (sums)";

// Throws UsageError (flags.h), whose message starts with "file:line: ".
plan::Graph parse_graph(const YAML::Node& root, const std::string& file);

// "fat-tree:8", "tiers:10x10x10", "torus:4x4": links of 100 Gbit/s. kInvalidArgument.
Result<plan::Graph> example_graph(const std::string& text);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_GRAPH_FILE_H_
