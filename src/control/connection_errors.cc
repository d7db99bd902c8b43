#include "src/control/connection_errors.h"

#include <string_view>
#include <utility>

#include "src/base/text.h"

namespace netsum {
namespace {

constexpr size_t kQuotedBytes = 1024;

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != text.npos;
}

ConnectionError unreachable(std::string message, Retry retry) {
  return {{ErrorCode::kUnreachable, std::move(message)}, retry};
}

ConnectionError untrusted(std::string message) {
  return {{ErrorCode::kPermissionDenied, std::move(message)}, Retry::kNo};
}

// The connection was accepted and closed before any data.
ConnectionError hung_up(const std::string& address, const TlsOptions& tls, const std::string& quoted) {
  if (!tls.enabled())
    return unreachable(address +
                           " hangs up on a connection without TLS: if the aggregator was started with TLS, "
                           "configure its CA certificate here; if not, something else listens there" +
                           quoted,
                       Retry::kBriefly);
  if (tls.cert.empty())
    return {{ErrorCode::kPermissionDenied,
             address +
                 " hangs up after the TLS handshake: it probably asks for a client certificate, and none "
                 "is configured here" +
                 quoted},
            Retry::kBriefly};
  return {{ErrorCode::kPermissionDenied,
           address +
               " hangs up after the TLS handshake: it probably does not trust the client certificate "
               "configured here" +
               quoted},
          Retry::kBriefly};
}

}  // namespace

// gRPC distinguishes these cases in its messages only. An unknown text gives a general message; every message quotes it.
ConnectionError explain(const std::string& address, const TlsOptions& tls, const grpc::Status& failure) {
  const std::string& text = failure.error_message();
  const std::string quoted = " (" + printable(text, kQuotedBytes) + ")";
  if (failure.error_code() == grpc::StatusCode::UNIMPLEMENTED)
    return unreachable(address + " is not the control address of a netsum aggregator" + quoted, Retry::kNo);
  if (failure.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED)
    return {{ErrorCode::kTimeout, address + " did not answer in time" + quoted}, Retry::kYes};
  if (contains(text, "certificate verify failed"))
    return untrusted("the certificate of " + address + " is not signed by the CA configured here" + quoted);
  if (contains(text, "is not in peer certificate"))
    return untrusted("the certificate of " + address + " was made for another host name" + quoted);
  if (contains(text, "wrong version number"))
    return unreachable(address +
                           " does not speak TLS, and TLS is configured here: configure it on both ends or "
                           "on neither" +
                           quoted,
                       Retry::kNo);
  if (contains(text, "Ssl handshake failed"))
    return {{ErrorCode::kPermissionDenied,
             "no TLS with " + address + ": its certificate is probably not signed by the CA configured here" +
                 quoted},
            Retry::kBriefly};
  // gRPC cannot create a channel, which only TLS options can cause.
  if (contains(text, "empty address list"))
    return {
        {ErrorCode::kInvalidArgument,
         "the TLS options cannot be used: the CA certificate, the certificate or its key is not valid PEM" +
             quoted},
        Retry::kNo};
  if (contains(text, "DNS resolution failed"))
    return unreachable("the host name in " + address + " cannot be resolved" + quoted, Retry::kYes);
  if (contains(text, "failed to connect") &&
      (contains(text, "Socket closed") || contains(text, "reset by peer")))
    return hung_up(address, tls, quoted);
  if (contains(text, "failed to connect"))
    return unreachable("nothing answers at " + address + kStartWhatAnswers + quoted, Retry::kYes);
  return unreachable("the connection to " + address + " broke" + quoted, Retry::kYes);
}

}  // namespace netsum
