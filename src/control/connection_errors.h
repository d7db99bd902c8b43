// Why a call never reached the aggregator, in words that say what to do.
#ifndef NETSUM_SRC_CONTROL_CONNECTION_ERRORS_H_
#define NETSUM_SRC_CONTROL_CONNECTION_ERRORS_H_

#include <grpcpp/support/status.h>

#include <string>

#include "netsum/options.h"
#include "netsum/status.h"

namespace netsum {

enum class Retry {
  kNo,       // trying again cannot help
  kBriefly,  // it hardly can: only an aggregator that is just starting or stopping looks like this for a
             // moment
  kYes,
};

struct ConnectionError {
  Status status;
  Retry retry = Retry::kYes;
};

// `failure` is what a call to `address` came back with, having no answer of the aggregator in it.
ConnectionError explain(const std::string& address, const TlsOptions& tls, const grpc::Status& failure);

}  // namespace netsum

#endif  // NETSUM_SRC_CONTROL_CONNECTION_ERRORS_H_
