// A worker's protocol with one stripe (one core of an aggregator, or one rank's embedded shard), without I/O. It handles the
// operations of two streams (slot_layout.h), those of each in order and those of both at the same time, and of each operation
// the chunks of this stripe:
//
//   scale group: consecutive chunks of one operation, as many as have their scanned bytes in one packet. The ranks first
//     agree on these bytes (one small packet of 8-bit MAX lanes in a scale slot), then send the group's chunks. Scale
//     groups run ahead of the data, so a stream of operations does not wait for them.
//   values: where the aggregator can sum values, each chunk of a small operation is a scale group of its own that needs no
//     data. Its packet has the elements as they are, goes to the scale slot, and is answered with their sum.
//   nothing to agree on: if the encoding requires none, the lanes of a group's first chunk go to the scale slot, and those of
//     the others are sent at once. So every group has a packet there, by which ranks in different operations are found.
//   step: one packet of a chunk in a data slot. Step q of a stream uses its slot q % S in round q / S + 1, on every rank
//     alike: the packets that a chunk needs follow from the agreed bytes.
//   prediction: the data of an operation's first group is sent at once, without waiting for the agreement, where its bytes can
//     be predicted from earlier operations (scale_history.h). All ranks predict the same, in the order of the stream. When the
//     agreement arrives, it says of each chunk whether the prediction was right. If so, the sum of its data is the result. If
//     not, the sum is worthless, and the chunk is sent again with the bytes that were agreed on, after the predicted ones.
//   order: the first groups of all operations are opened in the order of the operations. The further groups of an operation,
//     and all steps of data, follow the order of the operation's stream. A scale slot is used again when its group and all
//     groups before that in their stream are finished. So a result in a scale slot proves that all ranks have finished them.
//
//   without lanes: a rank that has nothing to add to a step says so in a packet of 40 bytes. So does a rank to which alone the
//     sum goes: it adds its own lanes when the sum of the others has arrived. What is sent again has lanes of zeros instead,
//     because the answer to it has room for those of the result. A rank that needs no lanes of a result says so, and gets none.
//
//   verified sums: the lanes of every sum carry a tag (src/verify), and a result whose tag is wrong is not taken: the stripe asks
//     for it again. Maxima carry none. So the ranks confirm them, before they send data: in a sum, in the next round of the
//     scale slot, they count by which ranks each maximum is reached. Its tag proves that all ranks have the same maxima.
//
// The operation's encoding (src/encoding/encoding.h) determines these bytes and packets. Nothing is stored for
// retransmission: a packet is encoded again from the caller's tensor, which only its own result overwrites.
//
// Rules for loss and waiting: wire/PROTOCOL.md. Thread rule: one thread.
#ifndef NETSUM_SRC_WORKER_STRIPE_H_
#define NETSUM_SRC_WORKER_STRIPE_H_

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "netsum/status.h"
#include "src/base/counter.h"
#include "src/base/histogram.h"
#include "src/encoding/encoding.h"
#include "src/net/address.h"
#include "src/verify/verified_sums.h"
#include "src/worker/chunk_map.h"
#include "src/worker/congestion.h"
#include "src/worker/operation.h"
#include "src/worker/scale_history.h"
#include "src/worker/slot_layout.h"
#include "src/worker/slot_state.h"
#include "wire/codec.h"

namespace netsum {

struct StripeOptions {
  Address address;
  bool local = false;  // embedded in this process
  // The multicast group of packets to all members; not valid: they come by unicast.
  Address multicast_group;
  uint16_t job = 0;
  uint16_t epoch = 0;
  netsum_key key{};                 // the stripe's: wire::stripe_key()
  uint32_t tag = NETSUM_TAG_KEYED;  // NETSUM_TAG_*: what is in the check field of packets
  uint32_t data_slots = 256;
  uint32_t scale_slots = 4;
  bool sums_values = false;  // the aggregator takes values in scale slots; equal on all ranks
  // It takes SUM of float32 alone: its members, or those of another level of a hierarchy, are not single ranks.
  bool sums_partial_floats = false;
  bool takes_no_lanes = false;   // the aggregator takes contributions without lanes
  bool takes_brief = false;      // the aggregator can leave out the lanes of a member's result
  bool predicts_scales = false;  // data need not wait for the agreement on scales; equal on all ranks
  uint32_t payload_bytes = 1440;
  // Sums are verified under this key, verify::sum_key(), which all ranks have. Not with sums_values, takes_no_lanes,
  // takes_brief or predicts_scales; and the operations are sums, or move bytes.
  std::optional<netsum_key> sum_key;
  // Hierarchy: by rank, the number of its member here, or kMemberElsewhere if it sends to another aggregator. Empty: every
  // rank is the member of the same number.
  std::vector<uint16_t> member_of_rank;
  // Set by the WorkerCore:
  int rank = 0;
  int world_size = 1;
  int summands = 1;                                                           // as WorkerOptions::summands
  uint16_t member = 0;                                                        // of the rank
  uint32_t index = 0;                                                         // of this stripe
  std::shared_ptr<const ChunkMap> chunk_map = std::make_shared<ChunkMap>(1);  // in which `index` counts
  std::vector<int> names;                                                     // what messages call each rank

  uint16_t member_of(int of_rank) const {
    return member_of_rank.empty() ? static_cast<uint16_t>(of_rank)
                                  : member_of_rank[static_cast<size_t>(of_rank)];
  }
  int name_of(int of_rank) const {
    const auto at = static_cast<size_t>(of_rank);
    return at < names.size() ? names[at] : of_rank;
  }
};

inline constexpr uint16_t kMemberElsewhere = NETSUM_MEMBER_ALL;

// In StripeCounters::share: all chunks.
inline constexpr uint64_t kWholeShare = 1'000'000'000'000;

struct StripeCounters {
  Counter packets_sent;
  Counter packets_received;
  Counter bytes_sent;  // datagrams, without UDP, IP and Ethernet headers
  Counter bytes_received;
  Counter results;  // that were awaited: only these prove that the aggregator is alive
  Counter retransmissions;
  Counter probes;
  Counter share;                // of the chunks, in parts of kWholeShare
  Counter zero_chunks;          // that all ranks agreed are zero: no data was sent for them
  Counter scales_predicted;     // chunks whose data was sent before their scales were agreed on
  Counter scales_mispredicted;  // of them, those that were sent again
  Counter sums_verified;        // results with a right tag
  Counter sums_refused;         // results with a wrong tag, and maxima that were no maxima
  Counter dropped;
  std::array<Counter, NETSUM_DROP_COUNT> drops;  // the same, by NETSUM_DROP_*
  Counter srtt_us;
  Counter window_packets;
  Counter waiting_for;  // bitmap of the members that are missing from the oldest step, from the latest STATUS
  Histogram round_trip;  // the samples behind srtt_us

  void drop(int reason) {
    dropped.add();
    drops[static_cast<size_t>(reason)].add();
  }
};

class Stripe {
 public:
  explicit Stripe(const StripeOptions& options);

  const StripeOptions& options() const { return options_; }
  const wire::PacketKey& key() const { return key_; }
  // Whether a packet about this slot and round is of use.
  bool waits_for(const netsum_fields& fields) const {
    return fields.slot < slots_.size() && slots_[fields.slot].state != SlotState::kIdle &&
           slots_[fields.slot].round == fields.round;
  }
  // Of each payload, the bytes for lanes. The others are for tags.
  uint32_t lane_room() const { return lane_room_; }
  const StripeCounters& counters() const { return counters_; }
  StripeCounters& counters() { return counters_; }

  // Adds this stripe's chunks of `operation` to its queue, and their number to operation->chunks_left. The operation must
  // live until they are finished or the stripe is destroyed.
  void enqueue(Operation* operation);

  // The stream of an operation that moves bytes, or of one that sums.
  size_t stream_of(bool moves_bytes) const {
    return moves_bytes && layout_.divides() ? SlotLayout::kMoves : SlotLayout::kSums;
  }
  // The number of the next chunk of the stream to send, by Operation::first_chunk; UINT64_MAX if there is none.
  uint64_t next_chunk(size_t stream) const;
  uint32_t window_packets(size_t stream) const { return streams_[stream].window.packets(); }

  // Of each stream, the first chunk whose data must not be sent yet.
  using Limits = std::array<uint64_t, SlotLayout::kStreams>;
  static constexpr Limits kNoLimits = {UINT64_MAX, UINT64_MAX};
  // Writes the next packet due, if any, to `frame` (room for a header and payload_bytes) and returns its
  // size, or 0 if nothing is due now.
  uint32_t next_packet(int64_t now_us, uint8_t* frame, const Limits& limits = kNoLimits);

  // Whether, at the last next_packet() that had nothing to send, only a limit was in the way of a stream.
  bool held_back() const { return streams_[0].held_back || streams_[1].held_back; }

  // A parsed packet of this stripe with a valid tag. `payload` has fields.payload_bytes. Returns an error if the packet ends
  // the job. Finished scale groups reduce their operation's chunks_left.
  Status on_packet(int64_t now_us, const netsum_fields& fields, const uint8_t* payload);

  // An operation whose last scale group on_packet() has finished, each once and in that order; null: there is none.
  Operation* take_finished();

  // The number of the first operation of which it is not known that all ranks have finished its chunks here; UINT64_MAX if
  // there is none.
  uint64_t first_unproven() const;

  // Time of the next on_tick() that could have something to do.
  int64_t next_tick_us() const { return next_tick_us_; }
  void on_tick(int64_t now_us);

  // True when the aggregator has answered a full-size HELLO, also through the multicast group if there is one.
  bool welcomed() const { return answered_ && (multicast_heard_ || !options_.multicast_group.valid()); }
  // True when only small HELLOs are answered: the path's MTU is smaller than configured.
  bool only_small_packets_pass() const { return small_welcomed_ && !answered_ && !multicast_heard_; }
  // True while answers arrive, but none through the multicast group.
  bool multicast_is_silent() const { return answered_ && !welcomed(); }
  // As multicast_is_silent(), for so long that the multicast group does not work.
  bool multicast_is_lost(int64_t now_us) const {
    return multicast_is_silent() && now_us - answered_at_us_ >= kMulticastTimeoutUs;
  }

  // Why the oldest step waits, for error messages.
  struct Waiting {
    const Operation* operation = nullptr;
    bool answered = false;     // the aggregator has sent a STATUS
    uint64_t contributed = 0;  // the members that it named
    int64_t silent_us = 0;     // time since the last valid packet, or since the first packet was sent
  };
  Waiting waiting(int64_t now_us) const;

 private:
  // kFirst: lanes in a scale slot. kConfirm: follows kAgree where sums are verified.
  enum class StepKind : uint8_t { kAgree, kConfirm, kData, kValues, kFirst };
  // What becomes of this rank's lanes.
  enum class OwnLanes : uint8_t {
    kSent,
    kNone,  // it has none: they are 0
    kKept,  // no other rank needs their sum: they are added to the result, which is that of the others
  };
  struct Step {
    Operation* operation = nullptr;
    StepKind kind = StepKind::kAgree;
    uint8_t part = 0;       // kData: which packet of the chunk; kConfirm: of the maxima
    bool together = false;  // kData: as in ChunkPlan
    OwnLanes own = OwnLanes::kSent;
    bool brief = false;       // this rank needs no lanes of the result
    bool predicted = false;   // kData: with predicted bytes
    uint32_t signature = 0;   // on the wire; set when the step starts
    uint32_t in_group = 0;    // kData: the number of the chunk in its scale group
    uint32_t scale_slot = 0;  // of its scale group
    uint32_t index = 0;  // on the wire: of the chunk in the operation, or of the operation's scale group here
    Chunk chunk;         // kData, with its agreed bytes in the scale group; kValues; kFirst
    PacketPlan packet;   // without tag. kData, kFirst: all fields; otherwise only format and payload_bytes
  };

  struct Slot {
    Step step;
    uint32_t round = 0;  // of the latest step
    SlotState state = SlotState::kIdle;
    bool queued = false;    // it is in urgent_; the step may have ended since
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
      uint32_t refused = 0;      // results after which the stripe has asked again
    } history;
  };

  // kAgreed: its bytes wait for those of the groups before it to be known (Prediction). kReady: the steps of its data are known.
  // kFinished: groups before it in its stream are not.
  enum class ScaleGroupState : uint8_t { kFree, kAgreeing, kAgreed, kReady, kFinished };
  // What is predicted of a group. The data of its predicted chunks is sent first.
  struct Prediction {
    enum class Chunk : uint8_t { kNone, kPredicted, kRight, kWrong };
    bool possible = false;        // it is the first of its operation here
    bool begun = false;           // all groups before it in its stream are agreed on
    uint32_t chunks = 0;          // that are predicted
    uint32_t bytes = 0;           // that the group agrees on
    std::vector<uint8_t> agreed;  // of the predicted chunks; as ScaleGroup::agreed
    std::vector<Chunk> of_chunk;
  };
  struct ScaleGroup {
    Operation* operation = nullptr;
    size_t stream = 0;
    uint64_t number = 0;  // in the stream; set when all groups before it are open
    // What its first result proves: all ranks have finished so many groups of that stream.
    struct Proof {
      size_t stream = 0;
      uint64_t groups = 0;
    } proof;
    ScaleGroupState state = ScaleGroupState::kFree;
    uint32_t in_scale_slot = 0;  // of its chunks, the first so many are summed in the scale slot
    size_t first_chunk = 0;      // local index: the stripe's chunks of the operation count from 0
    uint32_t chunks = 0;
    uint32_t steps_left = 0;
    // The bytes of its chunks, contiguous: this rank's while agreeing, then the agreed ones.
    std::vector<uint8_t> agreed;
    // Verified sums: this rank's bytes while the agreed ones are confirmed, how many of these are, and their digest (0: there
    // are none).
    std::vector<uint8_t> own;
    uint32_t agreed_bytes = 0, confirmed_bytes = 0;
    uint64_t digest = 0;
    Prediction prediction;
  };

  struct Share {  // the stripe's chunks of an operation
    Operation* operation = nullptr;
    size_t chunks = 0;
    size_t next_chunk = 0;  // not in a group yet
    uint32_t groups = 0;    // opened
    uint32_t early = 0;     // of them in Stream::early
  };

  struct Stream {
    Stream(const SlotRange& slots, double share, double largest_share)
        : data(slots), window(slots.count, share, largest_share) {}

    SlotRange data;
    std::deque<Share> queue;  // operations with scale groups still to open
    size_t begun = 0;         // of them, the first so many need no further opening slot
    // Open scale groups in order, from number `retired` on, and those of operations behind the first of the queue.
    std::deque<uint32_t> groups, early;
    uint64_t retired = 0;
    uint64_t further = 0;     // groups that were opened in the stream's own scale slots
    uint64_t data_group = 0;  // whose chunks are being sent, or the next to open; not one without data slots
    uint32_t data_chunk = 0;  // its next chunk
    size_t data_agreed = 0;   // where that chunk's agreed bytes begin
    uint8_t data_part = 0;    // that chunk's next packet
    bool data_predicted = true;  // of that group, the predicted chunks are being sent
    // That chunk, if its data can be sent now.
    struct Due {
      uint32_t index = 0;  // in the operation
      Chunk chunk;
      ChunkPlan plan;
      size_t agreed_bytes = 0;
    } due;
    uint64_t next_sequence = 0;
    uint64_t lowest_waiting = 0;    // all data steps below are finished
    uint64_t highest_finished = 0;  // one above the highest finished data step
    uint32_t in_flight = 0;
    CongestionWindow window;
    bool held_back = false;
    int64_t gaps_looked_at_us = 0;
    int64_t overtaken_noted_at_us = 0;
    uint64_t reorder_packets = kMinReorderPackets;
    // Operations that some rank may not have finished here: number, and number of the group after its last one (UINT64_MAX:
    // not open yet).
    struct Unproven {
      uint64_t operation, end;
    };
    std::deque<Unproven> unproven;
    size_t ends_known = 0;  // of `unproven`, the first so many

    uint64_t next_group() const { return retired + groups.size(); }
  };

  std::array<Stream, SlotLayout::kStreams> make_streams() const;

  // Sending.
  uint32_t build_hello(int64_t now_us, uint8_t* frame);
  uint32_t build_urgent(int64_t now_us, uint8_t* frame);
  // Starts the agreement of the next scale group, or the sum of what needs none, if a slot is free for it, and returns the
  // slot; 0: none, or there is no group to open.
  uint32_t open_scale_group(int64_t now_us);
  bool opens_in(uint32_t slot) const;
  void open_group(int64_t now_us, Stream* stream, Share* share, uint32_t slot);
  void take_begun(Stream* stream);
  bool sends_values(const Operation& operation) const;
  // Values in float32, which this rank divides and rounds to the type.
  bool sends_partial_floats() const { return !options_.sums_values; }
  Step agree_step(Share* share, ScaleGroup* group);
  Step values_step(Share* share, ScaleGroup* group);
  Step first_step(Share* share, ScaleGroup* group);
  // Moves on from scale groups and chunks that send no data.
  void pass_without_data(Stream* stream);
  // Moves on to the next chunk of the group whose data is due, and notes it in Stream::due; false: there is none.
  bool pass_chunks(Stream* stream, const ScaleGroup& group);
  // How far the stream is in the operation of that group, as the number of a chunk.
  uint64_t progress_in(const Stream& stream, const ScaleGroup& group) const;
  // Writes the stream's next step of data to its slot, which is returned, if it may be sent now.
  std::optional<uint32_t> next_step(Stream* stream, uint64_t limit);
  uint32_t next_data_packet(int64_t now_us, uint8_t* frame, const Limits& limits);
  OwnLanes own_lanes_of(const Step& step) const;
  uint32_t build_contribution(int64_t now_us, uint32_t slot_index, uint8_t* frame);
  uint32_t build_probe(int64_t now_us, uint32_t slot_index, uint8_t* frame);
  uint32_t next_confirmation(int64_t now_us, uint8_t* frame);
  // Starts the step that has been written to the slot.
  void start(int64_t now_us, uint32_t slot_index);
  netsum_fields fields_of(uint32_t slot_index, uint8_t type) const;
  // The only function that changes a slot's state. Queues a slot that has a packet due.
  void change_state(uint32_t slot_index, SlotEvent event);

  // Receiving.
  Status on_result(int64_t now_us, const netsum_fields& fields, const uint8_t* payload);
  void on_status(int64_t now_us, const netsum_fields& fields, const uint8_t* payload);
  Status on_error(const netsum_fields& fields, const uint8_t* payload);
  void on_welcome(int64_t now_us, const netsum_fields& fields);
  bool loses_packets(int64_t now_us) const { return now_us - lost_at_us_ < kLossMemoryUs; }
  // While packets get lost, results wait for the repair of other members' losses, which a queue explains no better.
  bool waits_in_queues(int64_t now_us) const { return round_trip_.queues() && !loses_packets(now_us); }
  bool measures_round_trip(const Slot& slot, int64_t now_us) const;
  Status take_sum(const Step& step, uint8_t flags, const uint8_t* lanes);
  Status deliver(const Step& step, const uint8_t* payload);
  // The lanes of a result and this rank's, which it has kept; null: a sum passed the range of its lane.
  const uint8_t* add_kept_lanes(const Step& step, const uint8_t* payload);
  Status take_agreement(ScaleGroup* group);
  // The steps of data that the group needs are known from now on.
  void settle(ScaleGroup* group);
  void finish_step(const Step& step);
  void finish_group(ScaleGroup* group);
  // Frees the slots of finished groups, in the stream's order.
  void retire_finished(Stream* stream);
  void finish_data(const Slot& slot, int64_t now_us);
  bool has_less_than_half(const Stream& stream) const;
  void note_proof(const ScaleGroup::Proof& proof);
  void look_for_gaps(Stream* stream, int64_t now_us);
  void note_overtaken(const Stream& stream);
  const Slot* oldest_waiting(const Stream& stream) const;
  void note_waiting(int64_t now_us);
  void schedule(int64_t at_us) { next_tick_us_ = std::min(next_tick_us_, at_us); }

  // Verified sums: stripe_verify.cc.
  bool carries_tag(const Step& step) const;
  uint32_t payload_bytes_of(const Step& step) const;
  verify::SumId sum_id(uint32_t slot_index) const;
  bool is_right(uint32_t slot_index, const uint8_t* payload) const;
  // The result is not taken: asks for it again or, if that has not helped, returns an error.
  Status refuse(uint32_t slot_index);
  Status wrong_sum(const Step& step, const std::string& what) const;
  void begin_confirmation(const Step& step, const uint8_t* maxima);
  static void write_counts(const ScaleGroup& group, uint32_t payload_bytes, uint8_t* lanes);
  Status take_counts(const Step& step, const uint8_t* lanes);
  uint32_t confirmed_at_once() const { return lane_room_ / 16 * 8; }  // bytes; each is counted in 16 bits

  // Prediction: stripe_predict.cc.
  uint32_t signature_of(const Step& step) const;
  void predict(ScaleGroup* group);
  // Compares what was predicted with what was agreed on.
  void judge_prediction(ScaleGroup* group);
  // Nobody will use the sum of this step, as far as this rank knows.
  bool is_worthless(const Step& step) const;
  // The result of a step whose prediction has not been judged. False: there is no room for it, as if it had been lost.
  bool keep_early(const Step& step, uint8_t flags, const uint8_t* lanes);
  Status take_early_results();

  std::vector<int> ranks_of(uint16_t member) const;
  const ChunkMap& chunk_map_of(const Operation& operation) const;
  // The chunk that the stripe handles as its `local`-th of the operation: its number in the operation. Those of different
  // parts take turns, so that the ranks to whom the parts belong are loaded evenly.
  size_t chunk_index(const Operation& operation, size_t local) const;
  // How far the stripe is in the operation when it has handled `local` chunks, as the number of a chunk.
  uint64_t progress(const Operation& operation, size_t local) const;
  Stream& stream_for(const Operation& operation) { return streams_[stream_of(operation.moves_bytes())]; }
  ScaleGroup& group_in(uint32_t slot) { return scale_groups_[slot - options_.data_slots]; }
  const ScaleGroup& group_in(uint32_t slot) const { return scale_groups_[slot - options_.data_slots]; }
  const ScaleGroup& sending_group(const Stream& stream) const {
    return group_in(stream.groups[stream.data_group - stream.retired]);
  }
  // The chunk number `index` of the group, whose agreed bytes begin at `agreed` there.
  Chunk chunk_of(const ScaleGroup& group, uint32_t index, size_t agreed) const;
  // Counts the steps of data of a group that is agreed on, and writes the results of chunks that need none.
  uint32_t take_agreed(const ScaleGroup& group);
  static bool is_right(const ScaleGroup& group, uint32_t chunk) {
    return group.prediction.chunks > 0 && group.prediction.of_chunk[chunk] == Prediction::Chunk::kRight;
  }

  const StripeOptions options_;
  const wire::PacketKey key_;
  const std::unique_ptr<const verify::VerifiedSums> sums_;  // null: sums are not verified
  const uint32_t lane_room_;
  std::deque<uint32_t> to_confirm_;  // scale slots whose next round is one of kConfirm

  const SlotLayout layout_;
  std::array<Stream, SlotLayout::kStreams> streams_;
  size_t turn_ = 0;                       // the stream that sends data next
  std::deque<size_t> to_open_;            // the streams of operations that need opening slots, in order
  uint64_t opened_ = 0;                   // groups in opening slots
  std::vector<ScaleGroup> scale_groups_;  // by scale slot

  std::vector<Slot> slots_;  // data slots, then scale slots
  // Ring of the slots that have a payload or a PROBE due, each at most once (Slot::queued), so its size suffices. It may
  // contain a slot whose step has ended since.
  std::vector<uint32_t> urgent_;
  size_t urgent_first_ = 0;
  size_t urgent_count_ = 0;

  // The results of a chunk whose packets are decoded together (ChunkPlan). They are rare: one such chunk at a time.
  struct Held {
    bool busy = false;
    uint8_t arrived = 0;  // packets
    std::array<std::vector<uint8_t>, kMaxPackets> payloads;
  } held_;

  // Results that have overtaken the agreement. It was sent before them, so they are rare unless it is lost.
  struct EarlyResult {
    Step step;
    uint8_t flags = 0;
    std::vector<uint8_t> lanes;
  };
  static constexpr size_t kMostEarlyResults = 16;
  std::unique_ptr<ScaleHistory> history_;  // null: nothing is predicted
  std::vector<EarlyResult> early_;         // of one group; the first so many are in use
  size_t early_count_ = 0;

  std::vector<uint8_t> zeros_;        // the lanes of results without lanes
  std::vector<uint8_t> own_, total_;  // of add_kept_lanes()

  RoundTrip round_trip_;
  std::deque<Operation*> finished_;  // not taken yet
  int64_t next_tick_us_ = 0;
  int64_t last_heard_us_ = 0;
  // How many later steps may finish before an open one is probed. Starts above the reordering within a burst and adapts to
  // the path: several CPUs that send results in bursts reorder by dozens.
  static constexpr uint64_t kMinReorderPackets = 8, kMaxReorderPackets = 128;
  static constexpr uint32_t kProbesPerTick = 8;
  // How often a wrong result is asked for again. A fault on the way back, or in this host, does not repeat itself.
  static constexpr uint32_t kMostRefusals = 3;
  bool lost_since_tick_ = false;
  // A dozen HELLOs. Shorter than any deadline, so that the other ranks are told before their deadlines pass.
  static constexpr int64_t kMulticastTimeoutUs = 2'000'000;
  static constexpr int64_t kLossMemoryUs = 5'000'000;  // ten of the longest timeouts
  int64_t lost_at_us_ = INT64_MIN / 2;

  bool answered_ = false;  // a full-size HELLO, by unicast
  int64_t answered_at_us_ = 0;
  bool multicast_heard_ = false;  // a full-size WELCOME to all
  bool small_welcomed_ = false;
  bool hello_due_ = true;
  uint32_t hellos_sent_ = 0;
  int64_t hello_sent_at_us_ = 0;

  StripeCounters counters_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_STRIPE_H_
