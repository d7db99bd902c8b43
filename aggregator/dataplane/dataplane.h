// What the control plane asks of a dataplane, whichever it is.
// Thread rule: any thread may call any method.
#ifndef NETSUM_AGGREGATOR_DATAPLANE_DATAPLANE_H_
#define NETSUM_AGGREGATOR_DATAPLANE_DATAPLANE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "netsum/aggregator.h"
#include "netsum/status.h"
#include "src/faults/last_contributions.h"
#include "src/faults/link_watch.h"
#include "src/job/capabilities.h"
#include "src/job/job_spec.h"
#include "src/net/address.h"
#include "src/net/multicast.h"
#include "src/net/packet_io.h"
#include "wire/packet.h"

namespace netsum {

// Where the sums of a job go that an aggregator cannot finish itself: it is one member of a parent's job.
struct DataplaneParent {
  // The parent's endpoints. Stripe i of the dataplane contributes to stripes[i], number i of the parent's
  // job.
  std::vector<Address> stripes;
  uint16_t job = 0;  // as the parent knows it, as are epoch and key
  uint16_t epoch = 0;
  netsum_key key{};
  uint16_t member = 0;  // ours in that job
};

// One job's share of one stripe (a core of an aggregator, or an embedded shard).
struct DataplaneJob {
  uint16_t job = 0;    // index below max_jobs
  uint16_t epoch = 0;  // incarnation of that index: packets of another one are refused
  netsum_key key{};    // random per job: the secret of which each stripe's key is made (wire::stripe_key)
  uint32_t tag =
      NETSUM_TAG_KEYED;  // NETSUM_TAG_*: what is in the check field of packets, also those of a parent's job
  // Number in the job of the dataplane's first stripe: not 0 where others bring the stripes before it.
  uint32_t first_stripe = 0;
  uint16_t members = 0;
  uint32_t data_slots = 0;     // slots [0, data_slots) carry gradients ...
  uint32_t scale_slots = 0;    // ... and the next `scale_slots` carry block scales
  uint32_t payload_bytes = 0;  // largest payload, a multiple of 32
  bool sums_values = false;    // the scale slots take values, too; in a hierarchy, SUM of float32 alone
  bool adds_floats = false;    // and all slots floats
  // Of all its slots, the first one on each stripe, as the control plane has reserved them. None: the dataplane
  // looks for room.
  std::optional<uint32_t> first_slot = std::nullopt;
  // Where packets to all members are sent; not valid: one copy to each member.
  Address multicast_group;
  // Hierarchy: slots and payload are then those of the parent's job.
  std::optional<DataplaneParent> parent;
  JobSpec spec;  // what its members have asked for, without their tokens
  // Counted by a dataplane in user space with one stripe; null: nobody asks.
  std::shared_ptr<faults::LastContributions> last;
};

inline constexpr int64_t kMaxJobPacketsPerS = 100'000'000;

// What one job may have of a dataplane, on each stripe. 0: all that there is.
struct JobQuota {
  uint32_t slots = 0;          // scale slots among them
  uint64_t memory_bytes = 0;   // of its slots
  uint64_t packets_per_s = 0;  // from all members together, after which packets are refused: over_rate
};

struct DataplaneLimits {
  int stripes = 1;
  int max_jobs = 0;
  uint32_t slots_per_stripe = 0;
  Capabilities capabilities;  // the largest payload among them
  // Present if results can be sent by multicast: one multicast group for each job index.
  std::optional<MulticastRange> multicast_groups = std::nullopt;
  JobQuota quota = {};
  uint64_t slot_bytes = 0;   // memory that a slot takes
  uint64_t place_bytes = 0;  // and, of a job whose floats are added, a place for each member and one more
  // Its stripes are shards that the members bring (MemberShards): they say where these are, and each shard has slots of
  // its own.
  bool members_bring_shards = false;

  // Memory of one slot of that job: a place for each rank, which may be a member, if its floats are added.
  uint64_t bytes_of_slot(const JobSpec& spec) const {
    if (!adds_floats(capabilities, spec)) return slot_bytes;
    return slot_bytes + place_bytes * (std::min<uint64_t>(spec.world_size(), NETSUM_MAX_MEMBERS) + 1);
  }
  // The most slots that a job gets on a stripe: any job, and that one.
  uint32_t job_slots() const { return job_slots(slot_bytes); }
  uint32_t job_slots(const JobSpec& spec) const { return job_slots(bytes_of_slot(spec)); }

 private:
  uint32_t job_slots(uint64_t bytes) const {
    uint64_t most = slots_per_stripe;
    if (quota.slots != 0) most = std::min<uint64_t>(most, quota.slots);
    if (quota.memory_bytes != 0) most = std::min(most, quota.memory_bytes / bytes);
    return static_cast<uint32_t>(most);
  }
};

// How far a job is: slot_progress() of each stripe, taken together.
struct JobProgress {
  uint64_t rounds = 0;      // completed
  uint32_t open_slots = 0;  // with a round under way
  uint64_t missing = 0;     // members that have not contributed to the oldest step of some stripe
  uint64_t oldest = 0;      // changes when one of these steps is done
  // What each member has lost and how late it was, since the job's begin. Empty: this dataplane does not count it.
  std::vector<faults::MemberTotals> members;
};

// An address of the host at which contributions arrive, and what has passed it since start (datagrams, without UDP, IP
// and Ethernet headers).
struct DataplanePort {
  Address address;      // without a port number
  double rate_bps = 0;  // of its link; 0: unknown
  uint64_t packets_received = 0, bytes_received = 0;
  uint64_t packets_sent = 0, bytes_sent = 0;
  Bursts received, sent;
};

class Dataplane {
 public:
  virtual ~Dataplane() = default;
  virtual std::string_view kind() const = 0;  // "user-space", "xdp", ...
  virtual DataplaneLimits limits() const = 0;
  // UDP endpoint of each stripe. The address may be a wildcard; control then answers with the address at
  // which the worker reached the control service.
  virtual std::vector<Address> endpoints() const = 0;
  // By port. Empty: the dataplane does not count by port.
  virtual std::vector<DataplanePort> ports() const { return {}; }
  virtual uint32_t free_slots() const = 0;  // per stripe
  // Gives the job its slots on every stripe. Errors: kResourceExhausted (names the limit).
  virtual Status install(const DataplaneJob& job) = 0;
  // Frees the slots. Packets of the job are refused from now on. Unknown jobs are ignored.
  virtual void remove(uint16_t job, uint16_t epoch) = 0;
  virtual std::vector<AggregatorCounter> counters() const = 0;
  // Of a job that is installed; nothing for others.
  virtual JobProgress progress(uint16_t job, uint16_t epoch) const = 0;
  // By member, the time of its last contribution that a slot accepted (monotonic_us(); 0: never). Empty: there is no such
  // job, or this dataplane does not record it.
  virtual std::vector<int64_t> heard(uint16_t /*job*/, uint16_t /*epoch*/) const { return {}; }
  // Of a member in this process, `io`, or one around it whose packets to and from this dataplane stay in memory. To be destroyed
  // before the dataplane.
  virtual std::unique_ptr<PacketIo> attach_member(std::unique_ptr<PacketIo> io) { return io; }
  // For dataplanes that are not part of this process: `on_lost` is called, by any thread, when the dataplane has lost all
  // installed jobs, with the reason. No call is under way any more when set_on_lost() returns.
  virtual void set_on_lost(std::function<void(const Status&)> /*on_lost*/) {}
};

// The multicast group of the job with this index, or an invalid address if the dataplane does not use multicast. All
// stripes send to one port, the data port of the first, so that a member needs a single socket.
Address multicast_group_of(const Dataplane& dataplane, uint16_t job);

// What programs on a processor can do, in the kernel and in user space: sums and words of lanes, packets without lanes.
Capabilities processor_capabilities(uint32_t payload_bytes, bool multicast);
// The same, and floats.
Capabilities user_space_capabilities(uint32_t payload_bytes, bool multicast);

// What install() refuses of any job, whatever the dataplane: kInvalidArgument, naming the limit. `stripes`: how many
// of a parent's are needed.
Status check_fits(const DataplaneJob& job, int max_jobs, uint32_t payload_bytes, size_t stripes);

// "drop_<reason>" for each NETSUM_DROP_* but NONE.
void append_drops(const std::function<uint64_t(int reason)>& count, std::vector<AggregatorCounter>* counters);

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_DATAPLANE_DATAPLANE_H_
