// Why a call never reached the aggregator, in words that say what to do.
#ifndef NETSUM_SRC_CONTROL_CONNECTION_ERRORS_H_
#define NETSUM_SRC_CONTROL_CONNECTION_ERRORS_H_

#include <grpcpp/support/status.h>

#include <string>

#include "netsum/options.h"
#include "netsum/status.h"

namespace netsum {

struct ConnectionError {
  Status status;
  bool final = false;  // trying again cannot help
};

// `failure` is what a call to `address` came back with, having no answer of the aggregator in it.
ConnectionError explain(const std::string& address, const TlsOptions& tls, const grpc::Status& failure);

}  // namespace netsum

#endif  // NETSUM_SRC_CONTROL_CONNECTION_ERRORS_H_
