// How ranks wait for each other in shared memory: numbers that only grow, and a bell to sleep by. No locks,
// so a rank that is killed anywhere leaves nothing held: the others merely wait for it, until their
// deadlines.
#ifndef NETSUM_SRC_HOST_SYNC_H_
#define NETSUM_SRC_HOST_SYNC_H_

#include <atomic>
#include <cstdint>

namespace netsum {

static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free,
              "shared between processes");

inline constexpr size_t kCacheLine = 64;

// Counts those who have arrived, round after round. Nobody arrives for a round before all have arrived for
// the one before.
struct alignas(kCacheLine) Gate {
  std::atomic<uint64_t> arrivals{0};

  // Returns true to the last of `expected` arrivals of a round. What was written before is visible to all who
  // see the round complete.
  bool arrive(uint64_t expected) {
    return (arrivals.fetch_add(1, std::memory_order_acq_rel) + 1) % expected == 0;
  }
  // Rounds count from 0.
  bool complete(uint64_t round, uint64_t expected) const {
    return arrivals.load(std::memory_order_acquire) >= expected * (round + 1);
  }
};

// What one rank sleeps by. Anyone may ring, from any process; only its owner sleeps.
class alignas(kCacheLine) Bell {
 public:
  // What a sleeper waits for, and a ring may be about; kAnything always wakes.
  enum Cause : uint32_t { kStaged = 2, kReduced = 4, kTaken = 8, kAnything = ~0u };

  void ring(uint32_t cause);

  // How often it has rung: to be read before looking for work.
  uint32_t rings() const { return rings_.load(std::memory_order_acquire); }
  // Sleeps unless it has rung since, until it rings for one of `causes` or `timeout_us` have passed. May wake
  // for no reason.
  void sleep(uint32_t rings_seen, uint32_t causes, int64_t timeout_us);

 private:
  std::atomic<uint32_t> rings_{0};
  std::atomic<uint32_t> asleep_for_{0};  // causes and bit 0, or 0: awake
};

}  // namespace netsum

#endif  // NETSUM_SRC_HOST_SYNC_H_
