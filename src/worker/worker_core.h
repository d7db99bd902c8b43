// A worker's protocol engine, without I/O: operations in, packets out, packets in, completions out. Time is a
// parameter. Production drives it with sockets (collective), the simulator with a virtual network.
//
// Thread rule: one thread, except stripes' counters, which any thread may read.
#ifndef NETSUM_SRC_WORKER_WORKER_CORE_H_
#define NETSUM_SRC_WORKER_WORKER_CORE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "netsum/status.h"
#include "src/faults/last_contributions.h"
#include "src/net/packet_io.h"
#include "src/worker/core_group.h"
#include "src/worker/in_flight.h"
#include "src/worker/link_balancer.h"
#include "src/worker/loss_balancer.h"
#include "src/worker/operation.h"
#include "src/worker/share_balancer.h"
#include "src/worker/slots/pacer.h"
#include "src/worker/slots/start_gate.h"
#include "src/worker/stripe.h"

namespace netsum {

// What WorkerOptions::pace_bytes_per_s lets through at once: less costs more system calls, since a burst leaves in one. The
// bucket holds half: what collect() has returned may leave as late as the next call, beside what that returns.
inline constexpr uint64_t kPaceBurst = 16;

// A usual WorkerOptions::balance_period.
inline constexpr uint64_t kBalancePeriod = 512;

struct WorkerOptions {
  int rank = 0;
  int world_size = 1;
  // How many inputs are summed; 0: one of each rank. More where a rank sums for several of its host.
  int summands = 0;
  std::vector<int> names;    // what messages call each rank; empty: by its number
  EncodingOptions encoding;  // of all operations
  // Describes an aggregator that cannot combine words (Capabilities), for messages; empty: all can. Equal on all ranks.
  std::string lacks_words;
  std::vector<StripeOptions> stripes;  // equal on all ranks, in the same order; at least one
  // One per stripe, equal on all ranks: the stripes' shares of the chunks, in this ratio (chunk_map.h). At least one
  // is not 0. Empty: all stripes get the same.
  std::vector<uint32_t> stripe_weights;
  // The weights follow what the ranks measure (share_balancer.h) in periods of this many chunks for each stripe, if there
  // are several stripes and each has a weight. 0: they stay as they are. Equal on all ranks.
  uint64_t balance_period = 0;
  // Of this rank's shard: who was the last, so that shares move away from slow links, too (link_balancer.h). Null: not counted.
  // Whether the ranks count it is equal on all.
  std::shared_ptr<const faults::LastContributions> last;
  // What leaves obeys E(tau) <= kPaceBurst full packets + this rate tau, all headers included; a core of a group has its part of
  // both. Stripes in this process do not count. 0: no limit.
  uint64_t pace_bytes_per_s = 0;
  // The first operation of a step waits for the phase (slots/start_gate.h), but not longer than half the time until its deadline:
  // then it starts at once. Then it waits until the aggregators answer that it is the job's turn, at most for a period and half the
  // time until its deadline. A period of 0: none waits. The offset is in the time base of `now_us`.
  int64_t phase_period_us = 0, phase_offset_us = 0;
  // This core handles those of the stripes that are number `core`'s in this group. Null: all.
  std::shared_ptr<CoreGroup> group;
  size_t core = 0;
};

// Why the results of the operation cannot be verified (kUnsupported), or ok. `lane_bits` as in CommunicatorOptions.
Status check_verifiable(const OperationSpec& spec, int lane_bits);
// Why the operation cannot be combined (kUnsupported), or ok. `lacks_words` as in WorkerOptions.
Status check_words(const OperationSpec& spec, const std::string& lacks_words);

class WorkerCore {
 public:
  explicit WorkerCore(const WorkerOptions& options);

  // True when every stripe has answered a full-size packet: operations can flow.
  bool connected() const;
  // Why not yet: names the stripes that do not answer.
  std::string not_connected_reason() const;

  // Starts an operation; `id` comes back in its completion. Deadline in the time base of `now_us`. An operation that the
  // aggregators cannot combine, or whose result cannot be verified though the job demands it, ends with kUnsupported, on all
  // ranks alike.
  void submit(uint64_t id, OperationSpec spec);

  // Writes the packets due now to the internal frames and returns them; empty if nothing is due. They stay
  // valid until the next call. At most kBurst at a time: call until it returns nothing. Twice the full packets of MTU 1500
  // that one segmented message holds (65507 bytes).
  static constexpr size_t kBurst = 88;
  std::span<const OutPacket> collect(int64_t now_us);

  void on_packet(int64_t now_us, const InPacket& packet);
  void on_tick(int64_t now_us);
  // When on_tick() has something to do at the latest; INT64_MAX: never.
  int64_t next_tick_us() const;

  struct Completion {
    uint64_t id = 0;
    Status status;
    uint64_t number = 0;  // of the operation, the same on every rank
    OperationCourse course;
    // All ranks have finished the operations below this number that have ended here.
    uint64_t everywhere = 0;
  };
  // Tells callers of operations with watermarks what has been delivered (Watermarks::State::report_delivered()).
  void report_delivered();
  // Moves the completions since the last call to the end of `out`.
  void take_completions(std::vector<Completion>* out);

  // Ends all operations with `status` and refuses further ones likewise. Only the first call counts.
  void fail(const Status& status);
  const Status& status() const { return status_; }
  // No operation that was submitted is in progress.
  bool idle() const { return waiting_.empty() && operations_.size() == (updates_here() ? 1u : 0u); }
  // As InFlight::visited().
  uint64_t operations_visited() const { return operations_.visited() + waiting_.visited(); }
  // The all-reduce that updates the stripe weights is in flight, here or at another core of the group.
  bool updates_weights() const { return pending_update_.has_value() && !pending_update_->update->answered(); }

  // The signature in the packets of that operation.
  std::optional<uint32_t> signature_of_update() const {
    return pending_update_.has_value() ? std::optional(pending_update_->signature) : std::nullopt;
  }

  // How often the weights have changed. Any thread.
  const Counter& share_changes() const { return share_changes_; }
  // Of the stripes that this core handles.
  size_t stripe_count() const { return stripes_.size(); }
  const Stripe& stripe(size_t index) const { return *stripes_[index]; }
  bool verifies_sums() const { return stripes_.front()->options().sum_key.has_value(); }

 private:
  struct Pending {
    uint64_t id;
    std::unique_ptr<Operation> operation;
  };
  struct Submission {
    uint64_t id;
    OperationSpec spec;
  };
  // The ranks measure how the stripes advance during a period of operations. After its last operation, they start an
  // all-reduce that adds up the measurements. The first kLead operations after it keep the weights. The next one has the
  // new weights, and waits for them if it must. So all ranks change the weights at the same operation.
  struct Period {
    uint64_t operations = 0;
    uint64_t chunks = 0;
    uint64_t chunks_before = 0;    // the last operation
    uint64_t sent = 0;             // chunks_sent() at the period's begin
    std::vector<uint64_t> last;    // by rank: WorkerOptions::last at the period's begin
    std::vector<uint64_t> losses;  // by stripe: CoreGroup::losses(), likewise
  };
  struct PendingUpdate {
    uint64_t effective = 0;  // the number of the first operation with the new weights
    std::shared_ptr<CoreGroup::WeightUpdate> update;
    uint32_t signature = 0;  // of the operation
    uint64_t chunks = 0;     // of what was measured
    bool here = true;        // its operation has not ended here
  };
  static constexpr uint64_t kPeriodOperations = 4, kShortPeriodOperations = 2, kLead = 2;
  static constexpr uint64_t kAhead = 2;  // windows
  // After which a core that is held back by another one of its group reads that one's progress again.
  static constexpr int64_t kRecheckUs = 50;
  static constexpr uint64_t kNoId = UINT64_MAX;  // of updates of the weights

  Stripe* stripe_from(const Address& from);
  // Not if the next operation needs weights that the ranks have not agreed on yet. And if the weights adapt, an operation
  // starts only when few chunks of its stream are left to send, so that a measurement is of what came before.
  bool may_start(const OperationSpec& spec) const;
  void start(uint64_t id, OperationSpec spec);
  void start_waiting(int64_t now_us);
  bool waits_at_gate(int64_t now_us);
  bool waits_for_turn(int64_t now_us, int64_t deadline_us);
  // Of this core's stripes, those whose aggregators other jobs may use.
  void for_shared_stripes(const std::function<void(Stripe&)>& act);
  void enqueue(uint64_t id, std::unique_ptr<Operation> operation);
  void begin_update();
  void take_update();
  void begin_period();
  std::vector<int32_t> measured() const;
  std::vector<int32_t> held_of_shares(std::span<const int32_t> of_stripes) const;
  bool take_losses(std::span<const int32_t> held, std::span<const int32_t> lost, std::span<const int32_t> ns);
  bool take_links(std::span<const int32_t> of_stripes, std::span<const int32_t> ns,
                  std::span<const int32_t> last);
  std::vector<uint32_t> weights() const;
  void note_shares();
  bool has_data_to_send() const;
  // Writes the packets of the stripe that are due, as far as there is room and the pace allows.
  void collect_from(Stripe* stripe, int64_t now_us, const Stripe::Limits& limits);
  bool waits_for_other_cores() const;
  void measure(const Stripe& stripe, int64_t now_us);
  void complete(Operation* operation);
  bool complete_finished(Stripe* stripe);  // false: it has finished none
  bool fail_by_caller();  // of an operation with watermarks; false: the caller has failed none
  void note_delivered(const Operation& operation) const;
  void end_watermarks(const Operation& operation);
  std::string missing_input(uint64_t until) const;
  bool updates_here() const { return pending_update_.has_value() && pending_update_->here; }
  Progress own_progress(size_t stream) const;
  // Of all cores, after noting this one's.
  Progress progress(size_t stream) const;
  uint64_t chunks_sent() const;  // by all stripes, of both streams
  // Of each stream, the first chunk that no stripe may send yet.
  Stripe::Limits send_limits() const;
  uint64_t finished_everywhere() const;
  Status timeout_status(int64_t now_us, const Operation& operation) const;

  const WorkerOptions options_;
  CoreGroup& group_;
  std::shared_ptr<const ChunkMap> chunk_map_;
  std::vector<std::unique_ptr<Stripe>> stripes_;
  std::optional<ShareBalancer> balancer_;  // only if the weights adapt
  std::optional<LossBalancer> losses_;     // likewise
  std::optional<LinkBalancer> links_;      // and there are shards that count who is the last
  Period period_;
  std::optional<PendingUpdate> pending_update_;
  uint64_t updates_begun_ = 0;
  std::vector<int64_t> looked_at_us_;  // by stripe of the job, while it is held back; 0: it is not
  int64_t active_since_us_ = 0;        // 0: no data is due
  int64_t busy_since_us_ = 0;          // 0: there is no operation
  std::optional<Pacer> pacer_;
  int64_t paced_us_ = INT64_MAX;  // when the pace allows the next packet
  std::optional<StartGate> gate_;
  bool at_gate_ = false;            // waiting_ begins with an operation that came while there was none
  bool asks_for_turn_ = false;      // its phase has come
  int64_t phase_us_ = INT64_MAX;    // when it starts at the latest; INT64_MAX: the gate has not been asked
  int64_t idle_since_us_ = 0;       // 0: there is an operation
  int64_t recheck_us_ = INT64_MAX;  // when collect() reads the progress of other cores again
  Counter share_changes_;
  size_t next_stripe_ = 0;  // where collect() goes on: every stripe gets its turn
  size_t last_from_ = 0;    // stripe of the last packet: packets come in runs
  InFlight<Pending> operations_;
  InFlight<Submission> waiting_;               // may_start() was false
  std::vector<const Operation*> watermarked_;  // of operations_, in order
  uint64_t next_number_ = 0;
  std::array<uint64_t, SlotLayout::kStreams> next_chunk_{};  // by stream: of the next operation, the first
  std::vector<Completion> completions_;
  Status status_;

  uint32_t frame_stride_ = 0;
  std::vector<uint8_t> frames_;
  std::vector<OutPacket> outbox_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_WORKER_CORE_H_
