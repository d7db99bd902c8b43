#include "src/control/heartbeat.h"

#include <algorithm>
#include <utility>

#include "src/base/thread.h"
#include "src/control/control.grpc.pb.h"
#include "src/job/ranks.h"

namespace netsum {
namespace {

constexpr int kBeatsPerLiveness = 4;

}  // namespace

Heartbeat::Heartbeat(std::shared_ptr<grpc::Channel> channel, std::string address,
                     control::MemberRequest claim, std::chrono::milliseconds liveness,
                     std::function<void(const Status&)> on_lost)
    : channel_(std::move(channel)),
      address_(std::move(address)),
      claim_(std::move(claim)),
      liveness_(liveness),
      pause_(std::max(liveness / kBeatsPerLiveness, std::chrono::milliseconds(1))),
      on_lost_(std::move(on_lost)) {}

Status Heartbeat::start() {
  return start_thread(
      "for heartbeats", [this] { run(); }, &thread_);
}

void Heartbeat::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    if (call_ != nullptr) call_->TryCancel();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Heartbeat::set_witness(std::function<uint64_t()> witness) {
  const std::lock_guard lock(mutex_);
  witness_ = std::move(witness);
}

void Heartbeat::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, pause_, [this] { return stop_; })) {
    lock.unlock();
    const bool answered = beat();
    lock.lock();
    if (answered || stop_) continue;
    lock.unlock();
    on_lost_({ErrorCode::kAggregatorLost, "the aggregator at " + address_ + " has not answered for " +
                                              describe_ms(liveness_.count()) +
                                              ": it is stopped or unreachable"});
    return;
  }
}

bool Heartbeat::beat() {
  // Together with the pause before it, this detects silence within `liveness_`.
  const auto patience = liveness_ - pause_;
  const auto began = std::chrono::steady_clock::now();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + patience);
  uint64_t witnessed = 0;
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return true;
    call_ = &context;
    if (witness_) witnessed = witness_();
  }
  control::Empty reply;
  const grpc::Status status = control::Aggregator::NewStub(channel_)->Alive(&context, claim_, &reply);
  const std::lock_guard lock(mutex_);
  call_ = nullptr;
  // Any other code is an answer, or the end of the connection, which the stream reports.
  if (status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) return true;
  if (witness_ && witness_() != witnessed) return true;
  // A call that took this much longer than its deadline means that this process itself was stopped.
  return std::chrono::steady_clock::now() - began > patience + pause_;
}

}  // namespace netsum
