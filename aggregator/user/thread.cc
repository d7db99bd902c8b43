#include "aggregator/user/thread.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "src/base/clock.h"
#include "src/base/processors.h"
#include "src/base/thread.h"

namespace netsum {

uint64_t Endpoint::count(Counter AggregatorCoreCounters::*of) const {
  // The core counts what it gives to the kernel, which may refuse it.
  if (of == &AggregatorCoreCounters::packets_sent)
    return io->counters().packets_sent.get() + (hub == nullptr ? 0 : hub->packets_sent().get());
  if (of == &AggregatorCoreCounters::bytes_sent)
    return io->counters().bytes_sent.get() + (hub == nullptr ? 0 : hub->bytes_sent().get());
  return (core.counters().*of).get();
}

Result<std::unique_ptr<CoreThread>> CoreThread::open(std::chrono::microseconds spin) {
  Result<WakeEvent> event = WakeEvent::open(spin);
  if (!event.ok()) return event.status();
  return std::unique_ptr<CoreThread>(new CoreThread(std::move(event).value()));
}

CoreThread::~CoreThread() {
  if (!thread_.joinable()) return;
  stop_.store(true, std::memory_order_release);
  event_.wake();
  thread_.join();
}

Status CoreThread::start() {
  return start_thread(
      "for a core of the aggregator", [this] { loop(); }, &thread_);
}

Status CoreThread::pin(int processor) {
  return pin_thread(thread_.native_handle(), processor);
}

void CoreThread::run(const std::function<void()>& command) {
  std::unique_lock lock(mutex_);
  const uint64_t ticket = ++posted_count_;
  posted_.push_back(&command);
  has_posted_.store(true, std::memory_order_release);
  event_.wake();
  done_.wait(lock, [&] { return done_count_ >= ticket; });
}

void CoreThread::loop() {
  bool again = false;
  while (!stop_.load(std::memory_order_acquire)) {
    bool found = false, more = false;
    for (const auto& endpoint : endpoints_) {
      const size_t received = serve(endpoint.get());
      found |= received > 0;
      // Less than a full burst has emptied the sockets; epoll tells what comes after that.
      more |= received == burst_.size() || (received > 0 && endpoint->faults != nullptr);
    }
    if (std::exchange(again, false)) look_again_.note(found);
    if (has_posted_.load(std::memory_order_acquire)) run_posted();
    if (more) continue;
    again = found && look_again_.pays();
    if (!again) event_.wait({}, -1, has_jobs());
  }
}

bool CoreThread::has_packets() const {
  return std::any_of(endpoints_.begin(), endpoints_.end(), [](const auto& endpoint) {
    return endpoint->hub != nullptr && endpoint->hub->has_packets();
  });
}

bool CoreThread::fall_asleep() {
  const std::lock_guard lock(sleep_);
  return set_asleep();
}

bool CoreThread::set_asleep() {
  asleep_ = std::all_of(endpoints_.begin(), endpoints_.end(), [](const auto& endpoint) {
    return endpoint->hub == nullptr || endpoint->hub->fall_asleep();
  });
  return asleep_;
}

void CoreThread::wake_up() {
  const std::lock_guard lock(sleep_);
  asleep_ = false;
  for (const auto& endpoint : endpoints_)
    if (endpoint->hub != nullptr) endpoint->hub->wake_up();
}

void CoreThread::take_from_lanes(size_t packets) {
  constexpr size_t kFew = 16;
  const std::unique_lock lock(sleep_, std::try_to_lock);
  if (packets > kFew || !lock.owns_lock() || !asleep_) return event_.wake();
  for (const auto& endpoint : endpoints_) {
    if (endpoint->hub == nullptr) continue;
    endpoint->hub->set_lanes_only(true);
    serve(endpoint.get());
    endpoint->hub->set_lanes_only(false);
  }
  if (!set_asleep()) event_.wake();
}

bool CoreThread::has_jobs() const {
  return std::any_of(endpoints_.begin(), endpoints_.end(),
                     [](const auto& endpoint) { return endpoint->has_jobs(); });
}

size_t CoreThread::serve(Endpoint* endpoint) {
  const size_t received = endpoint->io->receive(burst_);
  if (received == 0) return 0;
  const int64_t now_us = monotonic_us();
  for (size_t i = 0; i < received; ++i) endpoint->core.on_packet(now_us, burst_[i]);
  const std::span<const OutPacket> outbox = endpoint->core.outbox();
  endpoint->io->send(outbox);
  endpoint->received.add_packets(now_us, std::span(burst_).first(received), endpoint->overhead);
  endpoint->sent.add_packets(now_us, outbox, endpoint->overhead);
  endpoint->core.clear();
  return received;
}

void CoreThread::run_posted() {
  const std::lock_guard lock(mutex_);
  has_posted_.store(false, std::memory_order_relaxed);
  for (const auto* command : posted_) (*command)();
  done_count_ += posted_.size();
  posted_.clear();
  done_.notify_all();
}

}  // namespace netsum
