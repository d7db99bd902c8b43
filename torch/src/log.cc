#include "torch/src/log.h"

#include <torch/csrc/utils/pybind.h>

namespace netsum::torch_backend {

void log(LogLevel level, const std::string& text) {
  if (Py_IsInitialized() == 0) return;
  const pybind11::gil_scoped_acquire lock;
  try {
    const pybind11::object logger = pybind11::module_::import("logging").attr("getLogger")("netsum");
    logger.attr(level == LogLevel::kWarning ? "warning" : "info")("%s", text);
  } catch (pybind11::error_already_set& error) {
    error.discard_as_unraisable("netsum.torch");
  }
}

}  // namespace netsum::torch_backend
