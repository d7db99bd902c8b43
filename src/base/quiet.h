// The end of what serves others for as long as they ask: a shard, or aggregators inside a rank.
#ifndef NETSUM_SRC_BASE_QUIET_H_
#define NETSUM_SRC_BASE_QUIET_H_

#include <chrono>
#include <cstdint>
#include <functional>

namespace netsum {

// A rank without a result probes after at most 500 ms, and then four times a second, where a round trip takes at most a third of one.
// So the first probe may be lost.
inline constexpr std::chrono::milliseconds kQuiet{1000}, kQuietStep{20};
// Of what the job depends on: while it hears nothing, a rank may wait for a result that another rank has. What waits in vain fails
// earlier (EngineThread).
inline constexpr std::chrono::milliseconds kQuietOfAll{4000};
// While others still ask. A job in which they cannot go on has failed by then.
inline constexpr std::chrono::seconds kLongestService{10};

// Waits until nobody needs anything, as `is_over` says, which waits for the step that it is given or until then; or nothing has
// been `heard` for `limit`; or `deadline` has passed.
inline void serve_until_quiet(std::chrono::milliseconds limit, const std::function<uint64_t()>& heard,
                              const std::function<bool(std::chrono::milliseconds)>& is_over,
                              std::chrono::steady_clock::time_point deadline) {
  uint64_t before = heard();
  // In steps, not in time: where this process does not get to run, packets wait, too.
  for (auto quiet = kQuietStep; !is_over(kQuietStep); quiet += kQuietStep) {
    const uint64_t now = heard();
    if (now != before) quiet = std::chrono::milliseconds(0);
    before = now;
    if (quiet >= limit || std::chrono::steady_clock::now() >= deadline) return;
  }
}

}  // namespace netsum

#endif  // NETSUM_SRC_BASE_QUIET_H_
