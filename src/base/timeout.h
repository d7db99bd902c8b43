// Limits timeouts from outside, so that sums with a clock cannot overflow.
#ifndef NETSUM_SRC_BASE_TIMEOUT_H_
#define NETSUM_SRC_BASE_TIMEOUT_H_

#include <algorithm>
#include <chrono>

namespace netsum {

// Fits in microseconds, nanoseconds and the control protocol's 32 bits of milliseconds.
inline constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(30 * 24);

// Longer timeouts count as kLongestTimeout, negative ones as 0.
constexpr std::chrono::milliseconds bounded(std::chrono::milliseconds timeout) {
  return std::clamp(timeout, std::chrono::milliseconds(0), kLongestTimeout);
}

// The end of a timeout that begins now.
inline std::chrono::steady_clock::time_point deadline_after(std::chrono::milliseconds timeout) {
  return std::chrono::steady_clock::now() + bounded(timeout);
}

}  // namespace netsum

#endif  // NETSUM_SRC_BASE_TIMEOUT_H_
