// A netsum::Status as the exception type of PyTorch's backends.
#ifndef NETSUM_TORCH_SRC_ERROR_H_
#define NETSUM_TORCH_SRC_ERROR_H_

#include <c10/util/Exception.h>

#include <string>

#include "netsum/status.h"

namespace netsum::torch_backend {

// Becomes netsum.torch.Error in Python. Where PyTorch itself translates it, for example in autograd, it becomes the base
// class torch.distributed.DistBackendError.
class BackendError : public c10::DistBackendError {
 public:
  // `where` says which operation of which rank failed: "all_reduce #12 on rank 1 of 4".
  BackendError(const std::string& where, const Status& status);

  ErrorCode code() const { return code_; }
  int rank() const { return rank_; }  // the rank that the error is about, or kNoRank

 private:
  ErrorCode code_;
  int rank_;
};

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_ERROR_H_
