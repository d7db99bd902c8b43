// A switch that runs the netsum program, as its control plane sees it: tables, multicast groups, counters and packets.
// Implementations: the pipeline's model (../model/model_driver.h), and a switch with P4Runtime (p4runtime_driver.h). Each
// passes tests/conformance/p4_switch_test.cc.
#ifndef NETSUM_AGGREGATOR_P4_DRIVER_SWITCH_DRIVER_H_
#define NETSUM_AGGREGATOR_P4_DRIVER_SWITCH_DRIVER_H_

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aggregator/p4/sizes.h"
#include "netsum/status.h"

namespace netsum::p4 {

// What the program's tables and registers hold, as the switch says.
struct SwitchLimits {
  int jobs = 0;
  uint32_t members = 0;  // of all jobs together
  uint32_t slots = 0;    // of all jobs together
  uint32_t payload_bytes = 0;
};

// Entry of the table `jobs`. Its slots are [first_slot, first_slot + slots) of the registers.
struct JobEntry {
  uint16_t epoch = 0;
  uint16_t members = 0;
  uint32_t slots = 0;
  uint32_t payload_bytes = 0;
  uint32_t first_slot = 0;
  uint64_t cookie = 0;  // what is in the check field, but that of HELLO; 0: nobody looks at it
  // An aggregator of whose job this one is a member: sums go up, and results come down. Until set_parent(), no member is
  // welcome, and HELLOs of members as well as WELCOMEs of the parent go to the control plane.
  struct Parent {
    uint32_t ip = 0;
    uint16_t udp_port = 0;
    uint16_t job = 0, epoch = 0, member = 0;  // as it knows them
    uint64_t cookie = 0;
  };
  std::optional<Parent> parent;
};

// Where a member is, from its first HELLO: the only place from which its packets are accepted.
struct MemberEntry {
  uint16_t port = 0;  // of the switch
  uint64_t mac = 0;
  uint32_t ip = 0;
  uint16_t udp_port = 0;
  bool operator==(const MemberEntry&) const = default;
};

// Where the parent of a job is: the only place from which its packets are accepted, once that is known.
struct ParentPlace {
  uint16_t port = 0;  // of the switch
  uint64_t mac = 0;
  bool operator==(const ParentPlace&) const = default;
};

struct SwitchCounters {
  std::array<uint64_t, NETSUM_P4_COUNTERS> events{};  // by NETSUM_DROP_* and NETSUM_P4_COUNT_*
  std::vector<uint64_t> rounds;                       // completed, by the jobs that have had this index
};

// Thread rule: any thread may call any method. Calls that return a Status wait for the switch, for two seconds at most; after
// one that it has not answered they fail at once, until it answers again. Their errors: kUnreachable (the connection to the
// switch is down; it is being established again), kResourceExhausted (a table is full), kAggregatorLost (the switch has refused
// the call, for the reason named). The others never wait.
class SwitchDriver {
 public:
  // Called by a thread of the driver.
  struct Events {
    // A frame that the program has sent to the control plane, and the port by which it came: a HELLO, an answer to an ARP
    // request that asks for the aggregator, or a WELCOME of a parent, with index, epoch and cookie of the own job.
    std::function<void(uint16_t port, std::span<const uint8_t> frame)> on_packet;
    // The switch has lost its tables and registers, and what has been set. It is ready to be used again.
    std::function<void(const Status& reason)> on_restart;
    // The switch has not answered for so long that its jobs are given up. It may have them still.
    std::function<void(const Status& reason)> on_silence;
  };

  virtual ~SwitchDriver() = default;
  // Once, before the other calls. No event comes after it has been called with {}.
  virtual void set_events(Events events) = 0;
  virtual SwitchLimits limits() const = 0;
  // Installs the job, or replaces it, without members. To a new epoch its slots are empty. After an error of this call or one
  // of the following, the switch may have what was to be entered: a later call for the same job replaces it.
  virtual Status set_job(uint16_t job, const JobEntry& entry) = 0;
  // Its packets are refused from now on. Jobs that there are not are ignored. After an error it may still be there.
  virtual Status remove_job(uint16_t job) = 0;
  // Of an installed job; once for each member, and again after an error.
  virtual Status set_member(uint16_t job, uint16_t member, const MemberEntry& entry) = 0;
  // Of an installed job with a parent that has answered: from now on the switch sends sums up, and welcomes members itself.
  virtual Status set_parent(uint16_t job, const ParentPlace& place) = 0;
  // All ports of the switch.
  virtual std::vector<uint16_t> ports() const = 0;
  // Passes on a frame that is to leave by a port of the switch, without waiting: it may be lost.
  virtual Status send(uint16_t port, std::span<const uint8_t> frame) = 0;
  virtual Result<SwitchCounters> counters() = 0;
  // As last read, a fraction of a second ago if the switch answers.
  virtual SwitchCounters last_counters() = 0;
};

}  // namespace netsum::p4

#endif  // NETSUM_AGGREGATOR_P4_DRIVER_SWITCH_DRIVER_H_
