#include "torch/src/interruption.h"

#include <torch/csrc/utils/pybind.h>

#include <unistd.h>

namespace netsum::torch_backend {
namespace {

constexpr std::chrono::hours kLongest{24 * 365};

}  // namespace

// Without Python's lock, for which this thread might wait for long.
bool on_python_main_thread() {
  return Py_IsInitialized() != 0 && gettid() == getpid();
}

bool run_signal_handlers(const OnInterrupt& on_interrupt) {
  if (!on_python_main_thread()) return false;
  const pybind11::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() == 0) return true;
  pybind11::error_already_set error;
  if (!error.matches(PyExc_Exception)) {
    const std::string name = pybind11::str(error.type().attr("__name__"));
    const pybind11::gil_scoped_release unlocked;
    on_interrupt(name);
  }
  throw error;
}

WaitClock::time_point wait_deadline(std::chrono::milliseconds timeout) {
  using std::chrono::milliseconds;
  const milliseconds longest = kLongest;
  return WaitClock::now() + (timeout == milliseconds(0) ? longest : std::min(timeout, longest));
}

}  // namespace netsum::torch_backend
