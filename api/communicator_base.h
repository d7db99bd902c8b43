// What all communicators have in common. Each collective becomes an OperationSpec here; below, nothing distinguishes
// collectives but the role.
//
// A communicator belongs to the process that has made it. A child that was forked later has no engine threads, and its sockets
// are gone (src/base/forked_children.h), but memory that it shares with other ranks is mapped. So all calls are refused there, and
// `delete` neither leaves the job nor joins a thread.
#ifndef NETSUM_API_COMMUNICATOR_BASE_H_
#define NETSUM_API_COMMUNICATOR_BASE_H_

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "api/sparse_operations.h"
#include "netsum/communicator.h"
#include "netsum/sparse.h"
#include "src/base/forked_children.h"
#include "src/worker/operation.h"

namespace netsum {

class CommunicatorBase : public Communicator {
 public:
  // By `delete`, instead of the destructor, which it calls except in a child.
  static void operator delete(CommunicatorBase* communicator, std::destroying_delete_t);

  Work all_reduce(std::span<const TensorView> tensors, const AllReduceOptions& options) final;
  Work broadcast(std::span<const BufferView> buffers, int root, const CollectiveOptions& options) final;
  Work all_gather(std::span<const BufferView> parts, const CollectiveOptions& options) final;
  Work gather(std::span<const BufferView> parts, int root, const CollectiveOptions& options) final;
  Work scatter(std::span<const BufferView> parts, int root, const CollectiveOptions& options) final;
  Work reduce(std::span<const TensorView> tensors, int root, const ReduceOptions& options) final;
  Work reduce_scatter(std::span<const TensorView> parts, const ReduceOptions& options) final;
  Work start_barrier(std::chrono::milliseconds timeout) final;
  void abort(const std::string& reason) final;
  Result<Regrouped> regroup(const RegroupOptions& options) final;
  Status status() const final;
  CommunicatorStats stats() const final;
  std::string describe() const final;

  // netsum/sparse.h
  Work sparse_all_reduce(const TensorView& tensor, const SparseOptions& options);
  Work sparse_all_reduce(const CooView& input, CooAllocator allocate, const SparseOptions& options);
  SparseStats sparse_stats() const;

  // submit(), for a communicator that wraps this one.
  Work hand_on(OperationSpec&& spec, std::chrono::milliseconds timeout) {
    return submit(std::move(spec), timeout);
  }

  using Deadline = std::chrono::steady_clock::time_point;
  // Before the process exits without destroying this, these two: other ranks may need what this one has not sent yet, and answers of
  // its shard.
  // Waits until all operations have ended, at most until `deadline`.
  void flush(Deadline deadline);
  // As Session::linger().
  virtual void linger(Deadline deadline) = 0;

 protected:
  // `timeout`: that of operations that name none.
  explicit CommunicatorBase(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  // Checks the operation (tensor_check.h) and starts it. `timeout` 0: CommunicatorOptions::timeout. The deadline of
  // `spec` is not set. Any thread.
  virtual Work submit(OperationSpec&& spec, std::chrono::milliseconds timeout) = 0;

  // abort(), regroup(), status(), stats() and describe(), in the process that has made this.
  virtual void abort_job(const std::string& reason) = 0;
  virtual Result<Regrouped> regroup_job(const RegroupOptions& options) = 0;
  virtual Status job_status() const = 0;
  virtual CommunicatorStats job_stats() const = 0;
  virtual std::string describe_job() const = 0;

  // Must be called at the begin of the destructor: no operation is submitted from here on. Other ranks may need this rank's part
  // of operations in flight, which get a second to end.
  void stop();
  // As flush(), of what has passed submit().
  virtual void flush_submitted(Deadline deadline) = 0;
  // Must be called by regroup_job() when the old session has ended and submit() refuses operations.
  void reset_sparse();
  std::string describe_sparse() const;

 private:
  Work move(Collective collective, std::span<const BufferView> buffers, int root,
            const CollectiveOptions& options);
  Work sum(Collective collective, std::span<const TensorView> tensors, int root,
           const ReduceOptions& options);
  // Checks the process and, which the job determines, the root and the number of parts.
  Work check_and_submit(OperationSpec&& spec, std::chrono::milliseconds timeout);
  Work start_sparse(SparseOperations::Request request, const SparseOptions& options, uint64_t key);
  Status begin_sparse();
  SparseOperations* sparse() const { return running_sparse_.load(std::memory_order_acquire); }
  bool is_forked() const { return forked_children::process_id() != process_; }
  Status refusal_in_child() const;

  const pid_t process_ = forked_children::process_id();
  const std::chrono::milliseconds timeout_;
  std::mutex sparse_mutex_;                   // while it is made
  std::unique_ptr<SparseOperations> sparse_;  // from the first sparse operation on
  std::atomic<SparseOperations*> running_sparse_ = nullptr;
};

}  // namespace netsum

#endif  // NETSUM_API_COMMUNICATOR_BASE_H_
