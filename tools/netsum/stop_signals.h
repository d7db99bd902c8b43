// SIGTERM and SIGINT, taken by waiting for them instead of by a handler.
#ifndef NETSUM_TOOLS_NETSUM_STOP_SIGNALS_H_
#define NETSUM_TOOLS_NETSUM_STOP_SIGNALS_H_

#include <signal.h>

#include <chrono>

namespace netsum::tool {

// Construct it before any thread starts: it blocks the signals, and threads inherit that.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  // The signal that came within `timeout`, or 0.
  int wait(std::chrono::milliseconds timeout) const {
    const timespec limit = {timeout.count() / 1000, (timeout.count() % 1000) * 1'000'000};
    const int signal = sigtimedwait(&set_, nullptr, &limit);
    return signal > 0 ? signal : 0;
  }

 private:
  sigset_t set_;
};

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_STOP_SIGNALS_H_
