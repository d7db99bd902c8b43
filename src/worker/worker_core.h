// A worker's protocol engine, without I/O: operations in, packets out, packets in, completions out. Time is a
// parameter. Production drives it with sockets (collective), the simulator with a virtual network.
//
// Thread rule: one thread, except stripes' counters, which any thread may read.
#ifndef NETSUM_SRC_WORKER_WORKER_CORE_H_
#define NETSUM_SRC_WORKER_WORKER_CORE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "netsum/status.h"
#include "src/net/packet_io.h"
#include "src/worker/operation.h"
#include "src/worker/stripe.h"

namespace netsum {

struct WorkerOptions {
  int rank = 0;
  int world_size = 1;
  // How many inputs are summed; 0: one of each rank. More where a rank sums for several of its host.
  int summands = 0;
  std::vector<int> names;              // what messages call each rank; empty: by its number
  EncodingOptions encoding;            // of all operations
  std::vector<StripeOptions> stripes;  // equal on all ranks, in the same order; at least one
  // One per stripe, equal on all ranks: the stripes' shares of the chunks, in this ratio (chunk_map.h). At least one
  // is not 0. Empty: all stripes get the same.
  std::vector<uint32_t> stripe_weights;
};

class WorkerCore {
 public:
  explicit WorkerCore(const WorkerOptions& options);

  // True when every stripe has answered a full-size packet: operations can flow.
  bool connected() const;
  // Why not yet: names the stripes that do not answer.
  std::string not_connected_reason() const;

  // Starts an operation; `id` comes back in its completion. Deadline in the time base of `now_us`.
  void submit(uint64_t id, OperationSpec spec);

  // Writes the packets due now to the internal frames and returns them; empty if nothing is due. They stay
  // valid until the next call. At most kBurst at a time: call until it returns nothing.
  static constexpr size_t kBurst = 64;
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
  };
  // Moves the completions since the last call to the end of `out`.
  void take_completions(std::vector<Completion>* out);

  // Ends all operations with `status` and refuses further ones likewise. Only the first call counts.
  void fail(const Status& status);
  const Status& status() const { return status_; }
  bool idle() const { return operations_.empty(); }

  const ChunkMap& chunk_map() const { return *chunk_map_; }
  size_t stripe_count() const { return stripes_.size(); }
  const Stripe& stripe(size_t index) const { return *stripes_[index]; }

 private:
  struct Pending {
    uint64_t id;
    std::unique_ptr<Operation> operation;
  };

  Stripe* stripe_from(const Address& from);
  void complete_finished();
  // The first chunk, by Operation::first_chunk, that no stripe may send yet.
  uint64_t send_limit() const;
  Status timeout_status(int64_t now_us, const Operation& operation) const;

  const WorkerOptions options_;
  std::shared_ptr<const ChunkMap> chunk_map_;
  std::vector<std::unique_ptr<Stripe>> stripes_;
  size_t next_stripe_ = 0;  // where collect() goes on: every stripe gets its turn
  size_t last_from_ = 0;    // stripe of the last packet: packets come in runs
  std::deque<Pending> operations_;
  uint64_t next_number_ = 0;
  uint64_t next_chunk_ = 0;  // of the next operation, the first
  std::vector<Completion> completions_;
  Status status_;

  uint32_t frame_stride_ = 0;
  std::vector<uint8_t> frames_;
  std::vector<OutPacket> outbox_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_WORKER_CORE_H_
