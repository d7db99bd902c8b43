#include "aggregator/control/member_stream.h"

#include <utility>

#include "src/control/rpc_status.h"

namespace netsum {

std::shared_ptr<MemberStream> MemberStream::create(grpc::CallbackServerContext* context,
                                                   std::chrono::milliseconds read_timeout) {
  std::shared_ptr<MemberStream> stream(new MemberStream(context, read_timeout));
  const std::lock_guard lock(stream->mutex_);
  stream->self_ = stream;
  return stream;
}

void MemberStream::set_on_over(std::function<void()> on_over) {
  const std::lock_guard lock(mutex_);
  on_over_ = std::move(on_over);
}

void MemberStream::enqueue(control::Event event) {
  const std::lock_guard lock(mutex_);
  if (ending_ || queue_.push(std::move(event))) return;
  queue_.clear();
  ending_ = true;
  end_ = to_rpc_status(
      {ErrorCode::kResourceExhausted, "this member does not read its events, and their queue is full"});
}

void MemberStream::enqueue_end(grpc::Status status) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(ending_, true)) return;
  end_ = std::move(status);
}

// gRPC may call back within StartWrite or Finish, so neither is called with the lock held. `writing_` and `finished_`
// ensure that only one thread calls them.
void MemberStream::pump() {
  std::unique_lock lock(mutex_);
  if (writing_ || dropping_ || finished_) return;
  if (!queue_.empty()) {
    writing_ = true;
    writing_event_ = queue_.pop();
    // Without this limit, a member that does not read would stay in its job, and its stream would outlive the job.
    read_alarm_.emplace();
    read_alarm_->Set(std::chrono::system_clock::now() + read_timeout_,
                     [self = self_, write = ++writes_](bool expired) {
                       if (expired) self->drop_if_unread(write);
                     });
    lock.unlock();
    StartWrite(&writing_event_);
  } else if (ending_) {
    finished_ = true;
    const grpc::Status end = end_;
    lock.unlock();
    Finish(end);
  }
}

void MemberStream::drop_if_unread(uint64_t write) {
  {
    const std::lock_guard lock(mutex_);
    if (!writing_ || write != writes_) return;
    dropping_ = true;
  }
  context_->TryCancel();
  {
    const std::lock_guard lock(mutex_);
    dropping_ = false;
  }
  pump();
}

void MemberStream::OnWriteDone(bool ok) {
  {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    read_alarm_.reset();
    if (!ok) queue_.clear();  // the other end is gone: OnCancel follows
  }
  pump();
}

void MemberStream::OnCancel() {
  std::function<void()> on_over;
  {
    const std::lock_guard lock(mutex_);
    queue_.clear();
    on_over = on_over_;
  }
  if (on_over) on_over();
  enqueue_end(grpc::Status::CANCELLED);
  pump();
}

void MemberStream::OnDone() {
  std::shared_ptr<MemberStream> keep;
  std::function<void()> on_over;
  {
    const std::lock_guard lock(mutex_);
    keep = std::move(self_);
    on_over = std::move(on_over_);
  }
  if (on_over) on_over();
}

}  // namespace netsum
