// What the counts of a job's paths say about the links of its network: netsum doctor --faults --topology.
#ifndef NETSUM_TOOLS_NETSUM_DOCTOR_PATHS_H_
#define NETSUM_TOOLS_NETSUM_DOCTOR_PATHS_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "src/plan/graph.h"
#include "tools/netsum/doctor_checks.h"
#include "tools/netsum/log.h"

namespace netsum::tool {

// The shortest ways through switches.
class Routes {
 public:
  explicit Routes(const plan::Graph& graph);

  // Of all shortest ways, where each switch on them divides the packets equally: arcs with the part of the packets that takes
  // them. Empty: there is no way, or it is no longer than the vertex itself.
  std::vector<std::pair<size_t, double>> between(size_t from, size_t to);

 private:
  void measure(size_t to);

  const plan::Graph& graph_;
  std::vector<std::vector<size_t>> out_, in_;  // arcs, by vertex
  std::vector<size_t> hops_;                   // from each vertex to to_
  size_t to_;
};

// `reports`: of one job, by address of the aggregator, as in status_report(). Hosts of the graph are ranks' hosts, and places the
// aggregators, if they have their names or addresses; if none has, in the same order. A job with aggregators below these is
// refused.
std::vector<Finding> blame_links(const std::vector<std::pair<std::string, Json>>& reports,
                                 const plan::Graph& graph);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_DOCTOR_PATHS_H_
