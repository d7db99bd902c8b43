// The aggregator's end of one Join call: a queue of events, written one at a time on gRPC threads.
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

// Keeps itself alive until gRPC has finished the call. Thread rule: any thread may call any method; pump() must be
// called without locks, because gRPC may call back.
class MemberStream final : public grpc::ServerWriteReactor<control::Event> {
 public:
  // A member that does not read an event within `read_timeout` is dropped, as if its connection had ended.
  static std::shared_ptr<MemberStream> create(grpc::CallbackServerContext* context,
                                              std::chrono::milliseconds read_timeout);

  // Called when the stream has ended, for any reason, on a gRPC thread; possibly twice. Set it before the Join handler
  // returns.
  void set_on_over(std::function<void()> on_over);

  // These only queue; pump() sends. Events after an end are dropped. Consecutive Joined events are merged (EventQueue).
  // If the queue is full, the stream ends with kResourceExhausted.
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
  uint64_t writes_ = 0;           // started so far: identifies the latest one
  std::optional<grpc::Alarm> read_alarm_;
  bool writing_ = false;
  bool dropping_ = false;  // drop_if_unread() uses context_, so Finish must wait
  bool ending_ = false;
  bool finished_ = false;
  grpc::Status end_;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_MEMBER_STREAM_H_
