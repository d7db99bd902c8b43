// Topology files of racks, and the trees that their aggregators make.
#ifndef NETSUM_TOOLS_NETSUM_RACK_GRAPH_TREES_H_
#define NETSUM_TOOLS_NETSUM_RACK_GRAPH_TREES_H_

#include <functional>
#include <string>
#include <vector>

#include "src/plan/relay_plan.h"
#include "src/plan/tree_plan.h"
#include "tools/netsum/rack_graph.h"

namespace netsum::tool {

// The ways of the plan's edges, its loads and its time become those of the rack's routes.
Status use_routes(const GraphRoutes& routes, plan::TreePlan* plan);

// The trees of a plan, if aggregators can run them. kResourceExhausted, kInvalidArgument.
Result<std::vector<RackTree>> rack_trees(const plan::TreePlan& plan);

// For a person: which aggregators to start on which hosts, and the environment of each rank. The names of vertices are
// those of hosts.
std::string tree_commands(const plan::Graph& graph, const std::vector<RackTree>& trees);

// The same for ranks that sum themselves; other aggregators run as with the commands. `address_of`: of a tree and an inner
// vertex.
plan::RelayPlan relay_plan(const plan::Graph& graph, const std::vector<RackTree>& trees,
                           const std::string& network,
                           const std::function<std::string(size_t, size_t)>& address_of);
// Its text, for hosts with the names of vertices; comments have the commands for aggregators that are not inside ranks.
std::string relay_text(const plan::Graph& graph, const std::vector<RackTree>& trees,
                       const std::string& network);

// A topology file as a rack can be made of it; `trees`: with those that `netsum plan` computes. Throws UsageError
// (flags.h).
RackGraph load_rack_graph(const std::string& file, bool trees);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_RACK_GRAPH_TREES_H_
