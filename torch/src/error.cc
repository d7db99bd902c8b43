#include "torch/src/error.h"

namespace netsum::torch_backend {
namespace {

std::string message_of(const std::string& where, const Status& status) {
  // Scripts that retry on Gloo's timeouts look for these words.
  const char* timed_out = status.code() == ErrorCode::kTimeout ? "Timed out: " : "";
  return "netsum " + where + ": " + timed_out + status.to_string();
}

}  // namespace

BackendError::BackendError(const std::string& where, const Status& status)
    : c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, message_of(where, status)),
      code_(status.code()),
      rank_(status.rank()) {}

}  // namespace netsum::torch_backend
