#include "src/control/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <string_view>

namespace netsum {
namespace {

// ControlClient::join paces reconnections, so gRPC's own back-off must be shorter.
constexpr int kReconnectMinMs = 50;
constexpr int kReconnectMaxMs = 200;
constexpr int kConnectAttemptMs = 5000;

grpc::ChannelArguments arguments(int silence_ms) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, silence_ms);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMinMs);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMaxMs);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectAttemptMs);
  // Ignores http_proxy: it is not meant for a cluster's control connections.
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  // Otherwise clients of one process would share a connection, and the end of one client would not be visible.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return args;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

std::string percent_decode(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape =
        text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 && hex_digit(text[i + 2]) >= 0;
    if (!escape) {
      decoded += text[i];
      continue;
    }
    decoded += static_cast<char>(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2]));
    i += 2;
  }
  return decoded;
}

}  // namespace

Result<std::shared_ptr<grpc::Channel>> make_channel(const std::string& address, const TlsOptions& tls,
                                                    int silence_ms) {
  const Result<HostPort> parts = split_host_port(address);
  if (!parts.ok()) return parts.status();
  if (parts->port == 0)
    return Status(ErrorCode::kInvalidArgument,
                  "'" + address + "' names no port; an aggregator's is 5151 by default");
  if (tls.cert.empty() != tls.private_key.empty())
    return Status(ErrorCode::kInvalidArgument,
                  "TLS: a certificate and its private key must be given together");

  // A numeric address avoids the resolver, which might use the network.
  const Result<Address> numeric = Address::parse(address);
  std::string target = "dns:///" + address;
  if (numeric.ok()) target = (numeric->family == 4 ? "ipv4:" : "ipv6:") + address;

  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (tls.enabled()) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = tls.ca_cert;
    options.pem_cert_chain = tls.cert;
    options.pem_private_key = tls.private_key;
    credentials = grpc::SslCredentials(options);
  }
  return grpc::CreateCustomChannel(target, credentials, arguments(silence_ms));
}

Address peer_address(const std::string& peer) {
  const std::string text = percent_decode(peer);
  if (!text.starts_with("ipv4:") && !text.starts_with("ipv6:")) return {};
  const Result<Address> address = Address::parse(std::string_view(text).substr(5));
  return address.ok() ? *address : Address{};
}

}  // namespace netsum
