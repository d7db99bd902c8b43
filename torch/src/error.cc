#include "torch/src/error.h"

namespace netsum::torch_backend {
namespace {

std::string message_of(const std::string& where, const Status& status) {
  // As in Gloo's errors: scripts search for these words to retry after a timeout.
  const bool timed_out = status.code() == ErrorCode::kTimeout;
  return "netsum " + where + ": " +
         (timed_out ? "Timed out (" + status.to_string() + ")" : status.to_string());
}

}  // namespace

BackendError::BackendError(const std::string& where, const Status& status)
    : c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, message_of(where, status)),
      code_(status.code()),
      rank_(status.rank()) {}

}  // namespace netsum::torch_backend
