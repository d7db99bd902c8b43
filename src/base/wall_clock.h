// Time of the day in microseconds since 1970, which may be set while a program runs. Durations are those of clock.h.
#ifndef NETSUM_SRC_BASE_WALL_CLOCK_H_
#define NETSUM_SRC_BASE_WALL_CLOCK_H_

#include <chrono>
#include <cstdint>

namespace netsum {

inline int64_t wall_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace netsum

#endif  // NETSUM_SRC_BASE_WALL_CLOCK_H_
