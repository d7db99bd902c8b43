#include "src/control/connection_errors.h"

#include <string_view>

namespace netsum {
namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != text.npos;
}

}  // namespace

// gRPC tells these cases apart in its messages only; an unknown text falls through to the general answer,
// which quotes it.
ConnectionError explain(const std::string& address, const TlsOptions& tls, const grpc::Status& failure) {
  const std::string& text = failure.error_message();
  const std::string quoted = " (" + text + ")";
  if (contains(text, "CERTIFICATE_VERIFY_FAILED") || contains(text, "certificate verify failed") ||
      contains(text, "Peer name"))
    return {{ErrorCode::kPermissionDenied, "the certificate of " + address +
                                               " is not trusted: it must name that host and be signed by the "
                                               "configured CA" +
                                               quoted},
            true};
  if (contains(text, "WRONG_VERSION_NUMBER") || contains(text, "wrong version number"))
    return {{ErrorCode::kUnreachable,
             address +
                 " does not speak TLS, and TLS is configured here: configure it on both ends or on "
                 "neither" +
                 quoted},
            true};
  if (failure.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED)
    return {{ErrorCode::kTimeout, address + " did not answer in time" + quoted}, false};
  if (failure.error_code() == grpc::StatusCode::UNIMPLEMENTED)
    return {{ErrorCode::kUnreachable, address + " is not a netsum aggregator's control address" + quoted},
            true};
  if (contains(text, "Connection refused") || failure.error_code() != grpc::StatusCode::UNAVAILABLE)
    return {
        {ErrorCode::kUnreachable, "nothing answers at " + address +
                                      ": is `netsum aggregator` running there? (NETSUM_AGGREGATOR)" + quoted},
        false};
  return {{ErrorCode::kUnreachable, ""}, false};
}

}  // namespace netsum
