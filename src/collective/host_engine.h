// Runs a HostCore on a thread of its own: for the ranks of one host what Engine is for those of the network.
#ifndef NETSUM_SRC_COLLECTIVE_HOST_ENGINE_H_
#define NETSUM_SRC_COLLECTIVE_HOST_ENGINE_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "netsum/communicator.h"
#include "src/base/histogram.h"
#include "src/collective/work_state.h"
#include "src/host/host_core.h"
#include "src/telemetry/trace.h"

namespace netsum {

class Engine;

class HostEngine {
 public:
  // `network` carries the sums of several hosts; null if there is only this one, or if this rank carries
  // none. It must live until stop() has returned, and end its operations before this object dies. `on_failed`
  // is called once, on this engine's thread, when the core fails by itself (not by fail()), after all
  // operations have ended. `trace`, which may be null, is told of every operation on this engine's thread.
  HostEngine(Placement placement, int world_size, int lane_bits, uint32_t payload_bytes,
             std::unique_ptr<Segment> segment, Engine* network, std::function<void(const Status&)> on_failed,
             TraceLog* trace);
  ~HostEngine();

  // Any thread. `timeout` runs from now.
  Work submit(DataType type, ReduceOp op, std::vector<TensorView> tensors, std::chrono::milliseconds timeout,
              OnEnd on_end = {});
  // Any thread. The first failure counts.
  void fail(const Status& status);
  Status status() const;
  // Any thread. `rank` has left the job in good order: operations that need it fail after a grace.
  void peer_left(int rank);
  // Operations in flight end with kAborted. The shared memory stays until destruction.
  void stop();

  const HostCounters& counters() const { return core_.counters(); }
  // From submission to end. Any thread.
  const Histogram& completed() const { return completed_; }
  const Histogram& failed() const { return failed_; }

 private:
  struct Submission {
    std::shared_ptr<Work::State> work;
    OnEnd on_end;
    DataType type;
    ReduceOp op;
    std::vector<TensorView> tensors;
    int64_t submitted_us;
    int64_t deadline_us;
  };
  struct InProgress {
    std::shared_ptr<Work::State> work;
    OnEnd on_end;
    DataType type;
    uint64_t elements;
    int64_t submitted_us;
  };

  void loop();
  void take_mail(bool with_failure);
  void to_network(PartialSum part);
  void fail_if_peer_left(int64_t now_us);
  void finish_operations();
  void wake();

  HostCore core_;
  Engine* const network_;
  const std::function<void(const Status&)> on_failed_;
  TraceLog* const trace_;
  Histogram completed_, failed_;

  // The engine thread's own.
  std::unordered_map<uint64_t, InProgress> works_;
  uint64_t next_id_ = 0;
  std::vector<HostCore::Completion> completions_;
  bool ended_ = false;     // by failure: the operations, and the network's
  bool reported_ = false;  // the failure is known outside already

  // The mailbox: `has_mail_` lets the loop look without taking the lock.
  mutable std::mutex mutex_;
  std::atomic<bool> has_mail_{false};
  std::atomic<bool> stop_{false};
  std::vector<Submission> submissions_;
  std::vector<std::pair<uint32_t, Status>> network_done_;  // slots whose sums are back
  Status failure_from_outside_;
  Status status_;
  int left_rank_ = kNoRank;
  std::atomic<int64_t> left_deadline_us_{INT64_MAX};

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace netsum

#endif  // NETSUM_SRC_COLLECTIVE_HOST_ENGINE_H_
