// The dataplane of a P4 switch: jobs and members as table entries, by a SwitchDriver. For a worker it is an aggregator like any
// other. The switch multicasts results itself, as one unicast packet to each member.
#ifndef NETSUM_AGGREGATOR_P4_DRIVER_P4_DATAPLANE_H_
#define NETSUM_AGGREGATOR_P4_DRIVER_P4_DATAPLANE_H_

#include <memory>

#include "aggregator/dataplane/dataplane.h"
#include "aggregator/p4/driver/switch_driver.h"

namespace netsum::p4 {

struct P4DataplaneOptions {
  // The IPv4 address that the switch answers for. Its port is NETSUM_P4_DATA_PORT.
  Address address;
  uint64_t mac = 0;  // and its Ethernet address
  // Fewer than the switch has, for the limits that users set.
  int max_jobs = NETSUM_P4_JOBS;
  uint32_t slots = NETSUM_P4_SLOTS;
  uint32_t payload_bytes = NETSUM_P4_GROUPS * NETSUM_P4_PASS_BYTES;
  JobQuota quota = {};  // without a packet rate, which the program does not limit
};

std::unique_ptr<Dataplane> make_p4_dataplane(const P4DataplaneOptions& options,
                                             std::unique_ptr<SwitchDriver> driver);

}  // namespace netsum::p4

#endif  // NETSUM_AGGREGATOR_P4_DRIVER_P4_DATAPLANE_H_
