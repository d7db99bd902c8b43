#include "src/control/join_stream.h"

#include <utility>

#include "src/base/assert.h"
#include "src/base/text.h"
#include "src/control/channel.h"
#include "src/control/rpc_status.h"
#include "src/job/ranks.h"

namespace netsum {

std::unique_ptr<JoinStream> JoinStream::start(const std::shared_ptr<grpc::Channel>& channel,
                                              std::string address, const control::JoinRequest& request,
                                              std::function<void(const std::vector<int>&)> on_missing) {
  std::unique_ptr<JoinStream> stream(new JoinStream(std::move(address)));
  {
    // Events are handled on other threads; the lock publishes these fields to them without relying on gRPC.
    const std::lock_guard lock(stream->mutex_);
    stream->request_ = request;
    stream->on_missing_ = std::move(on_missing);
    if (const Result<Address> numeric = Address::parse(stream->address_); numeric.ok())
      stream->connection_ = forked_children::TcpSockets::connected_to(*numeric);
  }
  control::Aggregator::NewStub(channel)->async()->Join(&stream->context_, &stream->request_, stream.get());
  stream->StartRead(&stream->event_);
  stream->StartCall();
  return stream;
}

JoinStream::~JoinStream() {
  NETSUM_ASSERT(over());
}

JoinStream::Outcome JoinStream::wait(TimePoint deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return is_ready_ || failure_ || over_; });
  if (failure_) return Outcome::kFailed;
  if (over_) return Outcome::kEnded;
  return is_ready_ ? Outcome::kReady : Outcome::kWaiting;
}

Status JoinStream::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_.value_or(Status());
}

grpc::Status JoinStream::rpc_status() const {
  const std::lock_guard lock(mutex_);
  return rpc_status_;
}

std::optional<uint64_t> JoinStream::member() const {
  const std::lock_guard lock(mutex_);
  return member_;
}

std::vector<int> JoinStream::missing() const {
  const std::lock_guard lock(mutex_);
  return missing_;
}

void JoinStream::wait_for_member(TimePoint deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return member_ || failure_ || over_; });
}

bool JoinStream::over() const {
  const std::lock_guard lock(mutex_);
  return over_;
}

bool JoinStream::wait_for_others(size_t others, TimePoint deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline,
                             [&] { return over_ || (is_ready_ && missing_.size() >= others); });
}

Status JoinStream::arm(std::function<void(const Status&)> on_failure, std::function<void(int)> on_left) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return *failure_;
    on_failure_ = std::move(on_failure);
    on_left_ = std::move(on_left);
  }
  notify_left();
  return {};
}

// Reports the lowest rank that has left since the job became ready, once.
void JoinStream::notify_left() {
  std::unique_lock lock(mutex_);
  if (!is_ready_ || missing_.empty() || !on_left_) return;
  const auto on_left = std::exchange(on_left_, nullptr);
  const int rank = missing_.front();
  ++calling_;
  lock.unlock();
  on_left(rank);
  lock.lock();
  --calling_;
  changed_.notify_all();
}

void JoinStream::notify_missing() {
  std::unique_lock lock(mutex_);
  // A rank that is missing from a running job has left it: notify_left() reports it.
  if (!on_missing_ || (is_ready_ && !missing_.empty())) return;
  const auto on_missing = is_ready_ ? std::exchange(on_missing_, nullptr) : on_missing_;
  const std::vector<int> missing = missing_;
  ++calling_;
  lock.unlock();
  on_missing(missing);
  lock.lock();
  --calling_;
  changed_.notify_all();
}

void JoinStream::disarm(TimePoint deadline) {
  std::unique_lock lock(mutex_);
  on_failure_ = nullptr;
  on_left_ = nullptr;
  on_missing_ = nullptr;
  changed_.wait_until(lock, deadline, [&] { return calling_ == 0; });
}

bool JoinStream::close(TimePoint deadline) {
  context_.TryCancel();
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [&] { return over_; });
}

void JoinStream::OnReadDone(bool ok) {
  if (!ok) return;  // OnDone follows
  take_event();
  StartRead(&event_);
}

void JoinStream::take_event() {
  std::unique_lock lock(mutex_);
  if (!peer_.valid()) {
    peer_ = peer_address(context_.peer());
    connection_ = forked_children::TcpSockets::connected_to(peer_);
  }
  switch (event_.kind_case()) {
    case control::Event::kJoined:
      member_ = event_.joined().member();
      missing_.assign(event_.joined().missing_ranks().begin(), event_.joined().missing_ranks().end());
      lock.unlock();
      changed_.notify_all();
      notify_missing();
      notify_left();
      return;
    case control::Event::kReady:
      is_ready_ = true;
      missing_.clear();
      ready_ = event_.ready();
      lock.unlock();
      changed_.notify_all();
      notify_missing();
      return;
    case control::Event::kFailed: {
      const Status failure = from_failed(event_.failed());
      lock.unlock();
      fail(failure);
      return;
    }
    case control::Event::kDraining:  // running jobs continue: nothing to do
    case control::Event::KIND_NOT_SET:
      break;
  }
  changed_.notify_all();
}

void JoinStream::OnDone(const grpc::Status& status) {
  bool lost = false;
  {
    const std::lock_guard lock(mutex_);
    rpc_status_ = status;
    lost = is_ready_;
  }
  if (lost) {
    const std::string why = status.ok() ? "it ended the membership" : printable(status.error_message(), 1024);
    lose({ErrorCode::kAggregatorLost, "lost the aggregator at " + address_ + ": " + why});
  }
  // Under the lock to the end: the owner may destroy this object as soon as it sees `over_`.
  const std::lock_guard lock(mutex_);
  over_ = true;
  changed_.notify_all();
}

void JoinStream::lose(const Status& lost) {
  int inside_rank = kNoRank;
  {
    const std::lock_guard lock(mutex_);
    if (ready_.has_inside_rank() && ready_.inside_rank() < request_.job().world_size())
      inside_rank = static_cast<int>(ready_.inside_rank());
  }
  fail(lost_with(inside_rank, lost));
}

void JoinStream::fail(const Status& failure) {
  std::unique_lock lock(mutex_);
  if (failure_) return;
  failure_ = failure;
  changed_.notify_all();
  const auto on_failure = std::exchange(on_failure_, nullptr);
  if (!on_failure) return;
  ++calling_;
  lock.unlock();
  on_failure(failure);
  lock.lock();
  --calling_;
  changed_.notify_all();
}

}  // namespace netsum
