// The aggregator's end of one Join call: events queue here and leave one at a time, on gRPC's threads.
#ifndef NETSUM_AGGREGATOR_CONTROL_MEMBER_STREAM_H_
#define NETSUM_AGGREGATOR_CONTROL_MEMBER_STREAM_H_

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "aggregator/control/event_queue.h"
#include "src/control/control.pb.h"

namespace netsum {

// Keeps itself alive until gRPC has done with it. Thread rule: any thread may call any method, without
// holding a lock in pump().
class MemberStream final : public grpc::ServerWriteReactor<control::Event> {
 public:
  // A member that lets an event wait for `read_timeout` is dropped, as if its connection had ended.
  static std::shared_ptr<MemberStream> create(grpc::CallbackServerContext* context,
                                              std::chrono::milliseconds read_timeout);

  // Called when the stream is over, for whatever reason; maybe twice, on gRPC's threads. Set it before the
  // Join handler returns.
  void set_on_over(std::function<void()> on_over);

  // Queue only; pump() then sends. Nothing can follow an end. A member that does not read may miss who was missing
  // in between; if the queue is full all the same, the stream ends with kResourceExhausted.
  void enqueue(control::Event event);
  void enqueue_end(grpc::Status status);
  void pump();

 private:
  MemberStream(grpc::CallbackServerContext* context, std::chrono::milliseconds read_timeout)
      : context_(context), read_timeout_(read_timeout) {}
  void drop_if_unread(uint64_t write);
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  grpc::CallbackServerContext* const context_;  // until OnDone
  const std::chrono::milliseconds read_timeout_;
  std::mutex mutex_;
  std::shared_ptr<MemberStream> self_;  // until OnDone
  std::function<void()> on_over_;
  EventQueue queue_;
  control::Event writing_event_;  // gRPC reads it while writing_
  uint64_t writes_ = 0;           // started so far; their number names the latest
  std::optional<grpc::Alarm> read_alarm_;
  bool writing_ = false;
  bool dropping_ = false;  // context_ is in use: Finish, which may end it, waits
  bool ending_ = false;
  bool finished_ = false;
  grpc::Status end_;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_MEMBER_STREAM_H_
