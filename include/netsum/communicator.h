// A Communicator is one rank's membership in a job: it sums tensors over all ranks of the job.
//
// Thread rules: every method may be called from any thread, but all ranks must submit the same operations in
// the same order (as in MPI, NCCL and c10d), so a caller with several threads must order its submissions.
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

// One contiguous piece of memory to be reduced. `input` and `output` may be the same (in place). Apart from that, no
// output may overlap an input or another output of the call: kInvalidArgument. Both must stay valid, and untouched by
// the caller, until the operation has ended.
struct TensorView {
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;  // elements
};

// Counts since connect, or since the last regroup or failover. Bytes are whole datagrams plus their UDP, IP
// and Ethernet headers.
struct CommunicatorStats {
  // All-reduces, without barriers. An operation that is refused at once, for its arguments, counts nowhere.
  // With FailurePolicy::kFailover these three count since connect, or since the last regroup.
  uint64_t operations_submitted = 0;
  uint64_t operations = 0;  // completed: ended without an error
  uint64_t operations_failed = 0;
  uint64_t gradient_bytes = 0;  // bytes of the tensors submitted, on this rank
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  uint64_t packets_sent = 0;
  uint64_t packets_received = 0;
  uint64_t retransmissions = 0;  // payloads sent again
  uint64_t probes = 0;           // header-only questions while waiting
  uint64_t packets_dropped = 0;  // received and refused (wrong check, stale, ...)
  double srtt_us = 0;            // smoothed round-trip time, slowest stripe
  // Traffic to and from each stripe (an aggregator's core, or a rank's embedded shard), in stripe order.
  struct Stripe {
    std::string address;
    uint64_t bytes_sent = 0;
    uint64_t bytes_received = 0;
    bool local = false;  // embedded in this very process: these bytes never reach a link
  };
  std::vector<Stripe> stripes;
  // Packets refused, by the name of the rule that they broke (wire/PROTOCOL.md).
  struct Drop {
    std::string reason;
    uint64_t packets = 0;
  };
  std::vector<Drop> drops;
  // Ranks that the oldest sum lacks, as the aggregator last said; while joining, those that are not here yet.
  std::vector<int> waiting_for;
  TimeHistogram round_trip;         // contributions whose result came without a loss and without a straggler
  TimeHistogram completed, failed;  // operations, from submission to end
  uint64_t failovers = 0;           // to another aggregator, since connect
  std::string metrics_address;      // where this process serves its metrics; empty: nowhere
  // What this rank's embedded shard took in and gave out (zero without one).
  uint64_t shard_bytes_received = 0;
  uint64_t shard_bytes_sent = 0;
  // Tensor bytes copied to, and from, the memory that ranks on one host share. These never reach a link.
  uint64_t shared_memory_bytes_written = 0;
  uint64_t shared_memory_bytes_read = 0;
};

// An operation in progress. Copies share the operation. Dropping every copy does not cancel it.
class NETSUM_EXPORT Work {
 public:
  Work() = default;
  bool valid() const { return state_ != nullptr; }
  bool done() const;
  // Waits for the end of the operation and returns its status. `timeout` bounds this wait only: when it
  // passes first, the result is kTimeout and the operation goes on until its own deadline.
  Status wait() const;
  Status wait(std::chrono::milliseconds timeout) const;
  // Runs `callback` with the status when the operation ends, on the engine thread (or at once, on this
  // thread, if it has ended). It must not block and must not call wait(). At most one per operation.
  void on_done(std::function<void(const Status&)> callback) const;

  struct State;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

struct AllReduceOptions {
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::chrono::milliseconds timeout{0};  // 0: CommunicatorOptions::timeout
};

// How to go on after a failure.
struct RegroupOptions {
  enum class Who {
    kSurvivors,  // those who come: ranks are renumbered densely in the old order
    kAll,        // everybody; a rank whose process died comes back by Communicator::connect
  };
  Who who = Who::kSurvivors;
  // kSurvivors: how many must come; 0: half of them, so that no second group forms of those cut off.
  int min_members = 0;
  // kSurvivors: how long to wait for a further rank after the last one that came.
  std::chrono::milliseconds gather{1'000};
  std::chrono::milliseconds timeout{0};  // 0: CommunicatorOptions::connect_timeout
  // Embedded shards, when the rank that hosted the control service (at first rank 0) is gone: where it is now
  // ("host:port"), the same on all ranks, and whether this rank hosts it.
  std::string root;
  bool hosts_root = false;
};

struct Regrouped {
  int rank = 0;
  int world_size = 1;
  std::vector<int> former_ranks;  // by new rank, the old one
};

class NETSUM_EXPORT Communicator {
 public:
  // Joins the job and waits until every rank has joined and every data path has carried a sum.
  // Errors: kInvalidArgument, kUnreachable, kPermissionDenied, kVersionMismatch, kResourceExhausted, kTimeout
  // (naming the ranks that are missing), kAddressInUse.
  static Result<std::unique_ptr<Communicator>> connect(const CommunicatorOptions& options);

  // Leaves the job; operations in flight end with kAborted.
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // Sums `tensors` elementwise over all ranks. The views are packed back to back into common packets, so many
  // small tensors cost what one of their total size does. All ranks pass the same counts.
  // The result is bit-identical on every rank, and in every run with the same tensors and packet size. Error bound:
  // docs/numerics.md.
  virtual Work all_reduce(std::span<const TensorView> tensors, const AllReduceOptions& options) = 0;
  Work all_reduce(const TensorView& tensor, const AllReduceOptions& options) {
    return all_reduce(std::span(&tensor, 1), options);
  }

  // Returns when every rank has called it. `timeout` 0: CommunicatorOptions::timeout.
  virtual Status barrier(std::chrono::milliseconds timeout) = 0;

  // Ends all operations with kAborted, here and (through the aggregator) on every other rank. Idempotent.
  virtual void abort(const std::string& reason) = 0;

  // After a failure: joins anew, with the ranks that do so too, under another epoch. On success the
  // communicator works again, with the rank and world size returned; what was in flight has ended with an
  // error, perhaps not on all ranks, so the application first makes its state the same everywhere (a
  // broadcast, say). To be called by all who go on; on a communicator that works it breaks the job first. Not
  // while another thread calls all_reduce() or barrier(). After an error it may be called again. Errors:
  // kPeerLost (the others have gone on without this rank), kTimeout, kUnreachable (the aggregator is gone, or
  // rank 0 that the shards' ranks met at), kUnsupported (a hierarchy of aggregators).
  virtual Result<Regrouped> regroup(const RegroupOptions& options) = 0;

  // The error that broke this communicator, or ok. A broken communicator stays broken until regroup().
  virtual Status status() const = 0;

  virtual CommunicatorStats stats() const = 0;

  // One line for people: where the sums happen and why, e.g. "summed by 1 aggregator (10.0.0.9:5151,
  // user-space, 2 cores)" or "summed by 4 embedded shards; no aggregator configured".
  virtual std::string describe() const = 0;
};

}  // namespace netsum

#endif  // NETSUM_COMMUNICATOR_H_
