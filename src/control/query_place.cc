#include <grpcpp/client_context.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "src/base/text.h"
#include "src/control/client.h"
#include "src/control/connection_errors.h"
#include "src/control/rpc_status.h"
#include "src/control/status_query.h"
#include "src/job/place_path.h"

namespace netsum {
namespace {

Status older_release(const std::string& address, const std::string& advice) {
  return {ErrorCode::kVersionMismatch,
          "the aggregator at " + address +
              " is of an older release, which has no plans: install the same release of netsum there" +
              advice};
}

// Makes the addresses printable.
void clean(PlaceInfo* place) {
  place->set_address(printable(place->address()));
  for (PlaceInfo& lower : *place->mutable_below()) clean(&lower);
}

}  // namespace

Result<PlaceInfo> query_place(const std::string& address, const std::string& aggregator_token,
                              const TlsOptions& tls, std::chrono::milliseconds timeout) {
  const auto query = make_status_query(address, aggregator_token, tls, timeout);
  if (!query.ok()) return query.status();
  std::optional<Status> earlier;
  for (int brief_retries = 0;;) {
    grpc::ClientContext context;
    context.set_deadline(query->deadline);
    PlaceInfo place;
    const grpc::Status result = query->stub->GetPlace(&context, query->request, &place);
    if (result.ok()) {
      lowest_of(&place)->set_address(address);
      return place;
    }
    if (result.error_code() == grpc::StatusCode::UNIMPLEMENTED)
      return older_release(address, ", or switch the plan off on all ranks (NETSUM_SHARES=off)");
    if (const auto answer = from_rpc_status(result)) return *answer;
    // The deadline may pass while gRPC connects again: the reason is that of the attempt before.
    if (result.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED && earlier) return *earlier;
    const ConnectionError error = explain(address, tls, result);
    earlier = error.status;
    if (error.retry == Retry::kYes) brief_retries = 0;
    if (error.retry == Retry::kBriefly) ++brief_retries;
    const bool in_time = std::chrono::system_clock::now() + kRetryPause < query->deadline;
    if (error.retry == Retry::kNo || brief_retries > kBriefRetries || !in_time) return error.status;
    std::this_thread::sleep_for(kRetryPause);
  }
}

Result<RemoteTopology> query_topology(const std::string& address, const std::string& job,
                                      const std::string& aggregator_token, const TlsOptions& tls,
                                      std::chrono::milliseconds timeout) {
  const auto query = make_status_query(address, aggregator_token, tls, timeout);
  if (!query.ok()) return query.status();
  control::TopologyRequest request;
  request.set_aggregator_token(aggregator_token);
  request.set_job(job);
  grpc::ClientContext context;
  context.set_deadline(query->deadline);
  control::TopologyReply reply;
  const grpc::Status result = query->stub->GetTopology(&context, request, &reply);
  if (result.ok()) {
    RemoteTopology topology{.job = printable(reply.job()),
                            .links = {reply.links().begin(), reply.links().end()},
                            .shards = reply.shards(),
                            .places = {reply.places().begin(), reply.places().end()},
                            .plan = printable(reply.plan(), kStatusTextBytes)};
    for (PlaceInfo& place : topology.places) clean(&place);
    // Its members may call it otherwise.
    if (!topology.places.empty()) topology.places.front().set_address(address);
    return topology;
  }
  if (const auto answer = from_rpc_status(result)) return *answer;
  if (result.error_code() == grpc::StatusCode::UNIMPLEMENTED) return older_release(address, "");
  return explain(address, tls, result).status;
}

}  // namespace netsum
