#include "src/host/sync.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

namespace netsum {
namespace {

constexpr uint32_t kAsleep = 1;

// Not FUTEX_PRIVATE_FLAG: the word is shared between processes.
long futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, timeout, nullptr, 0);
}

}  // namespace

void FutexEvent::notify(uint32_t cause) {
  // Sequentially consistent with wait(): either the sleeper sees this notification, or we see the sleeper.
  notifications_.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t causes = asleep_for_.load(std::memory_order_seq_cst);
  if ((causes & kAsleep) != 0 && (causes & cause) != 0) futex(&notifications_, FUTEX_WAKE, 1, nullptr);
}

void FutexEvent::wait(uint32_t seen, uint32_t causes, int64_t timeout_us) {
  // A notification for another cause may come between this and the system call: we then wake without a reason.
  asleep_for_.store((causes & ~kAsleep) | kAsleep, std::memory_order_seq_cst);
  const int64_t us = std::clamp<int64_t>(timeout_us, 0, int64_t{3600} * 1'000'000);
  const timespec timeout{.tv_sec = us / 1'000'000, .tv_nsec = us % 1'000'000 * 1000};
  futex(&notifications_, FUTEX_WAIT, seen, &timeout);
  asleep_for_.store(0, std::memory_order_seq_cst);
}

}  // namespace netsum
