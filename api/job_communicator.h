// The communicator of a job: it has one session after another. A failure ends the session, and is reported to the caller, who may
// regroup.
//
// With failover it outlives its aggregator. It keeps the inputs of every operation until all ranks have finished it. When the
// aggregator is lost, the ranks meet at the next one, agree on the first operation that not all have finished, and repeat
// the operations from there: into the caller's tensors if the operation had not ended here, otherwise into memory of this
// class. Sums do not depend on the aggregator or the order, so the bits are the same. Without failover it keeps nothing, and
// has no thread.
#ifndef NETSUM_API_JOB_COMMUNICATOR_H_
#define NETSUM_API_JOB_COMMUNICATOR_H_

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "api/communicator_base.h"
#include "api/kept_operation.h"
#include "api/prioritised_operations.h"
#include "api/relays.h"
#include "netsum/communicator.h"
#include "session/session.h"
#include "session/session_factory.h"
#include "src/base/deadline_heap.h"

namespace netsum {

// Called at certain points, so that tests can hold a thread there. Empty in production.
struct FailoverHooks {
  // On the thread of the caller: a session works on the operation.
  std::function<void()> submitted;
  // On the thread of abort(): operations have ended, the other ranks do not know yet.
  std::function<void()> aborting;
  // On a session's thread, which is about to report that an operation has failed.
  std::function<void()> failing;
  // On the supervisor's thread: a loss has been noted, and nothing follows from it yet.
  std::function<void()> lost;
  // All ranks have joined at another aggregator; nothing is repeated yet.
  std::function<void()> met;
};

class JobCommunicator final : public CommunicatorBase {
 public:
  // `options` are checked. `relays`: this rank's, if it has any.
  static Result<std::unique_ptr<CommunicatorBase>> connect(const CommunicatorOptions& options,
                                                           FailoverHooks hooks = {},
                                                           std::unique_ptr<Relays> relays = nullptr);
  ~JobCommunicator() override;

  int rank() const override { return factory_.rank(); }
  int world_size() const override { return factory_.world_size(); }
  void linger(Deadline deadline) override;

 protected:
  Work submit(OperationSpec&& spec, std::chrono::milliseconds timeout) override;
  void abort_job(const std::string& reason) override;
  Result<Regrouped> regroup_job(const RegroupOptions& options) override;
  Status job_status() const override;
  CommunicatorStats job_stats() const override;
  std::string describe_job() const override;
  void flush_submitted(Deadline deadline) override;

 private:
  using OperationPtr = std::shared_ptr<KeptOperation>;
  using SessionResult = Result<std::unique_ptr<Session>>;

  JobCommunicator(const CommunicatorOptions& options, FailoverHooks hooks);
  bool moves() const { return options_.on_failure == FailurePolicy::kFailover; }
  Status start_threads();

  // Why the operation is refused for its arguments, or ok: the same on all ranks. With failover also wherever the job has moved
  // meanwhile: what is refused gets no number, because sessions do not number it either.
  Status check(const OperationSpec& spec) const;
  size_t chunk_elements(const OperationSpec& spec) const;
  Work submit_now(OperationSpec&& spec, std::chrono::milliseconds timeout);
  Work submit_kept(OperationPtr operation);

  // With the lock:
  void start(const OperationPtr& operation, OperationSpec spec);
  void begin_with(std::unique_ptr<Session> session);
  void release_finished(uint64_t everywhere);
  void note_failure(uint64_t session_number, const Status& status);
  void count_end(const KeptOperation& operation, const Status& status);
  void note_end(KeptOperation* operation);
  void forget_first();

  std::function<void(const Status&)> failure_callback();
  // Calls use(session) without the lock, which is locked before and after; the session stays meanwhile.
  template <typename Use>
  void with_session(std::unique_lock<std::mutex>& lock, const Use& use);
  void on_ended(const OperationPtr& operation, uint64_t session_number, const Status& status,
                uint64_t everywhere);
  void end_all();
  void supervise();
  void move_on(std::unique_ptr<Session> lost_session, const Status& why);
  void search();
  using Place = std::vector<std::string>;  // aggregators that sum together; none: the hosts
  std::vector<Place> places() const;
  SessionResult meet(const Status& why);
  Status check_moved(const Session& session, uint64_t oldest_kept, uint64_t completed) const;
  Status check_bits(const Session& session) const;

  std::unique_ptr<Relays> relays_;
  const CommunicatorOptions options_;
  const FailoverHooks hooks_;
  SessionFactory factory_;  // used by connect() and regroup(), otherwise by the supervisor and the searcher
  std::mutex regroup_mutex_;
  PrioritisedOperations prioritised_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable quiet_;     // no operation is in flight
  std::unique_ptr<Session> session_;  // null while there is none
  uint64_t session_number_ = 0;       // of the latest session
  uint32_t payload_bytes_ = 0;        // of every session
  // Of the latest session (Session::order_of_floats()). What began in fixed point goes on so.
  std::string order_of_floats_;
  bool began_fixed_ = false;
  std::string lacks_words_;  // as WorkerOptions: of the first session since connect() or regroup()
  // Where the session is, and where sums were wrong. By the thread that searches.
  Place place_ = options_.aggregators;
  std::set<Place> distrusted_;
  Status failure_;                        // permanent until regroup()
  std::optional<Status> lost_;            // why the supervisor has to look for another aggregator
  bool moving_ = false;                   // the supervisor is looking
  std::optional<Status> sought_because_;  // what the searcher has to begin with
  std::optional<SessionResult> found_;    // what it has found
  bool stop_ = false;
  bool supervised_ = true;  // the supervisor may still ask for a search
  int uses_ = 0;            // calls that use session_ without the lock
  uint64_t failovers_ = 0;
  uint64_t submitted_ = 0, completed_ = 0, failed_ = 0;  // without barriers, since connect or regroup
  // Operations in order, from the oldest that some rank may not have finished.
  std::deque<OperationPtr> kept_;
  DeadlineHeap<KeptOperation> in_flight_;  // of them
  uint64_t next_number_ = 0;
  uint64_t first_of_session_ = 0;

  // Both exist from the start: when an aggregator is lost, there may be no further thread to be had.
  std::thread supervisor_, searcher_;
};

}  // namespace netsum

#endif  // NETSUM_API_JOB_COMMUNICATOR_H_
