// Common code of both ends of a control connection: keep-alive settings and peer addresses.
#ifndef NETSUM_SRC_CONTROL_CHANNEL_H_
#define NETSUM_SRC_CONTROL_CHANNEL_H_

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "netsum/options.h"
#include "netsum/status.h"
#include "src/net/address.h"

namespace netsum {

// A process that dies closes its connection, which the other end detects. A host that disappears, or a process that is stopped,
// is detected by keep-alive packets, after at most the sum of the two; a shorter stall has no effect.
inline constexpr int kKeepaliveTimeMs = 2000;
inline constexpr int kKeepaliveTimeoutMs = 5000;

// A connection that is not shared with other clients of the process, established by the first call. It ends after about
// `silence_ms` without an answer.
// Errors: kInvalidArgument (address, TLS options).
Result<std::shared_ptr<grpc::Channel>> make_channel(const std::string& address, const TlsOptions& tls,
                                                    int silence_ms = kKeepaliveTimeoutMs);

// From gRPC's name for a peer ("ipv4:10.0.0.3:4711", "ipv6:%5B::1%5D:4711"); invalid if it is no IP address.
Address peer_address(const std::string& peer);

}  // namespace netsum

#endif  // NETSUM_SRC_CONTROL_CHANNEL_H_
