#include "aggregator/user/thread.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

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
  FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid())
    return Status(ErrorCode::kResourceExhausted,
                  std::string("cannot create an epoll instance for a core: ") + std::strerror(errno));
  Result<WakeEvent> event = WakeEvent::open(spin);
  if (!event.ok()) return event.status();
  return std::unique_ptr<CoreThread>(new CoreThread(std::move(epoll), std::move(event).value()));
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
  while (!stop_.load(std::memory_order_acquire)) {
    bool idle = true;
    for (const auto& endpoint : endpoints_) {
      if (serve(endpoint.get())) idle = false;
    }
    if (has_posted_.load(std::memory_order_acquire)) run_posted();
    if (!idle || !fall_asleep()) continue;
    pollfd ready = {epoll_.get(), POLLIN, 0};
    event_.wait({&ready, 1}, -1, has_jobs());
    wake_up();
  }
}

bool CoreThread::fall_asleep() {
  for (const auto& endpoint : endpoints_) {
    if (endpoint->hub == nullptr || endpoint->hub->fall_asleep()) continue;
    wake_up();
    return false;
  }
  return true;
}

void CoreThread::wake_up() {
  for (const auto& endpoint : endpoints_)
    if (endpoint->hub != nullptr) endpoint->hub->wake_up();
}

bool CoreThread::has_jobs() const {
  return std::any_of(endpoints_.begin(), endpoints_.end(),
                     [](const auto& endpoint) { return endpoint->has_jobs(); });
}

bool CoreThread::serve(Endpoint* endpoint) {
  const size_t received = endpoint->io->receive(burst_);
  if (received == 0) return false;
  const int64_t now_us = monotonic_us();
  for (size_t i = 0; i < received; ++i) endpoint->core.on_packet(now_us, burst_[i]);
  const std::span<const OutPacket> outbox = endpoint->core.outbox();
  endpoint->io->send(outbox);
  endpoint->received.add_packets(now_us, std::span(burst_).first(received), endpoint->overhead);
  endpoint->sent.add_packets(now_us, outbox, endpoint->overhead);
  endpoint->core.clear();
  return true;
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
