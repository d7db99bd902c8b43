// A switch with a P4Runtime server, such as BMv2's simple_switch_grpc.
#ifndef NETSUM_AGGREGATOR_P4_DRIVER_P4RUNTIME_DRIVER_H_
#define NETSUM_AGGREGATOR_P4_DRIVER_P4RUNTIME_DRIVER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aggregator/p4/driver/switch_driver.h"

namespace netsum::p4 {

struct P4RuntimeOptions {
  std::string server;  // host:port, or unix:PATH of a socket. The connection is not encrypted
  uint64_t device_id = 0;
  // What p4c has written: the P4Info in binary form and the program in the form of the switch, to be loaded at start and after
  // a restart of the switch. Both empty: the switch has the program already.
  std::string p4info;
  std::string config;
  // The switch answers ARP for this address, and sums what comes to its port NETSUM_P4_DATA_PORT.
  uint32_t own_ip = 0;
  uint64_t own_mac = 0;
  std::vector<uint16_t> ports;  // of the switch: where frames to unknown addresses go
  // A call that takes longer is not answered: the connection is given up, and made anew. Ranks wait 3.75 s for the answer to a
  // heartbeat, and an aggregator may have to make two calls before it answers.
  std::chrono::milliseconds patience{1500};
  // After so long without an answer, running jobs are given up: that of the ranks' own liveness timeout.
  std::chrono::milliseconds silence{5000};
  // Counters are read this often. It also shows whether the switch still answers.
  std::chrono::milliseconds look_every{100};
};

// Connects, becomes the primary control plane of the switch, loads the program, and empties its tables. Errors: kUnreachable,
// kAddressInUse (the switch has a primary control plane), kInvalidArgument (no P4Info), kVersionMismatch (the program is
// another one), kAggregatorLost (the switch has refused a call, for the reason named), kResourceExhausted (no thread).
//
// If the connection breaks, or the switch does not answer, it continues to sum, and a thread connects again, at most two seconds
// after the switch is back. If the switch has lost its tables meanwhile, it is set up again: Events::on_restart.
Result<std::unique_ptr<SwitchDriver>> connect_p4runtime(const P4RuntimeOptions& options);

}  // namespace netsum::p4

#endif  // NETSUM_AGGREGATOR_P4_DRIVER_P4RUNTIME_DRIVER_H_
