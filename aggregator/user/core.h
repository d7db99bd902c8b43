// One core of the user-space dataplane, without I/O: packets in, packets out. The server drives it with sockets, the
// simulator with a virtual network.
//
// Thread rule: one thread, except counters() and injected_flips(), which any thread may read.
#ifndef NETSUM_AGGREGATOR_USER_CORE_H_
#define NETSUM_AGGREGATOR_USER_CORE_H_

#include <array>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aggregator/dataplane/counters.h"
#include "aggregator/dataplane/dataplane.h"
#include "aggregator/dataplane/slot_ranges.h"
#include "aggregator/slot/progress.h"
#include "aggregator/slot/rate.h"
#include "aggregator/slot/slot.h"
#include "netsum/status.h"
#include "src/base/counter.h"
#include "src/base/rng.h"
#include "src/faults/link_watch.h"
#include "src/net/packet_io.h"
#include "wire/codec.h"

namespace netsum {

struct AggregatorCoreCounters {
#define NETSUM_FIELD(NAME, name) Counter name;
  NETSUM_DATAPLANE_COUNTERS(NETSUM_FIELD)
#undef NETSUM_FIELD
  std::array<Counter, NETSUM_DROP_COUNT> drops;  // by reason
};

class AggregatorCore {
 public:
  struct Limits {
    int max_jobs = 64;
    uint32_t slots = 4096;
    uint32_t payload_bytes = 1440;
    uint64_t job_packets_per_s = 0;  // JobQuota::packets_per_s
    double flipped_bits = 0;         // as InjectedFaults
    uint64_t seed = 1;               // of these
  };
  // Allocates everything: slots x 2 x (payload + header), jobs x 2 x payload for their keys, plus tables.
  explicit AggregatorCore(const Limits& limits);

  // Reserves consecutive slots for the job. `stripe` is this core's index in the dataplane; its sums are sent to the
  // parent's stripe of the same index. Errors: kResourceExhausted, kInvalidArgument.
  Status install(const DataplaneJob& job, size_t stripe = 0);
  void remove(uint16_t job, uint16_t epoch);
  uint32_t free_slots() const { return ranges_.free(); }
  // Of a job that is installed; nothing for others.
  SlotProgress progress(uint16_t job, uint16_t epoch) const;
  // As Dataplane::heard().
  std::vector<int64_t> heard(uint16_t job, uint16_t epoch) const;
  // As JobProgress::members.
  std::vector<faults::MemberTotals> members(uint16_t job, uint16_t epoch) const;

  // Handles one datagram and adds replies to the outbox. Call at most kMaxBurst times before send().
  // A multiple of 44, the full packets of MTU 1500 that one segmented message holds (65507 bytes), as are the results of a burst
  // where a job has 2 or 4 members: bursts and results then leave in full messages.
  static constexpr int kMaxBurst = 176;
  void on_packet(int64_t now_us, const InPacket& packet);

  // Memory that a slot takes where the largest payload is `payload_bytes`.
  static uint32_t slot_bytes(uint32_t payload_bytes);

  // The replies since the last clear(), runs to the same member side by side. They point into this object
  // and stay valid until clear().
  std::span<const OutPacket> outbox();
  void clear();

  const AggregatorCoreCounters& counters() const { return counters_; }
  uint64_t injected_flips() const { return injected_flips_.get(); }  // bits, by Limits::flipped_bits

 private:
  // A job that has sent nothing for so long has no turn, and one that has not asked for so long waits for none.
  static constexpr int64_t kTurnUs = 4'000, kWaitsUs = 10'000;

  // A member's address, and the local address that it sends to (InPacket::local).
  struct Peer {
    Address address;
    uint16_t local = 0;
    int64_t heard_us = 0;         // the last contribution that a slot accepted; others may be replayed
    uint32_t hello = 0;           // the number of the last HELLO that asked for the job's turn
    faults::MemberTotals totals;  // what is kept on the way down is not in them: all rounds
  };
  struct Job {
    netsum_job_rules rules{};
    wire::PacketKey key;
    uint32_t first_slot = 0;
    uint32_t data_slots = 0;
    uint32_t frame_bytes = 0;  // of the largest payload
    netsum_job_rate spent{};
    // Of each slot that takes values: members + 1 places of a payload each. Member m's waits at place m + 1. The first two hold
    // a sum in float32 of elements of 16 bits. Pages that no packet waits in cost nothing.
    std::unique_ptr<uint8_t, decltype(&std::free)> places{nullptr, &std::free};
    std::vector<uint16_t> turns;     // of each of these slots: the members below have been added
    std::vector<int64_t> opened_us;  // of each data slot: the first contribution to its round
    // Of the last two rounds of each slot: its number, and the members that have lost something in it.
    std::vector<std::pair<uint32_t, uint64_t>> lost_in;
    std::shared_ptr<faults::LastContributions> last;  // as in DataplaneJob
    Address multicast_group;                          // valid: one packet there instead of one to each member
    // Whether its steps wait for their turn (JobSpec::phase_period_us). If so, when it sent last or got its turn, when it asked for
    // that last, and since when it has been asking.
    bool takes_turns = false;
    std::string turns_of;  // the job of all ranks: jobs of the owners of portions have their turns together
    int64_t sent_us = 0, asked_us = 0, asks_since_us = 0;
    int64_t period_us = 0, step_began_us = 0;
    // In this step, and in one on average. 0: not known.
    uint64_t step_packets = 0, usual_packets = 0;
    double work_us = 0;  // of all ranks, in a period
    std::array<Peer, NETSUM_MAX_MEMBERS> peers{};
    netsum_parent_job parent{};  // if rules.has_parent, as is the rest
    wire::PacketKey parent_key;
    Address parent_address;
    bool parent_welcomed = false;  // it has answered a packet of full size
  };
  struct Broadcast {
    const uint8_t* frame;
    uint32_t size;
    uint16_t job;
    // What the members of a bitmap get instead.
    uint64_t no_result = 0;
    const uint8_t* no_result_frame = nullptr;
    uint32_t no_result_size = 0;
  };

  bool is_from_member(const InPacket& packet, const netsum_fields& fields, const Job& job) const;
  // Source, rate and tag of a packet that has passed the job's rules: NETSUM_DROP_*.
  int admit(const InPacket& packet, const netsum_fields& fields, Job& job, int64_t now_us);
  void drop(int reason) { counters_.drops[static_cast<size_t>(reason)].add(); }
  uint8_t* frame_of(const Job& job, uint32_t slot, uint32_t bank) {
    const size_t number = size_t{bank} * job.rules.slots + slot - job.first_slot;
    return frames_.get() + size_t{job.first_slot} * 2 * frame_stride_ + number * job.frame_bytes;
  }
  // Among the slots with places, which are the last ones or all.
  static size_t place_of(const Job& job, uint32_t slot) { return slot + job.turns.size() - job.rules.slots; }
  uint8_t* places_of(const Job& job, uint32_t slot) {
    return job.places.get() + place_of(job, slot) * (job.rules.members + 1u) * job.rules.payload_bytes;
  }
  void welcome_multicast_group(const netsum_fields& hello, const Job& job);
  // Whether the job has the turn, or gets it: no other job has sent for a while, and none that asks has a higher priority or, with
  // the same one, has asked for longer.
  bool has_turn(int64_t now_us, Job& job);
  // The power of two of its work per packet, in the order of by_intensity() of src/plan; high until that is known.
  static int priority_of(const Job& job);
  void on_hello(int64_t now_us, const InPacket& packet, const netsum_fields& fields, Job& job);
  void on_contribution(int64_t now_us, const InPacket& packet, const netsum_fields& fields, Job& job);
  // Puts a contribution into its round. Returns true if it makes the round's sum overflow.
  bool add(const netsum_fields& fields, const netsum_verdict& verdict, const uint8_t* payload, Job& job);
  bool add_integers(const netsum_fields& fields, uint32_t bank, const uint8_t* payload, Job& job);
  void add_floats(const netsum_fields& fields, const netsum_verdict& verdict, const uint8_t* payload,
                  Job& job);
  static void note_loss(const netsum_verdict& verdict, const netsum_fields& fields, Job& job);
  void note_lateness(int64_t now_us, const netsum_verdict& verdict, const netsum_fields& fields, Job& job);
  void act(const netsum_verdict& verdict, const netsum_fields& fields, const Job& job, const Peer& to);
  void on_parent(const InPacket& packet, const netsum_fields& fields);
  // Sends a complete round to all members.
  void flip_a_bit(const Job& job, uint32_t slot, uint32_t bank);
  void broadcast_result(const Job& job, uint16_t job_index, uint32_t slot, uint32_t bank);
  struct Frame {
    const uint8_t* data;
    uint32_t size;
  };
  Frame result_of(const Job& job, uint16_t job_index, uint32_t slot, uint32_t round, bool without_lanes);
  uint8_t* frame_for(bool without_lanes, const Job& job, uint32_t slot, uint32_t bank, netsum_fields* fields);
  void send_sum_up(const Job& job, uint32_t slot, uint32_t bank, bool without_lanes);
  void send_up(const Job& job, const uint8_t* frame, uint32_t size);
  netsum_fields fields_of_round(const Job& job, uint32_t slot, uint32_t bank) const;
  // The same packet, as a member of the parent's job.
  static netsum_fields fields_for_parent(const netsum_fields& fields, const Job& job);
  netsum_fields reply_fields(const netsum_fields& request, uint8_t type) const;
  uint8_t* scratch_frame();
  void reply(const uint8_t* frame, uint32_t size, const Peer& to);

  const Limits limits_;
  Rng faults_;
  Counter injected_flips_;
  const uint32_t frame_stride_;
  const netsum_rate rate_;  // of each job
  std::vector<Job> jobs_;
  std::map<std::pair<Address, uint16_t>, uint16_t> parent_jobs_;  // parent's address and job index: our index
  SlotRanges ranges_;
  std::vector<netsum_slot> slots_;
  // Header and payload of both rounds of every slot: results are sent from here. Of each job, all slots' frames of even rounds
  // side by side, then those of odd ones: results of consecutive slots are one piece of memory, which costs the kernel less.
  // Zeros that take no memory until a slot is used: writing them would cost each rank with a shard a third of its start.
  std::unique_ptr<uint8_t, decltype(&std::free)> frames_;

  // Frames of replies that are not results. A HELLO can have two.
  static constexpr int kScratchFrames = 2 * kMaxBurst;
  std::vector<uint8_t> scratch_;
  int scratch_used_ = 0;
  std::vector<OutPacket> unicasts_;
  std::vector<Broadcast> broadcasts_;
  std::vector<OutPacket> outbox_;
  AggregatorCoreCounters counters_;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_USER_CORE_H_
