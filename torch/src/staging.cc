#include "torch/src/staging.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <string>
#include <thread>
#include <utility>

#include "torch/src/log.h"

namespace netsum::torch_backend {
namespace {

using Clock = std::chrono::steady_clock;

// Polled: a wait in the device's library has no deadline.
constexpr std::chrono::microseconds kPoll{50};
constexpr int kQuickPolls = 20;

constexpr size_t kSmallestBlock = size_t{64} << 10;
constexpr size_t kLargeBlocks = size_t{1} << 20;

size_t block_size(size_t bytes) {
  if (bytes < kLargeBlocks) return std::bit_ceil(std::max(bytes, kSmallestBlock));
  return (bytes + kLargeBlocks - 1) / kLargeBlocks * kLargeBlocks;
}

Status check(const Patience& patience, const std::string& what) {
  if (patience.abandoned()) return {ErrorCode::kAborted, "the process group was shut down before " + what};
  if (Clock::now() < patience.deadline) return {};
  return {ErrorCode::kTimeout,
          "the deadline passed before " + what +
              ": look for work on the device that does not end, or pass a longer timeout"};
}

bool have_passed(const std::vector<EventPtr>& events) {
  return std::all_of(events.begin(), events.end(), [](const EventPtr& event) { return event->query(); });
}

// PyTorch 2.11 cannot tell: the device then fails what the call does.
template <typename Guard>
bool is_captured(const Guard& guard, const c10::Stream& stream) {
  if constexpr (requires { guard.isStreamCapturing(stream); }) {
    return guard.isStreamCapturing(stream);
  } else {
    return false;
  }
}

}  // namespace

bool is_accelerator(const c10::Device& device) {
  return !device.is_cpu() && at::accelerator::isAccelerator(device.type());
}

EventPtr record_event(const c10::Stream& stream) {
  auto event = std::make_shared<c10::Event>(stream.device_type());
  event->record(stream);
  return event;
}

Status status_of_device(const c10::Device& device) {
  std::string text;
  try {
    throw;
  } catch (const c10::Error& error) {
    text = error.what_without_backtrace();
  } catch (const std::exception& error) {
    text = error.what();
  }
  return {ErrorCode::kAborted, device.str() + " reports: " + text +
                                   " (look for the operation that failed on the device before this call)"};
}

Status wait_for(const c10::Event& event, const c10::Device& device, const Patience& patience) {
  for (int polls = 0; !event.query(); ++polls) {
    if (Status status = check(patience, device.str() + " had done what comes before the call in its streams");
        !status.ok())
      return status;
    polls < kQuickPolls ? std::this_thread::yield() : std::this_thread::sleep_for(kPoll);
  }
  return {};
}

// --- Memory -----------------------------------------------------------------------------------------------------

at::Tensor StagingPool::allocate(size_t bytes) {
  const auto options = at::TensorOptions().dtype(at::kByte);
  const auto size = static_cast<int64_t>(bytes);
  if (!is_pinned()) return at::empty({size}, options);
  try {
    return at::empty({size}, options.pinned_memory(true));
  } catch (const c10::Error& error) {
    if (!pageable_->exchange(true))
      log(LogLevel::kWarning,
          std::string("tensors of the accelerator are staged in pageable memory, which is slower, because no "
                      "more memory can be pinned: ") +
              error.what_without_backtrace());
    return at::empty({size}, options);
  }
}

// With the lock. The smallest free block that fits, unless it is much larger.
at::Tensor StagingPool::find(size_t bytes) {
  auto best = free_.end();
  for (auto one = free_.begin(); one != free_.end(); ++one) {
    const size_t size = one->memory.nbytes();
    if (size < bytes || size > 2 * bytes + kSmallestBlock ||
        (best != free_.end() && size >= best->memory.nbytes()))
      continue;
    if (have_passed(one->events)) best = one;
  }
  if (best == free_.end()) return {};
  at::Tensor memory = std::move(best->memory);
  free_.erase(best);
  return memory;
}

// With the lock. Free blocks without which `bytes` fit, as far as there are any. They count until they are freed.
std::vector<StagingPool::Free> StagingPool::take_surplus(size_t bytes) {
  size_t surplus = 0;
  const auto begin = std::stable_partition(free_.begin(), free_.end(), [&](const Free& one) {
    if (total_ + bytes <= limit_ + surplus || !have_passed(one.events)) return true;
    surplus += one.memory.nbytes();
    return false;
  });
  std::vector<Free> taken(std::make_move_iterator(begin), std::make_move_iterator(free_.end()));
  free_.erase(begin, free_.end());
  return taken;
}

// Without the lock: unpinning may wait for the device, and calls that end give memory back meanwhile.
void StagingPool::free(std::vector<Free> blocks, std::unique_lock<std::mutex>* lock) {
  size_t bytes = 0;
  for (const Free& one : blocks) bytes += one.memory.nbytes();
  lock->unlock();
  blocks.clear();
  lock->lock();
  total_ -= bytes;
  given_back_.notify_all();
}

Status StagingPool::take(size_t bytes, const Patience& patience, std::shared_ptr<Block>* block) {
  const size_t size = block_size(bytes);
  at::Tensor memory;
  std::unique_lock lock(mutex_);
  while (!(memory = find(size)).defined()) {
    // Frees what is not wanted, and waits for what is not yet free.
    if (auto surplus = take_surplus(size); !surplus.empty()) {
      free(std::move(surplus), &lock);
      continue;
    }
    if (total_ + size <= limit_ || total_ == 0) {
      total_ += size;
      lock.unlock();
      try {
        memory = allocate(size);
      } catch (...) {
        lock.lock();
        total_ -= size;
        throw;
      }
      lock.lock();
      break;
    }
    if (Status status = check(patience, "earlier calls had freed memory for staging"); !status.ok())
      return status;
    given_back_.wait_for(lock, 4 * kPoll);
  }
  lock.unlock();
  *block = std::make_shared<Block>(shared_from_this(), std::move(memory));
  return {};
}

void StagingPool::give_back(at::Tensor memory, std::vector<EventPtr> events) {
  const std::lock_guard lock(mutex_);
  free_.push_back({std::move(memory), std::move(events)});
  given_back_.notify_all();
}

// --- Devices ----------------------------------------------------------------------------------------------------

Lane::Lane(const c10::Device& of, const Limits& limits, std::shared_ptr<std::atomic<bool>> pageable)
    : device(of),
      guard(of.type()),
      in(guard.getStreamFromGlobalPool(of, /*isHighPriority=*/true)),
      out(guard.getStreamFromGlobalPool(of, /*isHighPriority=*/true)),
      pool(std::make_shared<StagingPool>(limits.pool, pageable)),
      gradients(std::make_shared<StagingPool>(std::numeric_limits<size_t>::max(), pageable)),
      segment(limits.segment) {}

Status check_not_captured(const Lane& lane) {
  if (!is_captured(lane.guard, lane.guard.getStream(lane.device))) return {};
  return {ErrorCode::kUnsupported, "the current stream of " + lane.device.str() +
                                       " is being captured into a graph, which cannot have what the "
                                       "network does: leave the call out of the capture"};
}

void Arrival::block_current_stream() const {
  if (event_) event_->block(lane_->guard.getStream(lane_->device));
}

}  // namespace netsum::torch_backend
