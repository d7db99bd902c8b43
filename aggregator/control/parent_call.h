// Calls to the parent of an aggregator, on behalf of one member.
#ifndef NETSUM_AGGREGATOR_CONTROL_PARENT_CALL_H_
#define NETSUM_AGGREGATOR_CONTROL_PARENT_CALL_H_

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "aggregator/control/parent_relay.h"

namespace netsum {

// The parent's deadline is this much earlier than the member's, so that its error arrives in time.
inline constexpr int64_t kHeadStartMs = 50;

// A unary call in progress, with everything that gRPC uses until it ends.
template <typename Request, typename Reply>
struct Unary {
  grpc::ClientContext context;
  Request request;
  Reply reply;
};

template <typename Reply = control::Empty, typename Request>
std::shared_ptr<Unary<Request, Reply>> make_unary(
    Request request, std::chrono::milliseconds timeout = std::chrono::milliseconds(1000)) {
  auto call = std::make_shared<Unary<Request, Reply>>();
  call->context.set_deadline(std::chrono::system_clock::now() + timeout);
  call->request = std::move(request);
  return call;
}

// Once started, it keeps itself and the relay alive until gRPC has finished the call.
class ParentRelay::ParentCall final : public grpc::ClientReadReactor<control::Event> {
 public:
  ParentCall(std::shared_ptr<ParentRelay> relay, SessionId session, control::Aggregator::Stub* parent,
             control::JoinRequest request)
      : relay_(std::move(relay)), session_(session), parent_(parent), request_(std::move(request)) {
    context_.set_wait_for_ready(true);  // the parent may start later than the ranks
  }

  // Offers `slots` slots to the parent, or fewer if an aggregator below has fewer, and sets the parent's deadline.
  void start(const std::shared_ptr<ParentCall>& self, uint32_t slots, int64_t patience_us) {
    self_ = self;
    request_.set_rack_slots(std::min(slots, request_.rack_slots()));
    request_.set_deadline_ms(static_cast<uint32_t>(std::max<int64_t>(1, patience_us / 1000 - kHeadStartMs)));
    parent_->async()->Join(&context_, &request_, this);
    StartRead(&event_);
    StartCall();
  }
  void cancel() { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    relay_->on_event(session_, event_, context_.peer());
    StartRead(&event_);
  }
  void OnDone(const grpc::Status& status) override {
    ParentRelay& relay = *relay_;
    relay.on_call_over(session_, status, std::move(relay_), std::move(self_));
  }

  std::shared_ptr<ParentRelay> relay_;
  const SessionId session_;
  control::Aggregator::Stub* const parent_;
  std::shared_ptr<ParentCall> self_;
  grpc::ClientContext context_;
  control::JoinRequest request_;  // not changed once the call has started
  control::Event event_;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_PARENT_CALL_H_
