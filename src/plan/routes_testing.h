// A naive model of a topology, for tests: routes every contribution and every result over every link between its rank and
// its place, and adds up the loads of each link.
#ifndef NETSUM_SRC_PLAN_ROUTES_TESTING_H_
#define NETSUM_SRC_PLAN_ROUTES_TESTING_H_

#include <vector>

#include "src/plan/topology.h"

namespace netsum::plan::testing {

// A link in one direction, or a limit: the load that each leaf's share puts on it.
struct RoutedLink {
  double rate_bps = 0;
  std::vector<double> load;  // [leaf]: in units of its share
};

// Leaves are the ports of places (a switch has one; a hierarchy, whose aggregators have one port each, too), then the embedded shards: the order of Plan::stripes, without cores.
struct Routes {
  size_t leaves = 0;
  std::vector<RoutedLink> links;
};

Routes route(const Topology& topology);

// Seconds per bit of gradient with these shares, which sum to 1.
double time_of(const Routes& routes, const std::vector<double>& shares);

}  // namespace netsum::plan::testing

#endif  // NETSUM_SRC_PLAN_ROUTES_TESTING_H_
