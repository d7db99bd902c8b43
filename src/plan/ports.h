// Which core of a place sums what comes in by which port.
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

// One stripe for each pair of a port and a core that serves it, by port and core. With more ports than cores, the ports
// go to the cores by longest processing time first: the fastest port first, each to the core with the least load, at
// most 4/3 of the best maximum. Otherwise every port has a core of its own, and each further core goes to the port with
// the highest rate per core. Of equals, the lower number is first. `port_rates` and `cores` are not empty or 0.
std::vector<PortCore> assign_cores(std::span<const double> port_rates, size_t cores);

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_PORTS_H_
