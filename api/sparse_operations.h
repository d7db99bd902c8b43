// Runs the sparse all-reduces of a communicator (src/sparse/reduction.h), on a thread of its own, as sequences of ordinary
// operations.
//
// All ranks must submit the same operations in the same order, and which ones a sparse all-reduce consists of depends on
// results. So operations that the caller submits after it wait here until it has issued its last one. They wait for that
// only, not for its result.
#ifndef NETSUM_API_SPARSE_OPERATIONS_H_
#define NETSUM_API_SPARSE_OPERATIONS_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/work_state.h"
#include "netsum/communicator.h"
#include "netsum/sparse.h"
#include "src/sparse/reduction.h"
#include "src/worker/operation.h"

namespace netsum {

class SparseOperations {
 public:
  struct Owner {
    // Starts an operation at once. Any thread.
    std::function<Work(OperationSpec spec, std::chrono::milliseconds timeout)> submit;
    std::function<void(const std::string& reason)> abort;
    std::function<int()> rank, world_size;
  };
  // `timeout`: that of operations that name none.
  SparseOperations(Owner owner, std::chrono::milliseconds timeout);
  // The owner's operations have ended, and stop() was called. What is left here ends with kAborted.
  ~SparseOperations();

  // Starts the thread. To be called once, before anything else. kResourceExhausted: there is none.
  Status begin();

  struct Request {
    // Called on the thread of this class.
    std::function<std::unique_ptr<sparse::Tensor>()> make_tensor;
    sparse::Settings settings;  // `op` and `mode`
    uint64_t key = 0;           // of the tensor's profile; equal on all ranks
    std::chrono::milliseconds timeout{0};
    std::function<void(const SparseStats&)> on_sent;  // SparseOptions::on_sent
  };
  Work start(Request request);
  // An ordinary operation.
  Work submit(OperationSpec spec, std::chrono::milliseconds timeout);

  // Waits until all sparse operations, and what waits in line behind them, have ended, at most until `deadline`.
  void flush(std::chrono::steady_clock::time_point deadline);
  // No operation is submitted from here on.
  void stop();
  // For a new session, with perhaps other ranks: waits until all sparse operations have ended, which requires that submit()
  // of the owner refuses operations, and forgets what they have shown.
  void reset();

  SparseStats stats() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Operation;
  using OperationPtr = std::shared_ptr<Operation>;
  struct Event {
    OperationPtr operation;
    uint64_t number;
    Status status;
  };
  // What other threads use, perhaps after the end of this object. Nothing of a request may be destroyed with the mutex locked: what
  // it refers to is the caller's, and may take locks, such as Python's, whose owners wait for this one.
  struct Mailbox {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Event> events;
  };
  struct Waiting {  // an ordinary operation, unless `sparse` is set
    OperationSpec spec;
    std::shared_ptr<Work::State> work;
    Clock::time_point deadline;
    OperationPtr sparse;
  };

  std::chrono::milliseconds time_left(Clock::time_point deadline) const;
  Work wait_in_line(Waiting waiting);
  void run();
  bool has_work() const;
  bool is_quiet() const { return !is_busy_ && operations_.empty(); }  // with the mailbox's mutex
  void handle(const Event& event);
  void advance();
  void begin_reduction(const OperationPtr& operation);
  void issue(const OperationPtr& operation, const sparse::SubOperation& sub_operation);
  void wait(std::unique_lock<std::mutex>* lock);
  void finish_if_done(const OperationPtr& operation);

  const Owner owner_;
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();

  // Used by the thread only, or while it waits.
  std::unordered_map<uint64_t, sparse::Profile> profiles_;
  std::vector<sparse::Reduction::Part> spare_parts_;
  bool combines_bits_ = true;
  Work awaited_;  // an operation on which the next one depends, or the end of the last sparse one
  Work last_;     // the last one issued, if it is small

  // With the mailbox's mutex:
  std::deque<Waiting> line_;
  OperationPtr issuing_;                // the sparse operation that has not issued all
  std::list<OperationPtr> operations_;  // sparse ones that have not ended, without those in line
  bool is_busy_ = false;                // operations must wait in line
  bool stop_ = false;
  SparseStats stats_;

  std::thread thread_;
};

}  // namespace netsum

#endif  // NETSUM_API_SPARSE_OPERATIONS_H_
