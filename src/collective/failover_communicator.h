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

// For tests that hold a thread up at a certain point. They are empty in production.
struct FailoverHooks {
  std::function<void()> submitted;  // on the thread of all_reduce(): a session works on the operation
  std::function<void()>
      aborting;  // on the thread of abort(): operations have ended, the other ranks do not know yet
  std::function<void()> met;  // all ranks have met at another place; nothing is repeated there yet
};

class FailoverCommunicator final : public Communicator {
 public:
  // `options` are checked.
  static Result<std::unique_ptr<Communicator>> connect(const CommunicatorOptions& options,
                                                       FailoverHooks hooks = {});
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
  using SessionResult = Result<std::unique_ptr<Session>>;

  FailoverCommunicator(const CommunicatorOptions& options, FailoverHooks hooks);

  Work submit(OperationPtr operation);

  // With the lock:
  void start(const OperationPtr& operation, std::span<const TensorView> views);
  void begin_with(std::unique_ptr<Session> session);
  void release_finished();
  void note_failure(uint64_t generation, const Status& status);
  void count_end(const Operation& operation, const Status& status);
  OperationPtr first_due() const;
  std::unique_ptr<Session> take_session(std::unique_lock<std::mutex>& lock);

  std::function<void(const Status&)> failure_callback();
  void on_ended(const OperationPtr& operation, uint64_t generation, const Status& status);
  void end_all();
  void supervise();
  void move_on(std::unique_ptr<Session> lost_session, const Status& why);
  SessionResult meet(const Status& why);
  Status check_moved(const Session& session, uint64_t oldest_kept, uint64_t completed) const;

  const CommunicatorOptions options_;
  const FailoverHooks hooks_;
  SessionOpener opener_;  // the supervisor's and its search's, but during connect() and regroup()
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
  int reports_ = 0;  // calls of abort() that use session_ without the lock
  uint64_t failovers_ = 0;
  uint64_t submitted_ = 0, completed_ = 0, failed_ = 0;  // all-reduces, since connect or regroup
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
