// A worker's protocol with one stripe (one core of an aggregator, or one rank's embedded shard), without I/O. It handles the
// operations of two streams (slots/slot_layout.h), those of each stream in order and both streams at the same time, and of
// each operation the chunks of this stripe. Its parts:
//
//   slots/         when a packet is sent: windows, probes, retransmissions, HELLO
//   ScaleGroups    which scale group is opened next; what its result proves
//   DataCursor     which packet of data is next
//   modes/         what packets contain, and what is done with results (wire/PROTOCOL.md, section 7.2)
//
// Step q of a stream's data uses its slot q % S in round q / S + 1, on every rank alike: the packets that a chunk needs follow
// from the agreed bytes. Nothing is stored for retransmission: a packet is encoded again from the caller's tensor, which only
// the packet's own result overwrites. Thread rule: one thread.
#ifndef NETSUM_SRC_WORKER_STRIPE_H_
#define NETSUM_SRC_WORKER_STRIPE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "netsum/status.h"
#include "src/worker/data_cursor.h"
#include "src/worker/modes/agreement.h"
#include "src/worker/modes/empty_packets.h"
#include "src/worker/modes/inline_sums.h"
#include "src/worker/modes/lanes.h"
#include "src/worker/modes/predicted_scales.h"
#include "src/worker/modes/verified_sums.h"
#include "src/worker/modes/without_scales.h"
#include "src/worker/scale_groups.h"
#include "src/worker/slots/reliable_slots.h"
#include "src/worker/step.h"
#include "src/worker/stripe_chunks.h"
#include "src/worker/stripe_options.h"
#include "wire/codec.h"

namespace netsum {

class Stripe {
 public:
  explicit Stripe(const StripeOptions& options);
  Stripe(const Stripe&) = delete;  // its parts refer to each other
  Stripe& operator=(const Stripe&) = delete;

  const StripeOptions& options() const { return options_; }
  const wire::PacketKey& key() const { return key_; }
  const ReliableSlots& slots() const { return slots_; }
  const Connection& connection() const { return slots_.connection(); }
  // The bytes of each payload for lanes. The others are for tags.
  uint32_t lane_room() const { return chunks_.lane_room(); }
  const StripeCounters& counters() const { return counters_; }
  StripeCounters& counters() { return counters_; }

  // Adds this stripe's chunks of `operation` to its queue, and their number to operation->chunks_left. The operation must
  // live until they are finished or the stripe is destroyed.
  void enqueue(Operation* operation);
  // An operation whose last scale group on_packet() has finished, each once and in that order; null: there is none.
  Operation* take_finished() { return groups_.take_finished(); }
  // As ScaleGroups::first_unproven().
  uint64_t first_unproven() const { return groups_.first_unproven(); }

  // The stream of an operation that moves bytes, or of one that sums.
  size_t stream_of(bool moves_bytes) const { return groups_.stream_of(moves_bytes); }
  // As DataCursor::next_chunk().
  uint64_t next_chunk(size_t stream) const { return cursors_[stream].next_chunk(); }

  // Of each stream, the first chunk whose data must not be sent yet.
  using Limits = std::array<uint64_t, SlotLayout::kStreams>;
  static constexpr Limits kNoLimits = {UINT64_MAX, UINT64_MAX};
  // Writes the next packet due, if any, to `frame` (room for a header and payload_bytes) and returns its
  // size, or 0 if nothing is due now.
  uint32_t next_packet(int64_t now_us, uint8_t* frame, const Limits& limits = kNoLimits);
  // Whether, at the last next_packet() that had nothing to send, only a limit was in the way of a stream.
  bool held_back() const { return held_back_[0] || held_back_[1]; }

  // As those of Connection: next_packet() asks.
  void ask_for_turn() { slots_.ask_for_turn(); }
  void give_up_turn() { slots_.give_up_turn(); }

  // A parsed packet of this stripe with a valid tag. `payload` has fields.payload_bytes. Returns an error if the packet ends
  // the job. Finished scale groups reduce their operation's chunks_left.
  Status on_packet(int64_t now_us, const netsum_fields& fields, const uint8_t* payload);

  // Time of the next on_tick() that could have something to do.
  int64_t next_tick_us() const { return slots_.next_tick_us(); }
  void on_tick(int64_t now_us) { slots_.on_tick(now_us); }

  // Why the oldest step waits, for error messages.
  struct Waiting {
    const Operation* operation = nullptr;
    bool answered = false;     // the aggregator has sent a STATUS
    uint64_t contributed = 0;  // the members that it named
    int64_t silent_us = 0;     // time since the last valid packet, or since the first packet was sent
  };
  Waiting waiting(int64_t now_us) const;

 private:
  // Sending: stripe_send.cc.
  uint32_t next_step_packet(int64_t now_us, uint8_t* frame, const Limits& limits);
  uint32_t next_data_packet(int64_t now_us, uint8_t* frame, const Limits& limits);
  bool may_send_data(size_t stream, uint64_t limit);
  // Opens the next scale group, if a slot is free for it.
  uint32_t open_group(int64_t now_us, uint8_t* frame);
  bool has_input(ScaleGroups::Share* share) const;
  Step first_step(ScaleGroups::Share* share, ScaleGroup* group);
  // Starts the step that has been written to the slot, and writes its packet.
  uint32_t start(int64_t now_us, uint32_t slot, uint8_t* frame);
  uint32_t write_contribution(int64_t now_us, uint32_t slot, uint8_t* frame);
  bool is_discarded(const Step& step) const {
    return step.predicted && PredictedScales::is_discarded(step, groups_.at(step.scale_slot));
  }

  // Receiving: stripe_receive.cc.
  Status on_result(int64_t now_us, const netsum_fields& fields, const uint8_t* payload);
  Status on_error(const netsum_fields& fields, const uint8_t* payload) const;
  bool is_of_step(const netsum_fields& fields, const Step& step) const;
  void fetch_after(size_t slot) const;
  Status take_sum(const Step& step, uint8_t flags, const uint8_t* lanes);
  Status finish_step(const Step& step);
  Status take_kept_results();
  // After a change of the stream's groups.
  void move_on(size_t stream);
  void note_waiting(int64_t now_us);

  uint32_t payload_bytes_of(const Step& step) const {
    return verified_.has_value() ? verified_->payload_bytes_of(step) : step.packet.payload_bytes;
  }
  // Calls call(mode) with the mode that writes a step's payload and takes its result.
  template <typename Call>
  auto with_mode(StepKind kind, const Call& call) {
    switch (kind) {
      case StepKind::kAgree:
        return call(agreement_);
      case StepKind::kConfirm:
        return call(*verified_);
      case StepKind::kInlineSum:
        return call(inline_sums_);
      case StepKind::kFirst:
      case StepKind::kData:
        break;
    }
    return call(lanes_);
  }

  const StripeOptions options_;
  const wire::PacketKey key_;
  StripeCounters counters_;
  const StripeChunks chunks_;
  ReliableSlots slots_;
  std::vector<Step> steps_;  // by slot
  ScaleGroups groups_;

  std::optional<PredictedScales> predicted_;
  std::optional<VerifiedSteps> verified_;
  ScaleAgreement agreement_;
  Lanes lanes_;
  InlineSums inline_sums_;
  WithoutScales without_scales_;
  EmptyPackets empty_packets_;

  std::array<DataCursor, SlotLayout::kStreams> cursors_;
  size_t turn_ = 0;  // the stream that sends data next
  std::array<bool, SlotLayout::kStreams> held_back_{};
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_STRIPE_H_
