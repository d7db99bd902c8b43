// The trials of balancers: a share is tried elsewhere, and comes back if operations become slower.
#ifndef NETSUM_SRC_WORKER_TRIALS_H_
#define NETSUM_SRC_WORKER_TRIALS_H_

#include <algorithm>
#include <cstdint>

namespace netsum {

// In percent of the time before: all that a chunk may take longer during a trial.
inline constexpr int64_t kAsFast = 104;

// The pause after the next failure, in periods.
inline uint32_t longer_pause(uint32_t pause) {
  return std::clamp(2 * pause, 2u, 128u);
}

// Whether, after so many periods without a trial, pauses are short again.
inline bool is_calm(uint32_t periods, uint32_t pause) {
  return periods > 64 + 4 * pause;
}

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_TRIALS_H_
