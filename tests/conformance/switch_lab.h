// Switches with the netsum program, for the tests that all drivers and the dataplane on top of them pass: the model, and BMv2 in
// a network of veth links.
#ifndef NETSUM_TESTS_CONFORMANCE_SWITCH_LAB_H_
#define NETSUM_TESTS_CONFORMANCE_SWITCH_LAB_H_

#include <memory>
#include <string>
#include <vector>

#include "aggregator/dataplane/dataplane.h"
#include "aggregator/p4/driver/switch_driver.h"
#include "netsum/status.h"
#include "tests/conformance/dataplane_vectors.h"

namespace netsum::conformance {

class SwitchLab {
 public:
  virtual ~SwitchLab() = default;
  virtual Address own_address() const = 0;  // of the aggregator
  // A control plane of the switch, the only one at a time.
  virtual Result<std::unique_ptr<p4::SwitchDriver>> connect() = 0;
  virtual void send(Peer from, const Bytes& datagram) = 0;
  // What has arrived at peers since the last call, once that many datagrams have, or after some seconds.
  virtual std::vector<Reply> take_replies(size_t expected) = 0;
  virtual p4::MemberEntry place_of(Peer peer) = 0;
  // The switch loses all that it has, and comes back.
  virtual void restart() = 0;
  // A dataplane over the driver that connect() has made, under the tests of all dataplanes.
  virtual std::unique_ptr<DataplaneUnderTest> run(Dataplane* dataplane) = 0;
};

std::unique_ptr<SwitchLab> make_model_lab();

// Errors: kUnsupported (a program that it needs is not on the PATH, or namespaces cannot be made: names it).
Result<std::unique_ptr<SwitchLab>> make_bmv2_lab();

}  // namespace netsum::conformance

#endif  // NETSUM_TESTS_CONFORMANCE_SWITCH_LAB_H_
