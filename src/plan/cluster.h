// A cluster as placement sees it: hosts below a tree of switches. docs/placement.md describes the model.
#ifndef NETSUM_SRC_PLAN_CLUSTER_H_
#define NETSUM_SRC_PLAN_CLUSTER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "netsum/status.h"
#include "src/plan/graph.h"

namespace netsum::plan {

inline constexpr size_t kMostHosts = 200'000;

struct ClusterSwitch {
  static constexpr size_t kNone = plan::kNone;

  std::string name;
  size_t parent = kNone;  // none: the root
  int64_t up = 0;         // the rate to the parent, in both directions
  bool sums = false;      // an aggregator may run in it, which keeps up with its links
  int line = 0;           // in the file; 0: none
};

struct ClusterHost {
  std::string name;
  size_t at = 0;     // the switch
  int64_t rate = 0;  // what is left for the job, in both directions
  bool free = true;  // may get a rank
  int line = 0;
};

// Rates are in bit/s.
struct Cluster {
  std::vector<ClusterSwitch> switches;  // parents before children; the first one is the root
  std::vector<ClusterHost> hosts;

  std::vector<std::vector<size_t>> children() const;  // [switch]
  // [switch]: levels down to the hosts; 1 if it has only hosts below it.
  std::vector<size_t> tiers() const;
};

// Errors: kInvalidArgument with the part and, if there is one, its line ("line 7: "); kResourceExhausted beyond limits.
Status check(const Cluster& cluster);

// The tree of a graph. Parallel switches of one tier become one, named after the first. Hosts are the ranks.
// Errors: those of check(Graph); kUnsupported if the graph is no tree after that, or if the rates of both directions differ.
Result<Cluster> cluster_of(const Graph& graph);

// The chosen hosts as ranks, their switches, and aggregators in some of them.
Graph graph_of(const Cluster& cluster, const std::vector<size_t>& hosts,
               const std::vector<size_t>& aggregators);

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_CLUSTER_H_
