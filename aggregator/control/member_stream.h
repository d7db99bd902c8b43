// The aggregator's end of one Join call: events queue here and leave one at a time, on gRPC's threads.
#ifndef NETSUM_AGGREGATOR_CONTROL_MEMBER_STREAM_H_
#define NETSUM_AGGREGATOR_CONTROL_MEMBER_STREAM_H_

#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <mutex>

#include "aggregator/control/event_queue.h"
#include "src/control/control.pb.h"

namespace netsum {

// Keeps itself alive until gRPC has done with it. Thread rule: any thread may call any method, without
// holding a lock in pump().
class MemberStream final : public grpc::ServerWriteReactor<control::Event> {
 public:
  static std::shared_ptr<MemberStream> create();

  // Called when the stream is over, for whatever reason; maybe twice, on gRPC's threads. Set it before the
  // Join handler returns.
  void set_on_over(std::function<void()> on_over);

  // Queue only; pump() then sends. Nothing can follow an end. A member that does not read may miss who was missing
  // in between; if the queue is full all the same, the stream ends with kResourceExhausted.
  void enqueue(control::Event event);
  void enqueue_end(grpc::Status status);
  void pump();

 private:
  MemberStream() = default;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  std::mutex mutex_;
  std::shared_ptr<MemberStream> self_;  // until OnDone
  std::function<void()> on_over_;
  EventQueue queue_;
  control::Event writing_event_;  // gRPC reads it while writing_
  bool writing_ = false;
  bool ending_ = false;
  bool finished_ = false;
  grpc::Status end_;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_MEMBER_STREAM_H_
