// Collectives of the ranks of one host through shared memory, as seen by one of them, without threads or clock. The
// counterpart of WorkerCore for the share of an operation that does not use the network, or does not use it yet.
//
// Every operation is divided into steps, in the same order on all ranks of the host. Step s uses segment slot s mod kSlots:
//
//   phase    what                                                              when
//   stage    gives this rank's input to the others                             all ranks have freed the slot
//   reduce   computes what this rank computes of the result                    all ranks have staged
//   take     copies what others have computed, and frees the slot              they have computed it, or have read the
//                                                                              input that they read in place
//
// What they do depends on the operation:
//
//   input    copied to the segment slot, a host block at a time; or, on a single host where the kernel lets ranks read each
//            other's memory (peer_memory.h), addresses, and large inputs are read in place
//   result   shared: each owner sums its portion of the block, if there are several hosts over the network, and all ranks
//            copy the sums. last: the rank that stages last sums the block, and all copy the sum, which saves small tensors
//            a wait and all ranks but one the work. own: each rank sums what it receives, which saves small ones that few
//            receive a wait, and copies for reduce-scatter. moved: ranks copy what they receive of what one has; several
//            hosts exchange it as portions
//
// A rank tries the phases in the order take, reduce, stage, so that finished steps do not wait for later ones, and sleeps
// when none is possible. A rank without operations owes the others nothing.
//
// Thread rule: one thread; any thread may read the counters.
#ifndef NETSUM_SRC_HOST_HOST_CORE_H_
#define NETSUM_SRC_HOST_HOST_CORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "netsum/status.h"
#include "src/base/counter.h"
#include "src/host/local_sum.h"
#include "src/host/peer_memory.h"
#include "src/host/placement.h"
#include "src/host/segment.h"
#include "src/worker/in_flight.h"
#include "src/worker/operation.h"

namespace netsum {

// A portion of a host block for the network. Its inputs, and the memory for its sum, are in the segment slot.
struct PartialSum {
  uint32_t slot = 0;  // the argument of on_network_done()
  OperationSpec spec;
};

struct HostOptions {
  Placement placement;
  int world_size = 1;
  EncodingOptions
      encoding;  // of all operations; of several hosts, `floats` of what sums over them: kNo or kInFloat32
  uint32_t payload_bytes = 1440;  // chunks fit packets of this size; equal on all ranks
  // What sums over the hosts takes small operations in float32. Equal on all ranks.
  bool network_adds_floats = false;
  // Starts the sum of a portion over the hosts; needed if there are several.
  std::function<void(PartialSum)> to_network;
  // On one host, operations of so many bytes are read in place, where the kernel permits it; SIZE_MAX: none. From about this
  // size on, that costs less than to copy twice. Equal on all ranks.
  size_t in_place_bytes = size_t{1} << 20;
};

struct HostCounters {
  Counter bytes_staged;         // inputs of this rank that it gave to the others, copied or in place
  Counter bytes_taken;          // read from the shared memory, or from the memory of other ranks
  Counter bytes_read_in_place;  // of these, from the memory of other ranks
  // Of a single host: 1 if large inputs are read in place, 2 if they are copied, 0 while that is not known.
  Counter large_inputs;
};

class HostCore {
 public:
  HostCore(HostOptions options, std::unique_ptr<Segment> segment);

  // Starts an operation, without a `joint` and without a chunk map; `id` comes back in its completion.
  void submit(uint64_t id, OperationSpec&& spec);

  // Executes one phase that is possible now; false if there is none.
  bool advance();
  // What other ranks must do before advance() can do something: causes of event().
  uint32_t awaited() const;
  FutexEvent& event() { return segment_->event(options_.placement.local); }
  void on_network_done(uint32_t slot, const Status& status);

  void on_tick(int64_t now_us);
  int64_t next_tick_us() const;  // INT64_MAX: never

  // As WorkerCore::report_delivered().
  void report_delivered() const {
    for (const Operation* const operation : watermarked_) operation->watermarks().report_delivered();
  }

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
  uint64_t operations_visited() const { return operations_.visited(); }  // as InFlight::visited()
  const HostCounters& counters() const { return counters_; }

 private:
  enum class Result : uint8_t { kShared, kLast, kOwn, kMoved };
  struct Pending {
    uint64_t id = 0;
    std::unique_ptr<Operation> operation;
    size_t staged = 0;  // elements
    // Decided when its first step is staged, alike on all ranks.
    Result result = Result::kShared;
    bool in_place = false;
    // Floating-point elements are added in float32, in the order of the local ranks, and those sums in that of the hosts.
    bool adds_floats = false;
  };
  // Elements of the operation.
  struct Range {
    size_t begin = 0;
    size_t end = 0;
    size_t size() const { return end - begin; }
  };
  // A sum that is not copied out at once, because other ranks may still read what is there.
  struct Edge {
    Range at;
    std::vector<uint8_t> sum;
  };
  struct Step {
    const Pending* pending = nullptr;
    size_t begin = 0;  // elements [begin, begin + count) of the operation
    size_t count = 0;
    // In place: which tensor's address comes first in the slot, and whether others read any input of this rank.
    size_t first_tensor = 0;
    bool lends = false;
    bool was_last = false;  // this rank staged last, and sums if the result is kLast
    std::vector<Edge> edges = {};
  };
  using Inputs = std::vector<const uint8_t*>;  // by local rank

  // A host that waits for one of its own ranks can name it, and does so at the deadline. The operations over the network
  // get this much longer, and the other hosts twice as much, so that the most specific message comes first.
  static constexpr int64_t kNetworkGraceUs = 200'000;

  size_t ranks() const { return segment_->ranks(); }
  size_t local() const { return options_.placement.local; }
  bool alone() const { return options_.placement.hosts.size() == 1; }
  size_t owners() const { return options_.placement.owners; }
  int rank_of(size_t local) const { return options_.placement.local_ranks()[local]; }
  static uint32_t slot_of(uint64_t step) { return static_cast<uint32_t>(step % Segment::kSlots); }
  static uint64_t round_of(uint64_t step) { return step / Segment::kSlots; }
  Step& step(uint64_t number) { return steps_[slot_of(number)]; }
  size_t chunk_of(const Operation& operation) const {
    return operation.encoding().chunk_elements(options_.payload_bytes);
  }

  // Of the sums of an operation in a segment slot, the bytes of an element.
  size_t element_of_sums(const Pending& pending) const {
    return pending.adds_floats && !alone() ? sizeof(float) : size_of(pending.operation->type());
  }

  bool stage();
  bool reduce();
  bool begin_reduce(const Step& current, uint32_t slot);
  bool await_last(const Step& current, uint32_t slot);
  bool take();
  bool slot_is_free() const;
  bool has_more_to_stage() const { return staging_ < operations_.next_place(); }
  void plan(Pending* pending);
  bool adds_floats(const Operation& operation) const;
  size_t most_elements(const Pending& pending) const;
  void publish_addresses(Step* step, uint32_t slot);
  void arrive(Barrier& barrier, size_t expected, FutexEvent::Cause cause);
  void notify_others(uint32_t causes);

  // host_core_reduce.cc
  Range to_reduce(const Step& step) const;
  Range portion_of(const Step& step) const;
  Range received_of(const Step& step) const;
  void reduce_some(Step* step, uint32_t slot);
  void send_portion(const Step& step, uint32_t slot);
  const uint8_t* finished_sum(const Step& step, uint32_t slot);
  int divisor_of(const Operation& whole) const {
    return whole.op() == ReduceOp::kAvg ? options_.world_size : 1;
  }
  void sum_some(Step* step, uint32_t slot);
  void finish_sum(Step* step, uint32_t slot, Range piece, bool fits);
  void move_some(const Step& step, uint32_t slot);
  void end_reduce(const Step& step, uint32_t slot, bool sent);
  size_t piece_elements(const Step& step) const;
  bool find_inputs(const Step& step, uint32_t slot, Range piece, Inputs* inputs);
  const uint8_t* own_input(const Step& step, Range piece, uint8_t* to) const;
  bool read_input(const Step& step, uint32_t slot, size_t rank, Range piece, uint8_t* to);
  uint64_t address_of(const Step& step, uint32_t slot, size_t rank, const Run& run) const;
  bool is_here(int rank) const;
  OperationSpec sum_of(const Step& step, const Inputs& inputs, Range piece, uint8_t* sum) const;
  Status compare_signatures(const Step& step, uint32_t slot) const;
  Status overflow_status(const Step& step) const;
  Status unreadable_status(size_t rank) const;

  std::vector<int> late_ranks() const;
  Status timeout_status(const Operation& operation) const;

  const HostOptions options_;
  const std::unique_ptr<Segment> segment_;
  PeerMemory peers_;
  LocalSum local_sum_;
  const size_t piece_bytes_;
  std::vector<uint8_t> own_sum_;      // a piece of the result
  Inputs inputs_;                     // of the piece that is summed
  std::vector<uint8_t> read_pieces_;  // a piece of each rank's input
  std::vector<iovec> remote_;
  std::vector<bool> read_from_;  // in this step, by local rank

  InFlight<Pending> operations_;
  std::vector<const Operation*> watermarked_;  // of them, in order
  uint64_t staging_ = 0;                       // the place of the first operation that is not staged whole
  uint64_t next_number_ = 0;
  Step steps_[Segment::kSlots];
  // The next step of each phase; taken_ <= reduced_ <= staged_ <= taken_ + kSlots.
  uint64_t staged_ = 0;
  uint64_t reduced_ = 0;
  uint64_t taken_ = 0;
  // Of the step in the phase of reducing: begun, and what is left of it. A call does a part of a long one.
  bool reducing_ = false;
  Range left_;

  std::vector<Completion> completions_;
  Status status_;
  HostCounters counters_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_HOST_HOST_CORE_H_
