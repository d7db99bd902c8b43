// Assigns the ports of a place to its cores.
#ifndef NETSUM_SRC_PLAN_PORTS_H_
#define NETSUM_SRC_PLAN_PORTS_H_

#include <cstddef>
#include <span>
#include <vector>

namespace netsum::plan {

struct PortCore {
  size_t port = 0;
  size_t core = 0;
  bool operator==(const PortCore&) const = default;
};

// Returns one stripe for each pair of a port and a core that serves it, ordered by port and core. With more ports than
// cores, ports are assigned to cores by longest processing time first: the fastest port first, each to the core with the
// least load. The largest load is then at most 4/3 of the optimum. Otherwise every port has a core of its own, and each
// further core is assigned to the port with the highest rate per core. Ties are resolved by the lower number.
// `port_rates` must not be empty, and `cores` must not be 0.
std::vector<PortCore> assign_cores(std::span<const double> port_rates, size_t cores);

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_PORTS_H_
