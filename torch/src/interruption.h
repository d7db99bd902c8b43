// Waits that Python's signal handlers can interrupt.
#ifndef NETSUM_TORCH_SRC_INTERRUPTION_H_
#define NETSUM_TORCH_SRC_INTERRUPTION_H_

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>

namespace netsum::torch_backend {

using WaitClock = std::chrono::steady_clock;

// Called with the name of the exception that ends a wait, unless it is a plain Exception: with that of KeyboardInterrupt or
// SystemExit, the program is going to end.
using OnInterrupt = std::function<void(const std::string& exception)>;

// Whether this is the main thread of a process that runs Python.
bool on_python_main_thread();

// On Python's main thread, runs the handlers of signals that have arrived, and throws what they raise. Returns false on other
// threads, which run no handlers.
bool run_signal_handlers(const OnInterrupt& on_interrupt);

// kNoTimeout (0) of c10d: far away.
WaitClock::time_point wait_deadline(std::chrono::milliseconds timeout);

// Calls wait_for(milliseconds) until it returns true, or until the deadline; returns whether it did. The first call is as cheap
// as a wait without interruption.
template <typename WaitFor>
bool wait_until(WaitClock::time_point deadline, const OnInterrupt& on_interrupt, const WaitFor& wait_for) {
  using std::chrono::milliseconds;
  constexpr milliseconds kSlice{100};
  bool interruptible = true;
  while (true) {
    const auto left = std::max(std::chrono::ceil<milliseconds>(deadline - WaitClock::now()), milliseconds(1));
    if (wait_for(interruptible ? std::min(left, kSlice) : left)) return true;
    if (WaitClock::now() >= deadline) return false;
    if (interruptible) interruptible = run_signal_handlers(on_interrupt);
  }
}

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_INTERRUPTION_H_
