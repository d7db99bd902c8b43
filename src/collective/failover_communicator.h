// A communicator that outlives its aggregator. It keeps the inputs of every operation until all ranks have
// finished it. When the aggregator is lost, the ranks meet at the next one, tell each other how far they have
// come, and repeat what not all have finished: to the caller's tensors where that had not ended, to memory of
// our own where it had. Sums depend neither on who adds nor on the order, so the bits are the same.
#ifndef NETSUM_SRC_COLLECTIVE_FAILOVER_COMMUNICATOR_H_
#define NETSUM_SRC_COLLECTIVE_FAILOVER_COMMUNICATOR_H_

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "netsum/communicator.h"
#include "src/collective/finished_everywhere.h"
#include "src/collective/session.h"
#include "src/collective/session_opener.h"

namespace netsum {

class FailoverCommunicator final : public Communicator {
 public:
  // `options` are checked.
  static Result<std::unique_ptr<Communicator>> connect(const CommunicatorOptions& options);
  ~FailoverCommunicator() override;

  int rank() const override { return opener_.rank(); }
  int world_size() const override { return opener_.world_size(); }
  Work all_reduce(std::span<const TensorView> tensors, const AllReduceOptions& options) override;
  Status barrier(std::chrono::milliseconds timeout) override;
  void abort(const std::string& reason) override;
  Result<Regrouped> regroup(const RegroupOptions& options) override;
  Status status() const override;
  CommunicatorStats stats() const override;
  std::string describe() const override;

 private:
  struct Operation;
  using OperationPtr = std::shared_ptr<Operation>;
  struct Started {  // in a session
    OperationPtr operation;
    Work work;
    uint64_t generation = 0;
  };

  explicit FailoverCommunicator(const CommunicatorOptions& options);

  // With the lock:
  Started start(const OperationPtr& operation, std::span<const TensorView> views);
  void release_finished();
  void note_failure(uint64_t generation, const Status& status);

  void begin_with(std::unique_ptr<Session> session);
  std::function<void(const Status&)> failure_callback();
  void watch(const Started& started);
  void on_ended(const OperationPtr& operation, uint64_t generation, const Status& status);
  void end_all();
  void supervise();
  Result<std::unique_ptr<Session>> meet(const Status& why);
  Status check_moved(const Session& session, uint64_t oldest_kept, uint64_t completed) const;

  const CommunicatorOptions options_;
  SessionOpener opener_;  // the supervisor's, but during connect() and regroup()
  std::mutex regroup_mutex_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<Session> session_;  // null while there is none
  uint64_t generation_ = 0;           // of the latest session
  uint32_t payload_bytes_ = 0;        // of every session
  Status failure_;                    // for good, until regroup()
  std::optional<Status> lost_;        // why the supervisor has to look for another aggregator
  bool moving_ = false;               // it does
  bool stop_ = false;
  uint64_t failovers_ = 0;
  // Operations from the oldest that some rank may not have finished on, in order.
  std::deque<OperationPtr> kept_;
  uint64_t next_number_ = 0;
  uint64_t first_of_session_ = 0;
  uint64_t ended_ = 0;  // all below, from there on, have ended in this session
  std::optional<FinishedEverywhere> everywhere_;

  std::thread supervisor_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_COLLECTIVE_FAILOVER_COMMUNICATOR_H_
