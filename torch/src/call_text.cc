#include "torch/src/call_text.h"

#include "torch/src/host_reduction.h"

namespace netsum::torch_backend {

std::string CallText::to_string() const {
  std::string inner;
  const auto add = [&inner](const std::string& part) { inner += (inner.empty() ? "" : ", ") + part; };
  if (first.defined()) {
    add((first.layout() == at::kStrided ? "" : "sparse ") + name_of(first.scalar_type()) +
        (equal_sizes ? "[" + std::to_string(first.numel()) + "]" : ""));
  }
  if (!operator_name.empty()) add(operator_name);
  return std::string(name) + "(" + inner + ")";
}

}  // namespace netsum::torch_backend
