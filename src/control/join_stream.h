// One Join call: the stream of events of one membership, read on gRPC's threads.
#ifndef NETSUM_SRC_CONTROL_JOIN_STREAM_H_
#define NETSUM_SRC_CONTROL_JOIN_STREAM_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "netsum/status.h"
#include "src/control/control.grpc.pb.h"
#include "src/net/address.h"
#include "src/net/tcp_sockets.h"

namespace netsum {

// Destroy it only after close() has returned true, and never on a thread of gRPC's: the last reference to a
// channel, which it holds, joins those threads.
// Thread rule: any thread may call any method.
class JoinStream final : public grpc::ClientReadReactor<control::Event> {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // `address` is for messages. `on_missing`, which may be null, is called with the ranks that have not joined yet, until
  // disarm().
  static std::unique_ptr<JoinStream> start(const std::shared_ptr<grpc::Channel>& channel, std::string address,
                                           const control::JoinRequest& request,
                                           std::function<void(const std::vector<int>&)> on_missing);
  ~JoinStream() override;

  enum class Outcome {
    kWaiting,  // the deadline passed first
    kReady,    // every rank has joined
    kFailed,   // the aggregator reported failure()
    kEnded,    // the call has ended without an event about the job: rpc_status()
  };
  Outcome wait(TimePoint deadline);

  const control::Ready& ready() const { return ready_; }  // after kReady
  Address peer() const { return peer_; }                  // after kReady: the aggregator's numeric address
  Status failure() const;
  grpc::Status rpc_status() const;
  std::optional<uint64_t> member() const;    // once the aggregator has admitted this rank
  void wait_for_member(TimePoint deadline);  // until then, the end of the call or a failure
  std::vector<int> missing() const;          // ranks, from the latest event

  // From now on `on_failure` is called, at most once, when the job fails or the stream breaks. If that has happened
  // already, returns the failure and never calls it.
  // `on_left`, which may be null, is called at most once, with a rank that has left the running job.
  Status arm(std::function<void(const Status&)> on_failure, std::function<void(int rank)> on_left);
  // No callback starts from now on, and on return none is in progress (unless `deadline` passed).
  void disarm(TimePoint deadline);

  // Fails the membership as an event of the stream would.
  void fail(const Status& failure);
  // The aggregator is lost and, if it is inside a rank's process, the rank.
  void lose(const Status& lost);

  bool over() const;
  // Waits until the call is over, or `others` ranks have left the running job. Returns false if `deadline` passed first.
  bool wait_for_others(size_t others, TimePoint deadline);
  // Cancels the call and waits for its end. Returns false if `deadline` passed first.
  bool close(TimePoint deadline);

 private:
  explicit JoinStream(std::string address) : address_(std::move(address)) {}

  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  void take_event();
  void notify_left();
  void notify_missing();

  const std::string address_;
  grpc::ClientContext context_;
  control::JoinRequest request_;
  control::Event event_;  // gRPC writes it between StartRead and OnReadDone

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  bool is_ready_ = false;
  int calling_ = 0;  // callbacks that are running
  std::function<void(const Status&)> on_failure_;
  std::function<void(int)> on_left_;
  std::function<void(const std::vector<int>&)> on_missing_;
  std::optional<Status> failure_;
  grpc::Status rpc_status_;
  std::optional<uint64_t> member_;
  std::vector<int> missing_;
  control::Ready ready_;
  Address peer_;
  // Ends with this process, even if forked children have inherited it.
  forked_children::TcpSockets connection_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_CONTROL_JOIN_STREAM_H_
