#include "src/control/heartbeat.h"

#include <algorithm>
#include <utility>

#include "src/base/stack_hint.h"
#include "src/base/text.h"
#include "src/base/thread.h"
#include "src/control/control.grpc.pb.h"
#include "src/job/ranks.h"

namespace netsum {
namespace {

constexpr int kBeatsPerLiveness = 4;
// Of a heartbeat's time. A hint that comes later goes with the next one.
constexpr std::chrono::milliseconds kHintPatience{200};
constexpr size_t kMostHangBytes = 4096;

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

void Heartbeat::set_beat(std::function<void(control::Beat*)> tell) {
  const std::lock_guard lock(mutex_);
  tell_ = std::move(tell);
}

std::string Heartbeat::hang() const {
  const std::lock_guard lock(mutex_);
  return hang_;
}

void Heartbeat::take(const control::AliveReply& reply) {
  soon_ = reply.hint() && !wants_hint_;
  wants_hint_ = reply.hint();
  hang_ = printable(reply.hang(), kMostHangBytes);
}

void Heartbeat::run() {
  std::unique_lock lock(mutex_);
  // A hint that is wanted now is not kept for the next heartbeat.
  const auto pause = [this] { return std::exchange(soon_, false) ? pause_ / 4 : pause_; };
  while (!changed_.wait_for(lock, pause(), [this] { return stop_; })) {
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
  control::MemberRequest request = claim_;
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return true;
    call_ = &context;
    if (witness_) witnessed = witness_();
    if (tell_) tell_(request.mutable_beat());
  }
  // Only this thread writes wants_hint_.
  if (wants_hint_) request.mutable_beat()->set_hint(stack_hint(std::min(kHintPatience, pause_ / 2)));
  control::AliveReply reply;
  const grpc::Status status = control::Aggregator::NewStub(channel_)->Alive(&context, request, &reply);
  const std::lock_guard lock(mutex_);
  call_ = nullptr;
  if (status.ok()) take(reply);
  // Any other code is an answer, or the end of the connection, which the stream reports.
  if (status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) return true;
  if (witness_ && witness_() != witnessed) return true;
  // A call that took this much longer than its deadline means that this process itself was stopped.
  return std::chrono::steady_clock::now() - began > patience + pause_;
}

}  // namespace netsum
