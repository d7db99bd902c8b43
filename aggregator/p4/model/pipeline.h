// An executable model of the P4 dataplane: the registers and passes of v1model/netsum.p4, one function for each of its controls.
// It is a specification that tests run where there is no P4 compiler, and holds what P4 cannot say: each register is
// accessed once per pass at most, in the order of the stages (registers.h).
//
// Netsum datagrams go in and come out. Ethernet, ARP and what is not netsum's are in the P4 program alone.
#ifndef NETSUM_AGGREGATOR_P4_MODEL_PIPELINE_H_
#define NETSUM_AGGREGATOR_P4_MODEL_PIPELINE_H_

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "aggregator/p4/driver/switch_driver.h"
#include "aggregator/p4/model/packet.h"
#include "aggregator/p4/model/registers.h"

namespace netsum::p4 {

// Makes and verifies the tags of packets. A P4 pipeline cannot; tests plug one in, so that packets are those of other
// dataplanes byte for byte. `parents`: the packet is from or to the parent of `job`, and names the job as it does.
class TagExtern {
 public:
  virtual ~TagExtern() = default;
  virtual bool is_right(std::span<const uint8_t> datagram, uint16_t job, bool parents) = 0;
  virtual void write(std::vector<uint8_t>* datagram, uint16_t job, bool parents) = 0;
};

struct Datagram {
  Endpoint peer;  // whom it comes from or goes to
  std::vector<uint8_t> bytes;
};

class Pipeline {
 public:
  // `tag` outlives the pipeline. Null: tags are neither verified nor made. `detects_overflow`: whether lanes that pass their
  // range are noticed; Tofino's ALUs do not report them.
  explicit Pipeline(TagExtern* tag = nullptr, bool detects_overflow = true);

  // --- Control plane ---------------------------------------------------------------------------------------------
  // Installs the job, or replaces it, without members. Its slots are empty, unless they have been those of a job with
  // the same index and epoch.
  void set_job(uint16_t job, const JobEntry& entry);
  void remove_job(uint16_t job);
  void set_member(uint16_t job, uint16_t member, const Endpoint& at);
  // The parent of the job has answered, by this port.
  void set_parent(uint16_t job, uint16_t port);
  // The slot stands as after `round` completed there, without lanes.
  void start_slot_at(uint16_t job, uint16_t slot, uint32_t round);
  // Faulty memory: this bit of the lanes of the job's slot changes, in the rounds of that bank.
  void flip_lane_bit(uint16_t job, uint16_t slot, uint32_t bank, uint32_t bit);

  // --- Packets ---------------------------------------------------------------------------------------------------
  // Each of these runs one pass. run_recirculated(): of the packet that has waited longest, false if none waits.
  void run_arrival(const Datagram& datagram);
  bool run_recirculated();
  // Loses that packet instead.
  bool lose_recirculated();
  // What has been sent since the last call; and the HELLOs of members that are not in the table or whose job waits for its
  // parent, and this parent's WELCOMEs, as packets of the own job.
  std::vector<Datagram> take_sent() { return std::exchange(sent_, {}); }
  std::vector<Datagram> take_for_control() { return std::exchange(for_control_, {}); }

  uint64_t passes() const { return passes_; }
  uint64_t counter(int index) const { return counters_.at(static_cast<size_t>(index)); }
  // Completed by the jobs that have had this index.
  uint64_t rounds(uint16_t job) const { return rounds_.at(job); }
  // Of every register, by name: how many passes have accessed it.
  std::vector<std::pair<const char*, uint64_t>> register_accesses() const;

 private:
  void run(Packet* packet, const std::vector<uint8_t>& datagram);
  void admit(Packet* packet, const std::vector<uint8_t>& datagram);
  // The controls of the ingress, in their order.
  void from_parent(Packet* packet);
  void refuse(Packet* packet);
  void admit_parent(Packet* packet);
  void job(Packet* packet);
  void member(Packet* packet);
  void round(Pass* pass, Packet* packet);
  void identity(Pass* pass, Packet* packet);
  void failed(Pass* pass, Packet* packet);
  void seen(Pass* pass, Packet* packet);
  void arrived(Pass* pass, Packet* packet);
  void verdict(Packet* packet);
  void parent_verdict(Packet* packet);
  void uplink(Packet* packet);
  void lanes(Pass* pass, Packet* packet);
  void overflow(Pass* pass, Packet* packet);
  void next(Packet* packet);

  void note_job(const JobEntry& job, Packet* packet);
  void verdict_on_later_pass(Packet* packet);
  void verdict_on_contribution(Packet* packet);
  void verdict_on_probe(Packet* packet);
  void lanes_of_pass(Packet* packet);
  void recirculate(Packet* packet, uint8_t step, uint32_t group);
  void result(Packet* packet);
  void status(Packet* packet);
  void error(Packet* packet);
  void contribution_up(Packet* packet);
  void probe_up(Packet* packet);
  // The multicast engine, and the egress.
  void emit(const Packet& packet);
  void emit_to_parent(const Packet& packet);
  void send(const Packet& packet, const Endpoint& to, uint16_t job, bool parents);

  void count(int index) { ++counters_[static_cast<size_t>(index)]; }

  TagExtern* const tag_;
  const bool detects_overflow_;
  std::map<uint16_t, JobEntry> jobs_;
  std::map<std::pair<uint16_t, uint16_t>, Endpoint> members_;  // by job and member
  // By address and job of the parent: the own job.
  std::map<std::tuple<uint32_t, uint16_t, uint16_t>, uint16_t> parents_;
  std::map<uint16_t, uint16_t> parent_ports_;  // by job: of parents that have answered

  // The upper halves of `over`, `current` and `shape` are job << 16 | epoch. To other jobs and epochs, the slot is empty.
  // By slot.
  Register<uint64_t> over_;     // the latest round that is complete
  Register<uint64_t> current_;  // the latest round that has been opened: over, or the one after it
  // By slot and bank; round r is in bank r & 1.
  Register<uint32_t> chunk_, signature_;
  // Lower half: payload bytes << 16 | PART << 8 | format; 0: the bank has not been used.
  Register<uint64_t> shape_;
  Register<uint16_t> failed_;              // 1 + the member that is to blame; 0: none; 0xFFFF: ALL
  Register<uint64_t> seen_;                // members that have contributed
  Register<uint8_t> arrived_;              // how many contributions are in the lanes, whole
  std::vector<Register<uint64_t>> lanes_;  // one for each word of a pass; by slot, bank and group
  Register<uint8_t> overflow_;

  std::deque<Packet> recirculated_;
  std::vector<Datagram> sent_, for_control_;
  std::array<uint64_t, NETSUM_P4_COUNTERS> counters_{};
  std::array<uint64_t, NETSUM_P4_JOBS> rounds_{};
  uint64_t passes_ = 0;
};

}  // namespace netsum::p4

#endif  // NETSUM_AGGREGATOR_P4_MODEL_PIPELINE_H_
