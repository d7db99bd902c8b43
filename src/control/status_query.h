// What calls that ask an aggregator about itself have in common.
#ifndef NETSUM_SRC_CONTROL_STATUS_QUERY_H_
#define NETSUM_SRC_CONTROL_STATUS_QUERY_H_

#include <chrono>
#include <memory>
#include <string>

#include "src/base/timeout.h"
#include "src/control/channel.h"
#include "src/control/control.grpc.pb.h"

namespace netsum {

// Limit of texts: names and addresses are shorter, but a job's state quotes the reason of its failure.
inline constexpr size_t kStatusTextBytes = 2048;

struct StatusQuery {
  std::unique_ptr<control::Aggregator::Stub> stub;
  control::StatusRequest request;
  std::chrono::system_clock::time_point deadline;
};

// Errors: kInvalidArgument (address, TLS options).
inline Result<StatusQuery> make_status_query(const std::string& address, const std::string& aggregator_token,
                                             const TlsOptions& tls, std::chrono::milliseconds timeout) {
  const auto channel = make_channel(address, tls);
  if (!channel.ok()) return channel.status();
  StatusQuery query;
  query.stub = control::Aggregator::NewStub(*channel);
  query.request.set_aggregator_token(aggregator_token);
  query.deadline = std::chrono::system_clock::now() + bounded(timeout);
  return query;
}

}  // namespace netsum

#endif  // NETSUM_SRC_CONTROL_STATUS_QUERY_H_
