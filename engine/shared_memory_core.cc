#include "engine/shared_memory_core.h"

#include <algorithm>

namespace netsum {
namespace {

constexpr int64_t kLeastSleepUs = 1'000;

}  // namespace

SharedMemoryCore::SharedMemoryCore(Options options, std::unique_ptr<Segment> segment, Engine* network)
    : core_({.placement = std::move(options.placement),
             .world_size = options.world_size,
             .encoding = options.encoding,
             .payload_bytes = options.payload_bytes,
             .network_adds_floats = options.network_adds_floats,
             .to_network = [this](PartialSum part) { sum_over_hosts(std::move(part)); }},
            std::move(segment)),
      network_(network),
      spin_{SpinWait(options.spin.count(), SpinWait::kSpinUs),
            SpinWait(std::min(options.spin.count(), SpinWait::kSpinUs))} {}

bool SharedMemoryCore::advance(int64_t) {
  const bool sums_came = take_sums_of_hosts();
  return core_.advance() || sums_came;
}

void SharedMemoryCore::sum_over_hosts(PartialSum part) {
  const Work work = network_->submit(std::move(part.spec));
  work.on_done([this, slot = part.slot](const Status& status) {
    {
      const std::lock_guard lock(mutex_);
      sums_.emplace_back(slot, status);
      has_sums_.store(true, std::memory_order_release);
    }
    wake();
  });
}

bool SharedMemoryCore::take_sums_of_hosts() {
  if (!has_sums_.load(std::memory_order_acquire)) return false;
  std::vector<std::pair<uint32_t, Status>> sums;
  {
    const std::lock_guard lock(mutex_);
    sums.swap(sums_);
    has_sums_.store(false, std::memory_order_relaxed);
  }
  for (const auto& [slot, status] : sums) core_.on_network_done(slot, status);
  return true;
}

void SharedMemoryCore::wait(int64_t timeout_us) {
  FutexEvent& event = core_.event();
  spin_[idle()].wait(
      timeout_us, [&] { return event.notifications() != wake_ups_; },
      [&] { event.wait(wake_ups_, core_.awaited(), std::max(timeout_us, kLeastSleepUs)); });
}

void SharedMemoryCore::take_completions(std::vector<Completion>* out) {
  core_.take_completions(&completions_);
  // All ranks submit the same operations, so the engine's ids are the same on all of them.
  for (HostCore::Completion& completion : completions_)
    out->emplace_back(completion.id, std::move(completion.status), completion.id);
  completions_.clear();
  if (network_ == nullptr || core_.status().ok() || std::exchange(network_failed_, true)) return;
  network_->fail(core_.status());
}

}  // namespace netsum
