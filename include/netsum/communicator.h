// A Communicator is one rank's membership in a job. It runs collectives over all ranks of the job: it sums tensors, and
// moves bytes.
//
// Threads: any thread may call any method, except during regroup(). All ranks must submit the same operations in the
// same order (as in MPI, NCCL and c10d), so a caller with several threads must order its submissions.
//
// Processes: a communicator belongs to the process that has connected it. In a child that was forked since then, all calls
// that return an error fail with kAborted, and neither abort() nor the destructor touches the job. The same is true of a Work that had
// not ended when the child was forked.
//
// Errors are returned as Status or Result, or by the Work of an operation; nothing throws. A failed operation, unless
// it was refused for its arguments, breaks the communicator: later operations fail with the same error until
// regroup() succeeds.
#ifndef NETSUM_COMMUNICATOR_H_
#define NETSUM_COMMUNICATOR_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "netsum/export.h"
#include "netsum/options.h"
#include "netsum/status.h"
#include "netsum/time_histogram.h"
#include "netsum/types.h"

namespace netsum {

class Watermarks;  // watermarks.h

// A contiguous array of elements to reduce. `input` and `output` may be equal (in place). Otherwise no output may
// overlap an input or another output of the same call (kInvalidArgument). Both must stay valid, and the caller must not
// modify them, until the operation has ended.
struct TensorView {
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;  // elements
  // Identifies the tensor across operations, so that an encoding can keep state for it: a number that the caller uses
  // for no other tensor, equal on all ranks. 0: no identity.
  uint64_t id = 0;
};

// Bytes that a collective moves unchanged, of any type. Where this rank contributes them, `input` has them; where it
// receives them, they are written to `output`. The other pointer is ignored, and may be null. `input` and `output` may be
// equal, and a rank that does both may leave `output` null, because it has the bytes. Otherwise no output may overlap an
// input or another output of the same call. The memory must stay valid, as in TensorView.
struct BufferView {
  const void* input = nullptr;
  void* output = nullptr;
  size_t bytes = 0;
};

// Bursts of packets in one direction. Bytes are those of frames: with UDP, IP and Ethernet headers. Times are those at which
// this process has received or sent them. Figures of several threads are summed, and are then upper bounds.
struct Bursts {
  // The longest queues that servers of 1/16, 2/16, ... of the link's rate would have had. Empty: the rate is unknown.
  std::vector<uint64_t> backlog_bytes;
  uint64_t bytes = 0;
  uint64_t largest_ms_bytes = 0;    // the most in a millisecond ...
  uint64_t largest_10ms_bytes = 0;  // ... and in ten
  // How many milliseconds had up to 1 KiB, 2 KiB, 4 KiB, ...; the last element: more. Empty ones do not count.
  std::vector<uint64_t> milliseconds;
};

// Counts since connect(), or since the last regroup or failover. Unless noted otherwise, bytes are those of whole
// datagrams, including their UDP, IP and Ethernet headers.
struct CommunicatorStats {
  // Collectives, without barriers and without operations that were refused for their arguments. With
  // FailurePolicy::kFailover these three are not reset by a failover.
  uint64_t operations_submitted = 0;
  uint64_t operations = 0;  // completed without an error
  uint64_t operations_failed = 0;
  uint64_t gradient_bytes = 0;  // bytes of all tensors and parts of the collectives that this rank submitted
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  uint64_t packets_sent = 0;
  uint64_t packets_received = 0;
  uint64_t retransmissions = 0;  // contributions sent again
  uint64_t probes = 0;           // PROBE packets sent, because a result was overdue
  // Of the packets sent, and of those of this rank's shard, those that this host's kernel did not take: its buffer was full,
  // there was no route, or they were longer than the MTU of the interface. They are lost, and repeated.
  uint64_t sends_refused = 0;
  uint64_t share_changes = 0;  // how often the shares of the stripes have been corrected
  uint64_t zero_chunks = 0;    // for which no data was sent, because they were zero on all ranks
  // Chunks whose data was sent with predicted scales, and those of them that were sent again because a prediction was wrong.
  uint64_t scales_predicted = 0;
  uint64_t scales_mispredicted = 0;
  // Verify::kBoth, kSum: results whose tag was right, and results that were not taken because it was wrong.
  uint64_t sums_verified = 0;
  uint64_t sums_refused = 0;
  // The refused results by stripe, since connect(): failovers and regroups do not reset them. Only stripes that have had some.
  struct WrongSums {
    std::string aggregator;  // as in CommunicatorOptions::aggregators; "hosts": an embedded shard
    uint32_t stripe = 0;     // the number in messages of kWrongSum
    std::string address;     // of the stripe
    uint64_t results = 0;
  };
  std::vector<WrongSums> wrong_sums;
  uint64_t packets_dropped = 0;  // received and refused; `drops` has the reasons
  double srtt_us = 0;            // smoothed round-trip time of the slowest stripe, in microseconds
  // Traffic with each stripe (a core of an aggregator, or a rank's embedded shard) that has a share, in stripe order.
  struct Stripe {
    std::string address;
    uint64_t bytes_sent = 0;
    uint64_t bytes_received = 0;
    bool local = false;  // this process's own shard: the bytes never reach a link
    double share = 0;    // of the chunks that it sums, 0 to 1
  };
  std::vector<Stripe> stripes;
  // Refused packets, by the name of the rule that they broke (wire/PROTOCOL.md, section 3).
  struct Drop {
    std::string reason;
    uint64_t packets = 0;
  };
  std::vector<Drop> drops;
  // Ranks that the oldest sum waits for, according to the aggregator's last STATUS; while joining, ranks that have not
  // joined yet.
  std::vector<int> waiting_for;
  TimeHistogram round_trip;         // from contribution to result, if no packet was lost and no rank was late
  TimeHistogram completed, failed;  // operations, from submission to end
  uint64_t failovers = 0;           // to another aggregator, since connect()
  std::string metrics_address;      // where this process serves its metrics; empty: nowhere
  Bursts sent, received;            // by this rank, without what passes between it and its own shard
  // Traffic of this rank's embedded shard; 0 without one.
  uint64_t shard_bytes_received = 0;
  uint64_t shard_bytes_sent = 0;
  // Tensor bytes copied to and from the memory that the ranks of a host share. They never reach a link.
  uint64_t shared_memory_bytes_written = 0;
  uint64_t shared_memory_bytes_read = 0;
};

// A handle of an operation in progress. Copies refer to the same operation. Destroying all copies does not cancel it.
// Except for valid(), methods require a valid handle. Any thread may call them.
class NETSUM_EXPORT Work {
 public:
  Work() = default;
  bool valid() const { return state_ != nullptr; }  // false for a default-constructed handle
  bool done() const;                                // whether wait() would return at once; does not block
  // Waits until the operation ends and returns its status. `timeout` bounds this wait only: if it passes first, the
  // result is kTimeout, and the operation continues until its own deadline.
  Status wait() const;
  Status wait(std::chrono::milliseconds timeout) const;
  // Calls `callback` with the status when the operation ends, on the engine thread or one that is in wait(); or at once,
  // on the calling thread, if the operation has ended. The callback must not block, call wait() or take a lock that a
  // thread holds in wait(). At most one callback per operation.
  void on_done(std::function<void(const Status&)> callback) const;

  struct State;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

// Of collectives that move bytes.
struct CollectiveOptions {
  std::chrono::milliseconds timeout{0};  // 0: CommunicatorOptions::timeout
  // What the bytes are, in the caller's own numbers, for example their element type. Ranks compare it.
  uint32_t tag = 0;
  std::shared_ptr<Watermarks> watermarks = nullptr;  // null: all of the input is there
};

// Of collectives that sum.
struct ReduceOptions {
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::chrono::milliseconds timeout{0};  // 0: CommunicatorOptions::timeout
  // What the caller does with inputs or results besides, in its own numbers. Ranks compare it.
  uint32_t tag = 0;
  // The larger, the more urgent; ranks compare it. Once an operation has had another one than 0, until regroup(), operations start in
  // the order of their priorities, which the ranks agree on. Counted from when all ranks have submitted an urgent one, less urgent
  // ones delay it by a credit of 16 MiB at most, adapted to the network; those are not starved. Operations that do not sum have
  // priority 0. Only all-reduces without watermarks are cut into pieces: another operation delays as a whole. Results keep their
  // bits. Pieces, and all-gathers by which the ranks agree, count as operations in statistics.
  int32_t priority = 0;
  std::shared_ptr<Watermarks> watermarks = nullptr;  // null: all of the input is there
};
using AllReduceOptions = ReduceOptions;

// How to continue after a failure.
struct RegroupOptions {
  enum class Who {
    kSurvivors,  // the ranks that call regroup(), renumbered from 0 in the old order
    kAll,        // all ranks; a new process of a lost rank joins by Communicator::connect()
  };
  Who who = Who::kSurvivors;
  // kSurvivors: how many ranks are required. 0: half of them, so that ranks that were disconnected cannot form a
  // second job. See RegroupRule (regroup.h).
  int min_members = 0;
  // kSurvivors: how long to wait for another rank after the most recent arrival.
  std::chrono::milliseconds gather{1'000};
  std::chrono::milliseconds timeout{0};  // 0: CommunicatorOptions::connect_timeout
  // Embedded shards only, if the rank that hosted the control service (initially rank 0) is lost: the new "host:port"
  // of the service, the same on all ranks, and whether this rank hosts it.
  std::string root;
  bool hosts_root = false;
};

// The result of a regroup.
struct Regrouped {
  int rank = 0;                   // this rank's new number
  int world_size = 1;             // the new number of ranks
  std::vector<int> former_ranks;  // former_ranks[r] is the old number of the new rank r
};

class NETSUM_EXPORT Communicator {
 public:
  // Joins the job. Blocks until every rank has joined and every data path has carried a sum, at most
  // CommunicatorOptions::connect_timeout. Errors: kInvalidArgument, kUnreachable, kPermissionDenied, kVersionMismatch,
  // kResourceExhausted, kTimeout (naming the missing ranks), kAddressInUse.
  static Result<std::unique_ptr<Communicator>> connect(const CommunicatorOptions& options);

  // Leaves the job. Operations in flight get a second to end, for other ranks may need them, and then end with kAborted.
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // Starts an all-reduce: each element of an output becomes the sum (or average, minimum, ...) of the elements at its
  // position in the inputs of all ranks. All ranks must pass the same number of tensors with the same counts. The tensors share
  // packets, so many small tensors cost as much as one of their total size. `tensors` itself need not outlive the call.
  // Invalid arguments are reported by the Work, which then ends at once; nothing is sent.
  // Errors: kInvalidArgument (null or overlapping memory, too many elements), kUnsupported (type, operator), kTimeout,
  // kPeerLost, kAggregatorLost, kMismatch, kOverflow, kAborted.
  // The result is bit-identical on every rank, and in every run with the same tensors and packet size. Error bound:
  // docs/numerics.md.
  virtual Work all_reduce(std::span<const TensorView> tensors, const AllReduceOptions& options) = 0;
  Work all_reduce(const TensorView& tensor, const AllReduceOptions& options) {
    return all_reduce(std::span(&tensor, 1), options);
  }

  // The other collectives. What all_reduce() says of threads, arguments, errors and order holds for them as well: all
  // ranks submit the same collectives with the same root, number of parts and sizes, in the same order. Ranks that differ
  // in any of it all get kMismatch. Parts of 0 bytes and of 0 elements are legal; an operation without any element ends at
  // once. docs/programs.md describes what each costs.

  // The bytes of rank `root` arrive at all ranks. The buffers share packets.
  virtual Work broadcast(std::span<const BufferView> buffers, int root, const CollectiveOptions& options) = 0;
  // parts[r] is contributed by rank r, and arrives at all ranks. One part for each rank; sizes may differ between parts.
  virtual Work all_gather(std::span<const BufferView> parts, const CollectiveOptions& options) = 0;
  // As all_gather(), to rank `root` alone.
  virtual Work gather(std::span<const BufferView> parts, int root, const CollectiveOptions& options) = 0;
  // Rank `root` contributes all parts, and parts[r] arrives at rank r.
  virtual Work scatter(std::span<const BufferView> parts, int root, const CollectiveOptions& options) = 0;
  // As all_reduce(), but the result is written at rank `root` alone.
  virtual Work reduce(std::span<const TensorView> tensors, int root, const ReduceOptions& options) = 0;
  // parts[r] is summed over all ranks, and the sum is written at rank r alone. The result has the bits of an
  // all_reduce() of one tensor that consists of all parts.
  virtual Work reduce_scatter(std::span<const TensorView> parts, const ReduceOptions& options) = 0;

  // Starts a barrier, which ends when every rank has started it. Errors as for all_reduce().
  virtual Work start_barrier(std::chrono::milliseconds timeout) = 0;
  // The same, and blocks until it has ended. `timeout` 0: CommunicatorOptions::timeout.
  Status barrier(std::chrono::milliseconds timeout) { return start_barrier(timeout).wait(); }

  // Ends all operations of the job with kAborted, here and, through the aggregator, on every other rank. `reason`
  // appears in their error messages. Idempotent.
  virtual void abort(const std::string& reason) = 0;

  // Continues after a failure: joins again, together with the other ranks that call it, under a new epoch. Every rank
  // that continues must call it. On success the communicator works again, with the returned rank and world size.
  // Operations that were in flight have ended, possibly with success on some ranks and with an error on others, so the
  // application must first make its state equal on all ranks, for example by a broadcast(). On a communicator that is not
  // broken, regroup() first aborts the job. No other thread may call any collective at the same time. After
  // an error it may be called again. Errors: kPeerLost (the other ranks continued without this one), kTimeout,
  // kUnreachable (the aggregator is lost or, with embedded shards, the rank that hosted the control service),
  // kUnsupported (a hierarchy of aggregators).
  virtual Result<Regrouped> regroup(const RegroupOptions& options) = 0;

  // The error that broke this communicator, or ok.
  virtual Status status() const = 0;

  virtual CommunicatorStats stats() const = 0;

  // One line for humans that says where the sums are made and why, such as "summed in the network by 1 aggregator
  // (10.0.0.9:5151: user-space, 2 cores)". Programs should not parse it.
  virtual std::string describe() const = 0;
};

}  // namespace netsum

#endif  // NETSUM_COMMUNICATOR_H_
