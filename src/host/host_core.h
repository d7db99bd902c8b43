// Sums over the ranks of one host through shared memory, as seen by one of them, without threads or clock. The counterpart
// of WorkerCore for the share of an operation that does not use the network, or does not use it yet.
//
// Every operation is divided into host blocks, in the same order on all ranks of the host. One host block is summed per
// step, and step s uses segment slot s mod kSlots:
//
//   phase    what                                                              when
//   stage    copies the block of this rank's input to the segment slot         all ranks have freed the slot
//   reduce   an owner sums its portion of all ranks' blocks, if there are      all ranks have staged
//            several hosts over the network
//   take     copies the sum to this rank's output and frees the slot           all owners have reduced
//
// On a single host, a small tensor is summed whole by each rank for itself, which saves a wait. A rank tries the phases in
// the order take, reduce, stage, so that finished blocks do not wait for later ones, and sleeps when none is possible.
//
// Thread rule: one thread; any thread may read the counters.
#ifndef NETSUM_SRC_HOST_HOST_CORE_H_
#define NETSUM_SRC_HOST_HOST_CORE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "netsum/status.h"
#include "src/base/counter.h"
#include "src/host/local_sum.h"
#include "src/host/placement.h"
#include "src/host/segment.h"
#include "src/worker/operation.h"

namespace netsum {

// A portion of a host block. Its inputs, and the memory for its sum, are in the segment slot.
struct PartialSum {
  uint32_t slot = 0;  // the argument of on_network_done()
  OperationSpec spec;
};

struct HostOptions {
  Placement placement;
  int world_size = 1;
  EncodingOptions encoding;       // of all operations
  uint32_t payload_bytes = 1440;  // chunks fit packets of this size; equal on all ranks
  // Starts the sum of a portion over the hosts; needed if there are several.
  std::function<void(PartialSum)> to_network;
};

struct HostCounters {
  Counter bytes_staged;  // copied to the shared memory
  Counter bytes_taken;   // copied from it
};

class HostCore {
 public:
  HostCore(HostOptions options, std::unique_ptr<Segment> segment);

  // Starts an operation, without a `joint` and without a chunk map; `id` comes back in its completion.
  void submit(uint64_t id, OperationSpec spec);

  // Executes one phase that is possible now; false if there is none.
  bool advance();
  // What other ranks must do before advance() can do something: causes of event().
  uint32_t awaited() const;
  FutexEvent& event() { return segment_->event(options_.placement.local); }
  void on_network_done(uint32_t slot, const Status& status);

  void on_tick(int64_t now_us);
  int64_t next_tick_us() const;  // INT64_MAX: never

  struct Completion {
    uint64_t id = 0;
    Status status;
  };
  // Moves the completions since the last call to the end of `out`.
  void take_completions(std::vector<Completion>* out);

  // Ends all operations with `status` and refuses further ones likewise. Only the first call counts.
  void fail(const Status& status);
  const Status& status() const { return status_; }
  bool idle() const { return operations_.empty(); }
  const HostCounters& counters() const { return counters_; }

 private:
  struct Pending {
    uint64_t id = 0;
    std::unique_ptr<Operation> operation;
    size_t staged = 0;  // elements
    bool direct = false;
  };
  struct Step {
    const Pending* pending = nullptr;
    size_t begin = 0;  // elements [begin, begin + count) of the operation
    size_t count = 0;
  };

  size_t ranks() const { return segment_->ranks(); }
  bool alone() const { return options_.placement.hosts.size() == 1; }
  size_t owners() const { return options_.placement.owners; }
  static uint32_t slot_of(uint64_t step) { return static_cast<uint32_t>(step % Segment::kSlots); }
  static uint64_t round_of(uint64_t step) { return step / Segment::kSlots; }
  Step& step(uint64_t number) { return steps_[slot_of(number)]; }

  bool stage();
  bool reduce();
  bool take();
  bool slot_is_free() const;
  Pending* next_to_stage();
  PartialSum portion_of(const Step& step, uint32_t slot, size_t begin, size_t count, uint8_t* sum) const;
  bool sum_here(const PartialSum& portion);
  void reduce_own_portion(const Step& step, uint32_t slot);
  void reduce_directly(const Step& step, uint32_t slot);
  void arrive(Barrier& barrier, size_t expected, FutexEvent::Cause cause);
  Status compare_signatures(const Step& step, uint32_t slot) const;
  Status overflow_status(const Step& step) const;
  std::vector<int> late_ranks() const;
  Status timeout_status(const Operation& operation) const;

  const HostOptions options_;
  const std::unique_ptr<Segment> segment_;
  LocalSum local_sum_;
  std::vector<uint8_t> direct_sum_;

  std::deque<Pending> operations_;
  uint64_t next_number_ = 0;
  Step steps_[Segment::kSlots];
  // The next step of each phase; taken_ <= reduced_ <= staged_ <= taken_ + kSlots.
  uint64_t staged_ = 0;
  uint64_t reduced_ = 0;
  uint64_t taken_ = 0;

  std::vector<Completion> completions_;
  Status status_;
  HostCounters counters_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_HOST_HOST_CORE_H_
