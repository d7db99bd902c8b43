#include "netsum/status.h"

namespace netsum {

std::string_view error_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kOk:
      return "ok";
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kPeerLost:
      return "peer_lost";
    case ErrorCode::kAggregatorLost:
      return "aggregator_lost";
    case ErrorCode::kUnreachable:
      return "unreachable";
    case ErrorCode::kMismatch:
      return "mismatch";
    case ErrorCode::kOverflow:
      return "overflow";
    case ErrorCode::kPermissionDenied:
      return "permission_denied";
    case ErrorCode::kVersionMismatch:
      return "version_mismatch";
    case ErrorCode::kResourceExhausted:
      return "resource_exhausted";
    case ErrorCode::kAddressInUse:
      return "address_in_use";
    case ErrorCode::kAborted:
      return "aborted";
    case ErrorCode::kInternal:
      return "internal";
    case ErrorCode::kWrongSum:
      return "wrong_sum";
  }
  return "unknown";
}

std::string Status::to_string() const {
  std::string text(error_name(code_));
  if (!message_.empty()) text += ": " + message_;
  return text;
}

}  // namespace netsum
