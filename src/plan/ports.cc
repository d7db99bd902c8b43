#include "src/plan/ports.h"

#include <algorithm>
#include <numeric>

#include "src/base/assert.h"

namespace netsum::plan {
namespace {

std::vector<PortCore> share_cores(std::span<const double> port_rates, size_t cores) {
  std::vector<size_t> order(port_rates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return port_rates[a] > port_rates[b]; });
  std::vector<double> load(cores);
  std::vector<PortCore> stripes(port_rates.size());
  for (const size_t port : order) {
    const auto core = static_cast<size_t>(std::min_element(load.begin(), load.end()) - load.begin());
    load[core] += port_rates[port];
    stripes[port] = {port, core};
  }
  return stripes;
}

}  // namespace

std::vector<PortCore> assign_cores(std::span<const double> port_rates, size_t cores) {
  const size_t ports = port_rates.size();
  NETSUM_ASSERT(ports > 0 && cores > 0);
  if (ports > cores) return share_cores(port_rates, cores);
  std::vector<size_t> count(ports, 1);
  for (size_t given = ports; given < cores; ++given) {
    size_t next = 0;
    for (size_t port = 1; port < ports; ++port) {
      if (port_rates[port] * static_cast<double>(count[next]) >
          port_rates[next] * static_cast<double>(count[port])) {
        next = port;
      }
    }
    ++count[next];
  }
  std::vector<PortCore> stripes;
  for (size_t port = 0; port < ports; ++port) {
    for (size_t i = 0; i < count[port]; ++i) stripes.push_back({port, stripes.size()});
  }
  return stripes;
}

}  // namespace netsum::plan
