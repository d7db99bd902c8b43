// Calls of collectives as texts, for errors that compare them.
#ifndef NETSUM_TORCH_SRC_CALL_TEXT_H_
#define NETSUM_TORCH_SRC_CALL_TEXT_H_

#include <ATen/core/Tensor.h>

#include <string>

namespace netsum::torch_backend {

// What the ranks must agree on: "all_reduce(float32[1000], SUM)".
struct CallText {
  const char* name = "";
  at::Tensor first;           // of the call's tensors, if it has any
  bool equal_sizes = true;    // on all ranks
  std::string operator_name;  // of a reduction
  std::string to_string() const;
};

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_CALL_TEXT_H_
