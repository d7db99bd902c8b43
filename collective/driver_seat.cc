#include "collective/driver_seat.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

namespace netsum {
namespace {

void clear(int fd) {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(fd, &count, sizeof count);
}

}  // namespace

DriverSeat::DriverSeat(EngineThread* engine, std::shared_ptr<CallerScore> score)
    : engine_(engine),
      score_(std::move(score)),
      bell_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      timer_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)),
      can_sleep_(bell_.valid() && timer_.valid()) {}

EngineThread* DriverSeat::take_or_call() {
  if (EngineThread* engine = take()) return engine;
  called_.store(true, std::memory_order_seq_cst);
  return take();
}

// Sequentially consistent with call() and take_or_call(): either they see that the seat is free, or this sees the call.
void DriverSeat::leave(bool needs_engine) {
  taken_.store(false, std::memory_order_seq_cst);
  if (needs_engine || called_.load(std::memory_order_seq_cst)) ring();
}

bool DriverSeat::call() {
  called_.store(true, std::memory_order_seq_cst);
  if (taken_.load(std::memory_order_seq_cst)) return false;
  ring();
  return true;
}

void DriverSeat::ring() {
  const uint64_t one = 1;
  // Fails only if the counter is full; the event is set then, too.
  [[maybe_unused]] const ssize_t written = write(bell_.get(), &one, sizeof one);
}

void DriverSeat::sleep() {
  pollfd polled[] = {{bell_.get(), POLLIN, 0}, {timer_.get(), POLLIN, 0}};
  poll(polled, 2, -1);
  if (polled[0].revents != 0) clear(bell_.get());
  if (polled[1].revents == 0) return;
  watchdog_due_us_.store(0, std::memory_order_seq_cst);
  clear(timer_.get());
}

// Called after leave(): if the timer is due later, the engine's thread will find the seat free, or taken by a thread that
// calls this or waits.
void DriverSeat::watch(int64_t now_us) {
  if (watchdog_due_us_.load(std::memory_order_seq_cst) - now_us >= kWatchdogUs / 2) return;
  watchdog_due_us_.store(now_us + kWatchdogUs, std::memory_order_seq_cst);
  const itimerspec in{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_nsec = kWatchdogUs * 1'000}};
  timerfd_settime(timer_.get(), 0, &in, nullptr);
}

}  // namespace netsum
