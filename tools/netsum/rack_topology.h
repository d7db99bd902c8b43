// A rack as the planner sees it.
#ifndef NETSUM_TOOLS_NETSUM_RACK_TOPOLOGY_H_
#define NETSUM_TOOLS_NETSUM_RACK_TOPOLOGY_H_

#include <string>

#include "src/plan/topology.h"
#include "tools/netsum/rack_note.h"

namespace netsum::tool {

// Its links at their present rates, and its aggregators. Error: kInvalidArgument if a link has no rate, or if the rack
// is a hierarchy.
Result<plan::Topology> rack_topology(const RackNote& note);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_RACK_TOPOLOGY_H_
