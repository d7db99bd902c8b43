// The aggregator's end of one call: a Join with its queue of events, or a call with one reply. Events are written one at a
// time on gRPC threads.
#ifndef NETSUM_AGGREGATOR_CONTROL_MEMBER_STREAM_H_
#define NETSUM_AGGREGATOR_CONTROL_MEMBER_STREAM_H_

#include <grpcpp/alarm.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/support/byte_buffer.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "aggregator/control/call_limits.h"
#include "aggregator/control/event_queue.h"
#include "src/control/control.pb.h"

namespace netsum {

// A message as gRPC sends it.
grpc::ByteBuffer to_buffer(const google::protobuf::MessageLite& message);
// False: it is no such message.
bool from_buffer(const grpc::ByteBuffer& buffer, google::protobuf::MessageLite* message);

// Keeps itself alive until gRPC has finished the call. Thread rule: any thread may call any method; pump() must be
// called without locks, because gRPC may call back.
class MemberStream final : public grpc::ServerGenericBidiReactor {
 public:
  using OnRequest = std::function<void(const std::shared_ptr<MemberStream>&, const grpc::ByteBuffer&)>;

  // A caller that does not send its request, or does not read an event or the reply, within `patience` is dropped, as if its
  // connection had ended. `on_request`, on a gRPC thread: without it, the call ends without a request. The ticket is kept
  // to the end of the call or release_ticket().
  static std::shared_ptr<MemberStream> create(grpc::CallbackServerContext* context,
                                              std::chrono::milliseconds patience, OnRequest on_request,
                                              std::unique_ptr<CallLimits::Ticket> ticket);

  // Called when the stream has ended, for any reason, on a gRPC thread; possibly twice. Set it before on_request returns.
  void set_on_over(std::function<void()> on_over);
  // The caller is a member now.
  void release_ticket();

  // These only queue; pump() sends. Events after an end are dropped. Consecutive Joined events are merged (EventQueue).
  // If the queue is full, the stream ends with kResourceExhausted.
  void enqueue(control::Event event);
  void enqueue_reply(grpc::ByteBuffer reply);
  void enqueue_end(grpc::Status status);
  void pump();

 private:
  MemberStream(grpc::CallbackServerContext* context, std::chrono::milliseconds patience, OnRequest on_request,
               std::unique_ptr<CallLimits::Ticket> ticket)
      : context_(context),
        patience_(patience),
        ticket_(std::move(ticket)),
        on_request_(std::move(on_request)) {}
  // With the lock held: the caller is dropped unless step `steps_` ends in time.
  void set_alarm();
  void drop_if_late(uint64_t step);
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  grpc::CallbackServerContext* const context_;  // until OnDone
  const std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::shared_ptr<MemberStream> self_;  // until OnDone
  std::unique_ptr<CallLimits::Ticket> ticket_;
  OnRequest on_request_;
  std::function<void()> on_over_;
  grpc::ByteBuffer request_;
  EventQueue queue_;
  std::optional<grpc::ByteBuffer> reply_;
  grpc::ByteBuffer writing_buffer_;  // gRPC reads it while writing_
  uint64_t steps_ = 0;               // begun so far, each a read or a write: identifies the latest one
  std::optional<grpc::Alarm> alarm_;
  bool reading_ = false;
  bool writing_ = false;
  bool dropping_ = false;  // drop_if_late() uses context_, so Finish must wait
  bool ending_ = false;
  bool finished_ = false;
  grpc::Status end_;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_MEMBER_STREAM_H_
