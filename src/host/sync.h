// Synchronisation of ranks in shared memory: counters that only grow, and an event to sleep on. There are no locks, so a
// rank that is killed leaves nothing locked: the others wait for it until their deadlines.
#ifndef NETSUM_SRC_HOST_SYNC_H_
#define NETSUM_SRC_HOST_SYNC_H_

#include <atomic>
#include <cstdint>

namespace netsum {

static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free,
              "shared between processes");

inline constexpr size_t kCacheLine = 64;

// Counts arrivals in rounds. No rank arrives in a round before all have arrived in the previous one. Arriving does not
// block.
struct alignas(kCacheLine) Barrier {
  std::atomic<uint64_t> arrivals{0};

  // Returns true for the last of `expected` arrivals of a round. What was written before is visible to every rank that sees
  // the round complete.
  bool arrive(uint64_t expected) {
    return (arrivals.fetch_add(1, std::memory_order_acq_rel) + 1) % expected == 0;
  }
  // All arrivals of a round in one: nobody else arrives in it.
  void arrive_for_all(uint64_t expected) { arrivals.fetch_add(expected, std::memory_order_acq_rel); }
  // Rounds count from 0.
  bool complete(uint64_t round, uint64_t expected) const {
    return arrivals.load(std::memory_order_acquire) >= expected * (round + 1);
  }
};

// What one rank sleeps on (a futex). Any process may notify it; only its owner waits.
class alignas(kCacheLine) FutexEvent {
 public:
  // What a sleeping rank waits for, and what a notification reports; kAnything always wakes.
  enum Cause : uint32_t { kStaged = 2, kReduced = 4, kTaken = 8, kAnything = ~0u };

  void notify(uint32_t cause);

  // How often it has been notified. Read it before looking for work.
  uint32_t notifications() const { return notifications_.load(std::memory_order_acquire); }
  // Sleeps, unless it has been notified since `seen` was read, until it is notified of one of `causes` or `timeout_us` have
  // passed. May wake without a reason.
  void wait(uint32_t seen, uint32_t causes, int64_t timeout_us);

 private:
  std::atomic<uint32_t> notifications_{0};
  std::atomic<uint32_t> asleep_for_{0};  // causes and bit 0, or 0: awake
};

}  // namespace netsum

#endif  // NETSUM_SRC_HOST_SYNC_H_
