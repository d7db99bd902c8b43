// Monotonic time in microseconds. Protocol cores take `now_us` as a parameter; only drivers call this.
#ifndef NETSUM_SRC_BASE_CLOCK_H_
#define NETSUM_SRC_BASE_CLOCK_H_

#include <chrono>
#include <cstdint>

namespace netsum {

inline int64_t monotonic_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace netsum

#endif  // NETSUM_SRC_BASE_CLOCK_H_
