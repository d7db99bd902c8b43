// Sends a member's heartbeats on a thread of its own, so that a rank that computes stays alive for the aggregator, and a
// rank that is stopped or disconnected does not. The answers are the heartbeats of the aggregator.
#ifndef NETSUM_SRC_CONTROL_HEARTBEAT_H_
#define NETSUM_SRC_CONTROL_HEARTBEAT_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "netsum/status.h"
#include "src/control/control.pb.h"

namespace netsum {

class Heartbeat {
 public:
  // Sends four per `liveness`. `on_lost` is called at most once, on the heartbeat's thread, when the aggregator has not
  // answered for that long. `address` is for messages.
  Heartbeat(std::shared_ptr<grpc::Channel> channel, std::string address, control::MemberRequest claim,
            std::chrono::milliseconds liveness, std::function<void(const Status&)> on_lost);
  ~Heartbeat() { stop(); }

  // Starts the thread. To be called once, before anything else. kResourceExhausted: there is none.
  Status start();

  // `witness`, which may be null, counts what has arrived from the aggregator on the data path. While it grows, the
  // aggregator is alive, even if it does not answer calls. After this returns, the previous witness is not called.
  void set_witness(std::function<uint64_t()> witness);

  // `tell`, which may be null, writes what heartbeats tell, but for the hint, which they have if others wait for this rank. As
  // set_witness().
  void set_beat(std::function<void(control::Beat*)> tell);
  // Which ranks the job waits for, and where they are, as the aggregator has said last; "": for none.
  std::string hang() const;

  // After this returns, `on_lost` is not called. Must not be called from `on_lost`. Idempotent.
  void stop();

 private:
  void run();
  bool beat();  // false: no answer arrived, and nothing on the data path
  void take(const control::AliveReply& reply);

  const std::shared_ptr<grpc::Channel> channel_;
  const std::string address_;
  const control::MemberRequest claim_;
  const std::chrono::milliseconds liveness_;
  const std::chrono::milliseconds pause_;
  const std::function<void(const Status&)> on_lost_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  grpc::ClientContext* call_ = nullptr;  // in progress
  std::function<uint64_t()> witness_;
  std::function<void(control::Beat*)> tell_;
  std::string hang_;
  bool wants_hint_ = false, soon_ = false;

  std::thread thread_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_CONTROL_HEARTBEAT_H_
