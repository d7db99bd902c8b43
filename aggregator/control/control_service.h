// The aggregator's side of the control plane: the table of jobs and their members, over gRPC.
#ifndef NETSUM_AGGREGATOR_CONTROL_CONTROL_SERVICE_H_
#define NETSUM_AGGREGATOR_CONTROL_CONTROL_SERVICE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aggregator/control/job_table.h"
#include "aggregator/dataplane/dataplane.h"
#include "netsum/aggregator.h"
#include "netsum/options.h"

namespace netsum {

struct ControlServiceOptions {
  std::string listen = "127.0.0.1:0";
  std::string token;  // members must present it; empty: none is required
  TlsOptions tls;
  int max_jobs = 64;
  std::chrono::milliseconds join_timeout{60'000};
  // A caller that does not send its request, or does not read an event or a reply, for this time is dropped: its process
  // hangs, or tries to exhaust memory.
  std::chrono::milliseconds read_timeout{10'000};
  std::function<void(const AggregatorEvent&)> on_event;  // see AggregatorOptions; may be null
  // Hierarchy: the parent's address and its token. `tls` applies to this connection, too.
  std::string parent;
  std::string parent_token;
  PlaceInfo place;  // of this aggregator, without what place_of() adds
  TenantQuota tenant;
  int inside_rank = kNoRank;  // whose process this aggregator is in
};

class ControlService {
 public:
  // `dataplane` must outlive the service. It is a MemberShards if the members' shards sum.
  // Errors: kAddressInUse, kInvalidArgument.
  static Result<std::unique_ptr<ControlService>> start(const ControlServiceOptions& options,
                                                       Dataplane* dataplane);
  virtual ~ControlService() = default;

  virtual std::string address() const = 0;  // "host:port", with the port that is bound
  virtual AggregatorStatus status() const = 0;
  // Refuses new jobs, notifies members, and waits until every job has ended or `deadline` has passed. Returns true if
  // no job is left.
  virtual bool drain(std::chrono::milliseconds deadline) = 0;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_CONTROL_SERVICE_H_
