// Checks of a call's arguments. They throw ValueError, and Gloo's own would not name the call.
#ifndef NETSUM_TORCH_SRC_CHECKS_H_
#define NETSUM_TORCH_SRC_CHECKS_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "torch/src/work.h"

namespace netsum::torch_backend {

// The lists have one tensor per rank.
void check_lists(const Call& call, const std::vector<std::vector<at::Tensor>>& lists, int ranks);

// Both tensors have the same type and, together with `ranks`, the right numbers of elements.
void check_match(const Call& call, const at::Tensor& whole, const at::Tensor& part, int64_t ranks);

// So many inputs and outputs form pairs.
void check_pairs(const Call& call, size_t inputs, size_t outputs);

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_CHECKS_H_
