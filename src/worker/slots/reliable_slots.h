// When a stripe's packets are sent, whatever they contain: the slots with their rounds and states (slot_state.h), congestion
// windows, PROBEs and retransmissions (wire/PROTOCOL.md, section 7, rules 1, 2 and 5), and the connection.
//
// A payload is not stored: for a retransmission the caller writes it again. Thread rule: one thread.
#ifndef NETSUM_SRC_WORKER_SLOTS_RELIABLE_SLOTS_H_
#define NETSUM_SRC_WORKER_SLOTS_RELIABLE_SLOTS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "src/worker/slots/congestion.h"
#include "src/worker/slots/connection.h"
#include "src/worker/slots/slot_layout.h"
#include "src/worker/slots/slot_state.h"
#include "src/worker/slots/stripe_counters.h"
#include "src/worker/slots/urgent_ring.h"
#include "wire/codec.h"

namespace netsum {

struct SlotsOptions {
  netsum_fields common{};  // job, epoch and member of all packets
  uint32_t payload_bytes = 0;
  bool multicast = false;
  uint32_t data_slots = 0, scale_slots = 0;
  double share = 1, largest_share = 1;  // as in CongestionWindow
};

class ReliableSlots {
 public:
  // The key and the counters outlive this object.
  ReliableSlots(const SlotsOptions& options, const wire::PacketKey* key, StripeCounters* counters);

  const Connection& connection() const { return connection_; }
  const SlotLayout& layout() const { return layout_; }
  uint32_t count() const { return static_cast<uint32_t>(slots_.size()); }
  bool is_waiting(uint32_t slot) const { return slots_[slot].state != SlotState::kIdle; }
  // Whether a packet about this slot and round is of use.
  bool waits_for(const netsum_fields& fields) const {
    return fields.slot < slots_.size() && slots_[fields.slot].state != SlotState::kIdle &&
           slots_[fields.slot].round == fields.round;
  }
  uint32_t round(uint32_t slot) const { return slots_[slot].round; }
  bool was_resent(uint32_t slot) const { return slots_[slot].history.resent; }
  uint32_t window_packets(size_t stream) const { return streams_[stream].window.packets(); }

  // A step begins in an idle slot. `chunk` and `signature` are its identity on the wire.
  void start(int64_t now_us, uint32_t slot, size_t stream, uint32_t chunk, uint32_t signature);
  // The slot of the stream's next step of data; none: the window has no room.
  std::optional<uint32_t> next_data_slot(size_t number) const {
    const Stream& stream = streams_[number];
    if (stream.in_flight() >= stream.window.packets() ||
        stream.next_sequence - stream.lowest_waiting >= stream.slots.count)
      return {};
    return stream.slots.slot(stream.next_sequence);
  }
  // A payload or a PROBE that is due. The caller writes the packet.
  struct Urgent {
    uint32_t slot = 0;
    bool payload = false;
  };
  std::optional<Urgent> next_urgent() { return urgent_.empty() ? std::nullopt : take_urgent(); }
  // The header of a packet about the slot's step.
  netsum_fields fields_of(uint32_t slot, uint8_t type) const;
  // The payload has been written.
  void sent(int64_t now_us, uint32_t slot);
  uint32_t write_probe(int64_t now_us, uint32_t slot, uint8_t* frame);
  uint32_t write_hello(int64_t now_us, uint8_t* frame);
  // As those of Connection.
  void ask_for_turn() { connection_.ask_for_turn(); }
  void give_up_turn() { connection_.give_up_turn(); }

  // A valid packet has arrived.
  void heard(int64_t now_us) { last_heard_us_ = now_us; }
  void on_welcome(int64_t now_us, const netsum_fields& fields);
  // For a slot that waits. False: it is for another member.
  bool on_status(int64_t now_us, const netsum_fields& fields, const uint8_t* payload);
  // The result has been taken.
  void finish(int64_t now_us, uint32_t slot);
  // A result for a slot that does not wait for it.
  void on_late_result(const netsum_fields& fields);
  // The result was wrong: asks for it again. False: it has asked too often.
  bool ask_again(uint32_t slot);

  // Time of the next on_tick() that could have something to do.
  int64_t next_tick_us() const { return next_tick_us_; }
  void on_tick(int64_t now_us);

  // The lowest unfinished step of data.
  std::optional<uint32_t> lowest_waiting(size_t stream) const;
  bool is_answered(uint32_t slot) const { return slots_[slot].history.answered; }
  uint64_t contributed(uint32_t slot) const { return slots_[slot].history.contributed; }
  // How long nothing has arrived. Before the slot's packet was sent, the aggregator had no reason to send any.
  int64_t silent_us(int64_t now_us, uint32_t slot) const {
    return now_us - std::max(last_heard_us_, slots_[slot].sent_at_us);
  }

 private:
  struct Slot {
    uint32_t round = 0;                 // of the latest step
    uint32_t chunk = 0, signature = 0;  // of the step
    SlotState state = SlotState::kIdle;
    bool queued = false;         // it is in urgent_; the step may have ended since
    bool again_counted = false;  // in Stream::again
    uint8_t stream = 0;
    uint64_t sequence = 0;  // q of a data step
    int64_t sent_at_us = 0;
    int64_t probed_at_us = 0;
    int64_t probe_at_us = 0;
    // Events of the step so far. Every combination of state and history is possible.
    struct History {
      bool resent = false;       // the payload was: the result is no sample of the round-trip time
      bool gap_probed = false;   // a PROBE was due because later steps had finished before it
      bool answered = false;     // a STATUS has arrived
      uint64_t contributed = 0;  // the members that STATUS packets named
      uint32_t backoff = 0;      // PROBEs since the payload was sent
      uint32_t refused = 0;      // wrong results after which it was asked for again
      uint32_t lost = 0;         // packets, by STATUS packets that asked for the payload again
      uint32_t again = 0;        // payloads that were sent again
    } history;
    // Of the last step that lost packets: losses that count, and results that are still expected for payloads sent again.
    struct {
      uint32_t round = 0, lost = 0, results = 0;
    } repaired;
  };
  // The steps of data of a stream, in order.
  struct Stream {
    SlotRange slots;
    CongestionWindow window{0};
    uint64_t next_sequence = 0;
    uint64_t lowest_waiting = 0;    // all steps below are finished
    uint64_t highest_finished = 0;  // one above the highest finished step
    uint32_t again = 0;             // overtaken steps whose payload was sent again
    int64_t gaps_looked_at_us = 0;
    int64_t overtaken_noted_at_us = 0;
    uint64_t reorder_packets = kMinReorderPackets;

    bool is_open() const { return lowest_waiting < next_sequence; }
    // What counts against the window, as in RFC 6675. The network no longer holds packets of a step that later ones have
    // overtaken: one was lost, of this rank or of another.
    uint64_t in_flight() const { return next_sequence - highest_finished + again; }
  };

  bool is_data(uint32_t slot) const { return slot < layout_.first_groups().first; }
  std::optional<Urgent> take_urgent();
  // The only function that changes a slot's state. Queues a slot that has a packet due.
  void change_state(uint32_t slot, SlotEvent event);
  void schedule(int64_t at_us) { next_tick_us_ = std::min(next_tick_us_, at_us); }
  bool loses_packets(int64_t now_us) const { return now_us - lost_at_us_ < kLossMemoryUs; }
  // While packets get lost, some results wait for the repair of other members' losses.
  bool waits_in_queues(int64_t now_us) const {
    return loses_packets(now_us) ? round_trip_.all_queue() : round_trip_.queues();
  }
  bool measures_round_trip(const Slot& slot, int64_t now_us) const;
  void finish_data(int64_t now_us, Slot* finished);
  void count_again(Slot* slot, bool counted);
  void count_losses(int64_t now_us, SlotState state, Slot* slot);
  bool has_less_than_half(const Stream& stream) const;
  void look_for_gaps(Stream* stream, int64_t now_us);
  void note_overtaken(const Stream& stream);

  const netsum_fields common_;
  const wire::PacketKey& key_;
  StripeCounters& counters_;
  const SlotLayout layout_;
  Connection connection_;
  std::array<Stream, SlotLayout::kStreams> streams_;
  std::vector<Slot> slots_;  // data slots, then scale slots
  UrgentRing urgent_;

  RoundTrip round_trip_;
  int64_t next_tick_us_ = 0;
  int64_t last_heard_us_ = 0;
  // How many later steps may finish before an open one is probed. Starts above the reordering within a burst and adapts to
  // the path: several CPUs that send results in bursts reorder by dozens.
  static constexpr uint64_t kMinReorderPackets = 8, kMaxReorderPackets = 128;
  static constexpr uint32_t kProbesPerTick = 8;
  // Retries after a wrong result. Faults on the way back or in this host are transient.
  static constexpr uint32_t kMostRefusals = 3;
  static constexpr int64_t kLossMemoryUs = 5'000'000;  // ten of the longest timeouts
  bool lost_since_tick_ = false;
  int64_t lost_at_us_ = INT64_MIN / 2;
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_SLOTS_RELIABLE_SLOTS_H_
