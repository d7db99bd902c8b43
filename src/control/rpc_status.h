// Converts a netsum::Status to a gRPC status and back, with code, message and rank.
#ifndef NETSUM_SRC_CONTROL_RPC_STATUS_H_
#define NETSUM_SRC_CONTROL_RPC_STATUS_H_

#include <grpcpp/support/status.h>

#include <optional>

#include "netsum/status.h"
#include "src/control/control.pb.h"

namespace netsum {

control::Event::Failed to_failed(const Status& status);
// Codes that this version does not know become kInternal; a message that is too long is truncated.
Status from_failed(const control::Event::Failed& failed);

grpc::Status to_rpc_status(const Status& status);
// The Status that the other end of the call returned, or nullopt if the call itself failed (for example, no connection).
std::optional<Status> from_rpc_status(const grpc::Status& status);

}  // namespace netsum

#endif  // NETSUM_SRC_CONTROL_RPC_STATUS_H_
