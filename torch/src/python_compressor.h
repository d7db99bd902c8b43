// Compressors that are written in Python (netsum.torch.Compressor).
#ifndef NETSUM_TORCH_SRC_PYTHON_COMPRESSOR_H_
#define NETSUM_TORCH_SRC_PYTHON_COMPRESSOR_H_

#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "netsum/compression.h"

namespace netsum::torch_backend {

at::ScalarType scalar_type(DataType type);

// Its functions take Python's lock. They throw what Python raises. What remains of a tensor is computed by decompressing the payload.
std::shared_ptr<const Compressor> make_python_compressor(const pybind11::object& object);

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_PYTHON_COMPRESSOR_H_
