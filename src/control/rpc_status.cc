#include "src/control/rpc_status.h"

#include "src/base/text.h"

namespace netsum {
namespace {

// gRPC transfers a status in headers, of which the peer accepts 8 KiB.
constexpr size_t kMessageBytes = 1024;

// For other gRPC tools; netsum itself reads the details.
grpc::StatusCode rpc_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::kOk:
      return grpc::StatusCode::OK;
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kMismatch:
      return grpc::StatusCode::INVALID_ARGUMENT;
    case ErrorCode::kUnsupported:
      return grpc::StatusCode::UNIMPLEMENTED;
    case ErrorCode::kTimeout:
      return grpc::StatusCode::DEADLINE_EXCEEDED;
    case ErrorCode::kPermissionDenied:
      return grpc::StatusCode::PERMISSION_DENIED;
    case ErrorCode::kResourceExhausted:
      return grpc::StatusCode::RESOURCE_EXHAUSTED;
    case ErrorCode::kUnreachable:
      return grpc::StatusCode::UNAVAILABLE;
    case ErrorCode::kVersionMismatch:
      return grpc::StatusCode::FAILED_PRECONDITION;
    case ErrorCode::kPeerLost:
    case ErrorCode::kAggregatorLost:
    case ErrorCode::kOverflow:
    case ErrorCode::kAddressInUse:
    case ErrorCode::kAborted:
    case ErrorCode::kWrongSum:
      return grpc::StatusCode::ABORTED;
    case ErrorCode::kInternal:
      break;
  }
  return grpc::StatusCode::INTERNAL;
}

}  // namespace

control::Event::Failed to_failed(const Status& status) {
  control::Event::Failed failed;
  failed.set_code(static_cast<int>(status.code()));
  failed.set_message(status.message().substr(0, kMessageBytes));
  failed.set_rank(status.rank());
  return failed;
}

Status from_failed(const control::Event::Failed& failed) {
  ErrorCode code = ErrorCode::kInternal;
  if (failed.code() > static_cast<int>(ErrorCode::kOk) &&
      failed.code() <= static_cast<int>(ErrorCode::kWrongSum))
    code = static_cast<ErrorCode>(failed.code());
  return {code, printable(failed.message(), kMessageBytes), failed.rank() < 0 ? kNoRank : failed.rank()};
}

grpc::Status to_rpc_status(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {rpc_code(status.code()), status.message().substr(0, kMessageBytes),
          to_failed(status).SerializeAsString()};
}

std::optional<Status> from_rpc_status(const grpc::Status& status) {
  if (status.ok()) return Status();
  control::Event::Failed failed;
  if (status.error_details().empty() || !failed.ParseFromString(status.error_details())) return std::nullopt;
  return from_failed(failed);
}

}  // namespace netsum
