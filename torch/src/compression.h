// netsum::Compression and netsum::CompressedTensor for Python (netsum.torch._compress).
#ifndef NETSUM_TORCH_SRC_COMPRESSION_H_
#define NETSUM_TORCH_SRC_COMPRESSION_H_

#include <torch/csrc/utils/pybind.h>

namespace netsum::torch_backend {

void bind_compression(pybind11::module_& module);
void bind_compression_control(pybind11::module_& module);

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_COMPRESSION_H_
