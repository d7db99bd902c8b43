// A member's signs of life, on a thread of their own: a rank that computes is alive, one that is stopped or
// cut off is not. Their answers tell the same of the aggregator.
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
  // Sends four per `liveness`. `on_lost` is called at most once, on the thread of the heartbeat, when the
  // aggregator has not answered for that long. `address` is for messages.
  Heartbeat(std::shared_ptr<grpc::Channel> channel, std::string address, control::MemberRequest claim,
            std::chrono::milliseconds liveness, std::function<void(const Status&)> on_lost);
  ~Heartbeat() { stop(); }

  // `witness` counts what has come from the aggregator on the data path, and may be null: while it grows, the
  // aggregator is alive, whether it answers calls or not. It is not called any more when this returns again.
  void set_witness(std::function<uint64_t()> witness);

  // No `on_lost` any more on return. Must not be called from within it. Idempotent.
  void stop();

 private:
  void run();
  bool beat();  // false: there is no answer, and no other sign of life

  const std::shared_ptr<grpc::Channel> channel_;
  const std::string address_;
  const control::MemberRequest claim_;
  const std::chrono::milliseconds liveness_;
  const std::chrono::milliseconds pause_;
  const std::function<void(const Status&)> on_lost_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  grpc::ClientContext* call_ = nullptr;  // the one under way
  std::function<uint64_t()> witness_;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace netsum

#endif  // NETSUM_SRC_CONTROL_HEARTBEAT_H_
