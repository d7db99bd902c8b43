// Trees in the XML of ForestColl (github.com/liangyuRain/ForestColl): written for others, read to be judged.
#ifndef NETSUM_TOOLS_NETSUM_FOREST_XML_H_
#define NETSUM_TOOLS_NETSUM_FOREST_XML_H_

#include <string>

#include "src/plan/tree_plan.h"

namespace netsum::tool {

std::string forest_xml(const plan::Graph& graph, const plan::TreePlan& plan);

// The trees of a file, which name vertices of the graph; "(0, 'GPU', 1)" names the vertex 0-GPU-1. For an all-reduce,
// contributions take the ways backwards. The plan has loads and a time, but no bound.
// Throws UsageError (flags.h), whose message starts with "file:line: ", also for trees that do not reach every rank.
plan::TreePlan load_forest(const std::string& file, const plan::Graph& graph,
                           plan::TreeCollective collective);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_FOREST_XML_H_
