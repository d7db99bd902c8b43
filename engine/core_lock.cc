#include "engine/core_lock.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include "src/base/clock.h"

namespace netsum {
namespace {

void clear(int fd) {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(fd, &count, sizeof count);
}

}  // namespace

CoreLock::CoreLock(EngineThread* engine, std::shared_ptr<WaitPredictor> predictor)
    : engine_(engine),
      predictor_(std::move(predictor)),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      timer_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)),
      can_sleep_(wake_fd_.valid() && timer_.valid()) {}

EngineThread* CoreLock::lock_or_notify() {
  if (EngineThread* engine = try_lock()) return engine;
  notified_.store(true, std::memory_order_seq_cst);
  return try_lock();
}

// Sequentially consistent with notify() and lock_or_notify(): either they see that the core is unlocked, or this sees the
// notification.
void CoreLock::unlock(Release how) {
  locked_.store(false, std::memory_order_seq_cst);
  if (how.needs_engine || notified_.load(std::memory_order_seq_cst)) wake();
  if (how.watched) watch(monotonic_us());
}

bool CoreLock::notify() {
  notified_.store(true, std::memory_order_seq_cst);
  if (locked_.load(std::memory_order_seq_cst)) return false;
  wake();
  return true;
}

void CoreLock::wake() {
  const uint64_t one = 1;
  // Fails only if the counter is full; the event is set then, too.
  [[maybe_unused]] const ssize_t written = write(wake_fd_.get(), &one, sizeof one);
}

void CoreLock::sleep() {
  pollfd polled[] = {{wake_fd_.get(), POLLIN, 0}, {timer_.get(), POLLIN, 0}};
  idle_ticks_ = 0;
  do {
    poll(polled, 2, -1);
  } while (polled[0].revents == 0 && !ends_sleep_at_tick());
  if (polled[0].revents != 0) clear(wake_fd_.get());
  if (polled[1].revents == 0 && !ticking_.load(std::memory_order_seq_cst)) return;
  // In this order, and before the caller of this locks the core: if another thread has locked it then, its watch() starts the
  // timer again.
  set_timer(0);
  ticking_.store(false, std::memory_order_seq_cst);
}

// Whether no thread polls for an operation, or there have been no operations lately, so that the timer is to stop.
bool CoreLock::ends_sleep_at_tick() {
  clear(timer_.get());
  idle_ticks_ = watched_.exchange(false, std::memory_order_relaxed) ? 0 : idle_ticks_ + 1;
  const int64_t since_us = alone_since_us_.load(std::memory_order_seq_cst);
  return since_us == 0 ? idle_ticks_ >= kIdleTicks : monotonic_us() - since_us >= kAloneUs;
}

void CoreLock::watch(int64_t now_us) {
  alone_since_us_.store(now_us, std::memory_order_seq_cst);
  watched_.store(true, std::memory_order_relaxed);
  if (!ticking_.exchange(true, std::memory_order_seq_cst)) set_timer(kTickUs);
}

void CoreLock::set_timer(int64_t interval_us) {
  const timespec interval{.tv_sec = 0, .tv_nsec = interval_us * 1'000};
  const itimerspec ticks{.it_interval = interval, .it_value = interval};
  timerfd_settime(timer_.get(), 0, &ticks, nullptr);
}

}  // namespace netsum
