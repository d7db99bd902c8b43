// Topology files of racks, and the trees that their aggregators make.
#ifndef NETSUM_TOOLS_NETSUM_RACK_GRAPH_TREES_H_
#define NETSUM_TOOLS_NETSUM_RACK_GRAPH_TREES_H_

#include <string>

#include "src/plan/tree_plan.h"
#include "tools/netsum/rack_graph.h"

namespace netsum::tool {

// The trees of a plan, if aggregators can run them. The ways of its edges, its loads and its time become those of the
// rack's routes. kResourceExhausted, kInvalidArgument.
Result<std::vector<RackTree>> rack_trees(const GraphRoutes& routes, plan::TreePlan* plan);

// A topology file as a rack can be made of it; `trees`: with those that `netsum plan` computes. Throws UsageError
// (flags.h).
RackGraph load_rack_graph(const std::string& file, bool trees);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_RACK_GRAPH_TREES_H_
