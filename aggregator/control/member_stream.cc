#include "aggregator/control/member_stream.h"

#include <string>
#include <utility>
#include <vector>

#include "src/control/rpc_status.h"

namespace netsum {

grpc::ByteBuffer to_buffer(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return {&slice, 1};
}

bool from_buffer(const grpc::ByteBuffer& buffer, google::protobuf::MessageLite* message) {
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) return false;
  std::string text;
  for (const grpc::Slice& slice : slices)
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return message->ParseFromString(text);
}

std::shared_ptr<MemberStream> MemberStream::create(grpc::CallbackServerContext* context,
                                                   std::chrono::milliseconds patience, OnRequest on_request,
                                                   std::unique_ptr<CallLimits::Ticket> ticket) {
  std::shared_ptr<MemberStream> stream(
      new MemberStream(context, patience, std::move(on_request), std::move(ticket)));
  const std::lock_guard lock(stream->mutex_);
  stream->self_ = stream;
  if (!stream->on_request_) return stream;
  stream->reading_ = true;
  stream->set_alarm();
  stream->StartRead(&stream->request_);  // gRPC calls back later, when it knows the stream
  return stream;
}

void MemberStream::set_on_over(std::function<void()> on_over) {
  const std::lock_guard lock(mutex_);
  on_over_ = std::move(on_over);
}

void MemberStream::release_ticket() {
  std::unique_ptr<CallLimits::Ticket> ticket;
  const std::lock_guard lock(mutex_);
  ticket = std::move(ticket_);
}

void MemberStream::enqueue(control::Event event) {
  const std::lock_guard lock(mutex_);
  if (ending_ || queue_.push(std::move(event))) return;
  queue_.clear();
  ending_ = true;
  end_ = to_rpc_status(
      {ErrorCode::kResourceExhausted, "this member does not read its events, and their queue is full"});
}

void MemberStream::enqueue_reply(grpc::ByteBuffer reply) {
  const std::lock_guard lock(mutex_);
  if (ending_) return;
  reply_ = std::move(reply);
  ending_ = true;
  end_ = grpc::Status::OK;
}

void MemberStream::enqueue_end(grpc::Status status) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(ending_, true)) return;
  end_ = std::move(status);
}

// Without this limit, a caller could keep its call, and a member that does not read its place in the job, for ever.
void MemberStream::set_alarm() {
  alarm_.emplace();
  alarm_->Set(std::chrono::system_clock::now() + patience_, [self = self_, step = ++steps_](bool expired) {
    if (expired) self->drop_if_late(step);
  });
}

// gRPC may call back within StartWrite or Finish, so neither is called with the lock held. `writing_` and `finished_`
// ensure that only one thread calls them.
void MemberStream::pump() {
  std::unique_lock lock(mutex_);
  if (writing_ || dropping_ || finished_) return;
  if (!queue_.empty() || reply_) {
    writing_ = true;
    writing_buffer_ = reply_ ? *std::exchange(reply_, std::nullopt) : to_buffer(queue_.pop());
    set_alarm();
    lock.unlock();
    StartWrite(&writing_buffer_);
  } else if (ending_) {
    finished_ = true;
    alarm_.reset();
    const grpc::Status end = end_;
    lock.unlock();
    Finish(end);
  }
}

void MemberStream::drop_if_late(uint64_t step) {
  {
    const std::lock_guard lock(mutex_);
    if (!(reading_ || writing_) || step != steps_ || finished_) return;
    dropping_ = true;
  }
  context_->TryCancel();
  {
    const std::lock_guard lock(mutex_);
    dropping_ = false;
  }
  pump();
}

void MemberStream::OnReadDone(bool ok) {
  std::shared_ptr<MemberStream> self;
  OnRequest on_request;
  {
    const std::lock_guard lock(mutex_);
    reading_ = false;
    self = self_;
    on_request = std::exchange(on_request_, nullptr);
    if (ending_) return;
    alarm_.reset();
  }
  if (ok)
    on_request(self, request_);
  else
    enqueue_end({grpc::StatusCode::INVALID_ARGUMENT, "the call has no request"});
  request_.Clear();
  pump();
}

void MemberStream::OnWriteDone(bool ok) {
  {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    alarm_.reset();
    if (!ok) queue_.clear();  // the other end is gone: OnCancel follows
  }
  pump();
}

void MemberStream::OnCancel() {
  std::function<void()> on_over;
  {
    const std::lock_guard lock(mutex_);
    queue_.clear();
    reply_.reset();
    on_over = on_over_;
  }
  if (on_over) on_over();
  enqueue_end(grpc::Status::CANCELLED);
  pump();
}

void MemberStream::OnDone() {
  std::shared_ptr<MemberStream> keep;
  std::function<void()> on_over;
  std::unique_ptr<CallLimits::Ticket> ticket;
  {
    const std::lock_guard lock(mutex_);
    keep = std::move(self_);
    on_over = std::move(on_over_);
    ticket = std::move(ticket_);
  }
  if (on_over) on_over();
}

}  // namespace netsum
