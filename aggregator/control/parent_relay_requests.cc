// The part of ParentRelay that asks the parent: what of a member's request goes up, and where this aggregator is below it.
#include <algorithm>
#include <limits>

#include "aggregator/control/parent_call.h"
#include "aggregator/control/parent_relay.h"
#include "src/control/rpc_status.h"
#include "src/job/place_path.h"
#include "wire/mtu.h"

namespace netsum {
namespace {

// For callers without a deadline.
constexpr std::chrono::seconds kPlacePatience{60};

// A GetPlace in progress. It ends when the call that needs it ends.
struct PlaceCall {
  std::unique_ptr<grpc::ClientContext> context;
  control::StatusRequest request;
  PlaceInfo path;
};

}  // namespace

// A copy of the member's request, so that fields that this release does not know reach the parent. Only the fields that
// describe this aggregator are replaced.
control::JoinRequest ParentRelay::request_above(const control::JoinRequest& message,
                                                const MemberRequest& request) const {
  control::JoinRequest above = message;
  above.mutable_job()->set_aggregator_token(options_.parent_token);
  const DataplaneLimits limits = dataplane_->limits();
  uint32_t payload = limits.capabilities.payload_bytes();
  if (request.peer.family == 6)
    payload = std::min(payload, wire::payload_for_mtu(static_cast<int>(request.job.mtu()), 6));
  if (!request.rack.empty()) payload = std::min(payload, request.rack_payload_bytes);
  if (message.has_sharing()) {
    PlaceInfo& first = *above.mutable_sharing()->mutable_first_place();
    const PlaceInfo own = path_from(place_of(options_.place, *dataplane_), first);
    first.Clear();
    first.set_address(options_.parent);
    *first.add_below() = own;
  }
  // Shards do not sum beside a hierarchy.
  if (request.job.shares() != static_cast<uint32_t>(Shares::kOff)) above.clear_shard_endpoint();
  above.set_rack(rack_);
  above.clear_rack_rank();
  if (options_.inside_rank != kNoRank) above.set_rack_rank(static_cast<uint32_t>(options_.inside_rank));
  above.set_rack_payload_bytes(payload);
  if (request.rack.empty()) above.set_rack_slots(std::numeric_limits<uint32_t>::max());
  above.set_rack_stripes(static_cast<uint32_t>(limits.stripes));
  const Capabilities own = below_parent(limits.capabilities);
  *above.mutable_dataplane() = request.rack.empty() ? own : common(own, request.dataplane);
  if (request.origin.empty() && request.peer.valid()) above.set_origin(request.peer.to_string());
  return above;
}

// A path ends at the parent, and goes on to this aggregator.
void ParentRelay::place(const grpc::CallbackServerContext& call, PlaceInfo own,
                        std::function<void(const Result<PlaceInfo>&)> done) {
  auto query = std::make_shared<PlaceCall>();
  query->context = grpc::ClientContext::FromCallbackServerContext(call);
  query->context->set_deadline(std::min(call.deadline() - std::chrono::milliseconds(kHeadStartMs),
                                        std::chrono::system_clock::now() + kPlacePatience));
  query->context->set_wait_for_ready(true);  // as for Join
  query->request.set_aggregator_token(options_.parent_token);
  call_began();
  parent_of(0)->async()->GetPlace(query->context.get(), &query->request, &query->path,
                                  [self = shared_from_this(), query, own = std::move(own),
                                   done = std::move(done)](const grpc::Status& status) mutable {
                                    const std::string parent = "the aggregator at " + self->options_.parent +
                                                               ", the parent of this one,";
                                    if (status.ok()) {
                                      PlaceInfo* lowest = lowest_of(&query->path);
                                      lowest->set_address(self->options_.parent);
                                      *lowest->add_below() = own;
                                      done(query->path);
                                    } else if (const auto refusal = from_rpc_status(status)) {
                                      done(Status(refusal->code(), parent + " says: " + refusal->message()));
                                    } else {
                                      done(Status(ErrorCode::kUnreachable, parent + " does not answer"));
                                    }
                                    ParentRelay& relay = *self;
                                    relay.call_ended(std::move(self), std::move(query));
                                  });
}

}  // namespace netsum
