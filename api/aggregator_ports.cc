#include "api/aggregator_ports.h"

#include <string>

#include "api/invalid.h"
#include "src/net/interface_rate.h"
#include "src/plan/job_plan.h"
#include "src/plan/ports.h"
#include "src/plan/topology.h"

namespace netsum {
namespace {

// 0: unknown.
double rate_of(const Address& address, double declared_bps) {
  if (declared_bps > 0) return declared_bps;
  const Result<double> reported = interface_rate_bps(address);
  return reported.ok() ? *reported : 0;
}

Result<UdpPort> port_of(const AggregatorPort& port) {
  const bool v6 = port.address.find(':') != std::string::npos;
  const Result<Address> address = Address::resolve((v6 ? "[" + port.address + "]" : port.address) + ":0");
  if (!address.ok()) return address.status();
  if (Status status =
          plan::check_declared_rate(port.link_rate_bps, ("the link rate of port " + port.address).c_str());
      !status.ok())
    return status;
  return UdpPort{*address, rate_of(*address, port.link_rate_bps)};
}

}  // namespace

Result<std::vector<UdpPort>> ports_of(const AggregatorOptions& options, const Address& listen) {
  if (options.ports.empty()) return std::vector<UdpPort>{{listen, rate_of(listen, options.link_rate_bps)}};
  if (options.dataplane != DataplaneKind::kUser) {
    return Status(ErrorCode::kUnsupported,
                  "several ports need the user-space dataplane; with XDP, name the interfaces");
  }
  if (options.ports.size() > plan::kMaxPorts) {
    return invalid("an aggregator has at most " + std::to_string(plan::kMaxPorts) + " ports, not " +
                   std::to_string(options.ports.size()));
  }
  std::vector<UdpPort> ports;
  size_t declared = 0, known = 0;
  for (const AggregatorPort& port : options.ports) {
    const Result<UdpPort> found = port_of(port);
    if (!found.ok()) return found.status();
    if (port.link_rate_bps > 0) ++declared;
    if (found->rate_bps > 0) ++known;
    ports.push_back(*found);
  }
  if (declared != 0 && declared != ports.size()) {
    return invalid("link rates are given for " + std::to_string(declared) + " of " +
                   std::to_string(ports.size()) + " ports: give all of them, or none");
  }
  if (known != ports.size()) {
    for (UdpPort& port : ports) port.rate_bps = 0;
  }
  return ports;
}

std::vector<UdpStripe> stripes_of(const std::vector<UdpPort>& ports, int cores) {
  std::vector<double> rates;
  for (const UdpPort& port : ports) rates.push_back(port.rate_bps > 0 ? port.rate_bps : 1);
  std::vector<UdpStripe> stripes;
  for (const auto& [port, core] : plan::assign_cores(rates, static_cast<size_t>(cores)))
    stripes.push_back({port, core});
  return stripes;
}

}  // namespace netsum
