#include "engine/driver_seat.h"

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
void DriverSeat::leave(Leaving how) {
  taken_.store(false, std::memory_order_seq_cst);
  if (how.needs_engine || called_.load(std::memory_order_seq_cst)) ring();
  if (how.watched) watch(monotonic_us());
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
  idle_ticks_ = 0;
  do {
    poll(polled, 2, -1);
  } while (polled[0].revents == 0 && !ends_sleep_at_tick());
  if (polled[0].revents != 0) clear(bell_.get());
  if (polled[1].revents == 0 && !ticking_.load(std::memory_order_seq_cst)) return;
  // In this order, and before the caller of this takes the seat: if another thread has it then, that thread's watch() starts
  // the timer again.
  set_timer(0);
  ticking_.store(false, std::memory_order_seq_cst);
}

// Whether an operation is without a driver, or there have been no operations lately, so that the timer is to stop.
bool DriverSeat::ends_sleep_at_tick() {
  clear(timer_.get());
  idle_ticks_ = watched_.exchange(false, std::memory_order_relaxed) ? 0 : idle_ticks_ + 1;
  const int64_t since_us = alone_since_us_.load(std::memory_order_seq_cst);
  return since_us == 0 ? idle_ticks_ >= kIdleTicks : monotonic_us() - since_us >= kAloneUs;
}

void DriverSeat::watch(int64_t now_us) {
  alone_since_us_.store(now_us, std::memory_order_seq_cst);
  watched_.store(true, std::memory_order_relaxed);
  if (!ticking_.exchange(true, std::memory_order_seq_cst)) set_timer(kTickUs);
}

void DriverSeat::set_timer(int64_t interval_us) {
  const timespec interval{.tv_sec = 0, .tv_nsec = interval_us * 1'000};
  const itimerspec ticks{.it_interval = interval, .it_value = interval};
  timerfd_settime(timer_.get(), 0, &ticks, nullptr);
}

}  // namespace netsum
