// The ports of an aggregator, and how its cores are divided between them.
#ifndef NETSUM_API_AGGREGATOR_PORTS_H_
#define NETSUM_API_AGGREGATOR_PORTS_H_

#include <vector>

#include "aggregator/user/dataplane.h"
#include "netsum/options.h"
#include "netsum/status.h"
#include "src/net/address.h"

namespace netsum {

// Those of the options or, without any, `listen`. All have a rate, declared or reported by their interfaces, or none has.
// Errors: kInvalidArgument, kUnreachable, kUnsupported; the message names the port.
Result<std::vector<UdpPort>> ports_of(const AggregatorOptions& options, const Address& listen);

// By the rule that the share planner uses, too (src/plan/ports.h); ports without a rate count as equal.
std::vector<UdpStripe> stripes_of(const std::vector<UdpPort>& ports, int cores);

}  // namespace netsum

#endif  // NETSUM_API_AGGREGATOR_PORTS_H_
