#include "torch/src/checks.h"

namespace netsum::torch_backend {

void check_lists(const Call& call, const std::vector<std::vector<at::Tensor>>& lists, int ranks) {
  for (const auto& list : lists) {
    TORCH_CHECK_VALUE(list.size() == static_cast<size_t>(ranks), "netsum ", call.name, ": a list has ",
                      list.size(), " tensors, but the group has ", ranks, " ranks");
  }
}

void check_match(const Call& call, const at::Tensor& whole, const at::Tensor& part, int64_t ranks) {
  TORCH_CHECK_VALUE(whole.scalar_type() == part.scalar_type(), "netsum ", call.name, ": a tensor of type ",
                    whole.scalar_type(), " and one of type ", part.scalar_type(), " in one call");
  TORCH_CHECK_VALUE(whole.numel() == part.numel() * ranks, "netsum ", call.name, ": a tensor of ",
                    whole.numel(), " elements where ", part.numel() * ranks, " were expected (", part.numel(),
                    " per rank)");
}

void check_pairs(const Call& call, size_t inputs, size_t outputs) {
  TORCH_CHECK_VALUE(inputs > 0, "netsum ", call.name, ": requires non-empty input tensor list");
  TORCH_CHECK_VALUE(inputs == outputs, "netsum ", call.name, ": ", inputs, " inputs and ", outputs,
                    " outputs");
}

}  // namespace netsum::torch_backend
