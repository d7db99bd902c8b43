#include "src/worker/core_group.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "src/base/assert.h"
#include "src/worker/share_balancer.h"

namespace netsum {

CoreGroup::CoreGroup(std::vector<size_t> core_of_stripe)
    : core_of_(std::move(core_of_stripe)),
      cores_(*std::max_element(core_of_.begin(), core_of_.end()) + 1),
      held_us_(core_of_.size()),
      losses_(core_of_.size()) {}

void CoreGroup::note(size_t core, size_t stream, const Progress& progress) {
  Core::Stream& mine = cores_[core].streams[stream];
  mine.lowest_chunk.store(progress.lowest_chunk, std::memory_order_relaxed);
  mine.window_packets.store(progress.window_packets, std::memory_order_relaxed);
}

Progress CoreGroup::progress(size_t stream) const {
  Progress all;
  for (const Core& core : cores_) {
    all.lowest_chunk =
        std::min(all.lowest_chunk, core.streams[stream].lowest_chunk.load(std::memory_order_relaxed));
    all.window_packets += core.streams[stream].window_packets.load(std::memory_order_relaxed);
  }
  return all;
}

// A core comes to a number when all cores have the answer to the one before.
std::shared_ptr<CoreGroup::WeightUpdate> CoreGroup::weight_update(uint64_t number,
                                                                  std::span<const int32_t> added) {
  const std::lock_guard lock(mutex_);
  if (number < updates_) return latest_;
  NETSUM_ASSERT(number == updates_);
  ++updates_;
  latest_ = std::make_shared<WeightUpdate>();
  latest_->left = cores();
  std::vector<int64_t> held, active;
  for (size_t stripe = 0; stripe < stripes(); ++stripe) {
    held.push_back(static_cast<int64_t>(held_us_[stripe].get()));
    active.push_back(static_cast<int64_t>(active_us(core_of_[stripe]).get()));
  }
  latest_->measured = ShareBalancer::measurement(held, active);
  latest_->measured.insert(latest_->measured.end(), added.begin(), added.end());
  return latest_;
}

std::vector<size_t> divide_stripes(std::span<const uint32_t> weights, size_t cores) {
  cores = std::clamp<size_t>(cores, 1, weights.size());
  std::vector<size_t> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return weights[a] > weights[b]; });
  // The largest first, each to the core that has the least; of those, to the one with the fewest stripes, so that none of
  // weight 0 leave a core without.
  std::vector<std::pair<uint64_t, size_t>> has(cores);
  std::vector<size_t> core_of(weights.size());
  for (const size_t stripe : order) {
    const auto least = std::min_element(has.begin(), has.end());
    core_of[stripe] = static_cast<size_t>(least - has.begin());
    least->first += weights[stripe];
    ++least->second;
  }
  return core_of;
}

}  // namespace netsum
