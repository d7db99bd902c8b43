// netsum/late_join.h: a communicator that joins its job when an operation pays for it.
//
// It is apart, then joining, then joined; or it has failed. Apart, each operation is one exchange of frames: what the rank calls,
// and its inputs. All ranks find the same frames, so they agree on whether the calls differ, and each computes the result. An
// operation that makes the ranks join exchanges its frame first, too: a rank whose call differs is told. While they join,
// operations wait in a queue, in their order.
//
// Thread rule: as of Communicator. `order_mutex_` comes before `mutex_`, and is held while operations are handed on.
#ifndef NETSUM_API_LATE_COMMUNICATOR_H_
#define NETSUM_API_LATE_COMMUNICATOR_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "api/communicator_base.h"
#include "netsum/late_join.h"
#include "src/worker/operation.h"

namespace netsum {

class LateCommunicator final : public CommunicatorBase {
 public:
  using Connect = std::function<Result<std::unique_ptr<CommunicatorBase>>(const CommunicatorOptions&)>;

  // `options` are checked.
  LateCommunicator(const CommunicatorOptions& options, LateJoin join, Connect connect);
  ~LateCommunicator() override;

  int rank() const override { return options_.rank; }
  int world_size() const override { return options_.world_size; }
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
  struct Apart;  // an operation that is being exchanged
  struct Waiting {
    OperationSpec spec;
    std::chrono::milliseconds timeout;
    std::shared_ptr<Work::State> work;
  };
  // Lets exchanges end after the communicator.
  class Gate;

  CommunicatorBase* joined() const { return joined_.load(std::memory_order_acquire); }
  void submit_apart(OperationSpec spec, std::chrono::milliseconds timeout,
                    const std::shared_ptr<Work::State>& work);
  void exchange(std::span<const std::byte> own, std::chrono::milliseconds timeout, Exchanged done);
  void on_exchanged(const std::shared_ptr<Apart>& apart, const Status& status,
                    std::span<const std::byte> all);
  Status compare(const Operation& operation, bool joins, std::span<const std::byte> all) const;
  Status sum(const Operation& operation, std::span<const std::byte> all) const;
  void count_end(bool counts, uint64_t bytes, const Status& status);
  void fail(const Status& status);

  // On the thread that joins.
  void join();
  Result<std::unique_ptr<CommunicatorBase>> connect_with_others();
  void tell_root(const std::string& text, bool is_address);
  Result<std::string> hear_root();

  const CommunicatorOptions options_;
  const LateJoin join_;
  const Connect connect_;
  const uint32_t payload_bytes_;
  const std::shared_ptr<Gate> gate_;

  std::recursive_mutex order_mutex_;  // callbacks of operations that end may submit others
  uint64_t next_number_ = 0;          // with order_mutex_
  std::atomic<CommunicatorBase*> joined_ = nullptr;

  mutable std::mutex mutex_;       // guards the following
  std::condition_variable quiet_;  // an operation, joining or hear_root() has ended
  Status failure_;
  bool joining_ = false;
  std::list<std::shared_ptr<Apart>> in_exchange_;
  std::deque<Waiting> waiting_;
  uint64_t submitted_ = 0, completed_ = 0, failed_ = 0, bytes_ = 0;  // apart, without barriers
  std::unique_ptr<CommunicatorBase> inner_;
  std::thread joiner_;
};

}  // namespace netsum

#endif  // NETSUM_API_LATE_COMMUNICATOR_H_
