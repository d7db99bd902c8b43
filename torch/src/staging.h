// The way of tensors between an accelerator and memory of the host.
#ifndef NETSUM_TORCH_SRC_STAGING_H_
#define NETSUM_TORCH_SRC_STAGING_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "netsum/status.h"

namespace netsum::torch_backend {

using EventPtr = std::shared_ptr<c10::Event>;

// Whether tensors of the device are staged.
bool is_accelerator(const c10::Device& device);

// An event at the end of what is in the stream now.
EventPtr record_event(const c10::Stream& stream);

// For the waits of staging: at the deadline they end with kTimeout, and with kAborted when `abandoned` returns true.
struct Patience {
  std::chrono::steady_clock::time_point deadline;
  std::function<bool()> abandoned;
};

// kAborted, with the text of the exception that is being handled: what a device has reported.
Status status_of_device(const c10::Device& device);

// Waits on the host, without a lock. Throws what the device reports.
Status wait_for(const c10::Event& event, const c10::Device& device, const Patience& patience);

// Memory of the host, pinned where it can be, which is kept and used again. One call may have more than `limit` bytes, but
// only while no other call has any.
class StagingPool : public std::enable_shared_from_this<StagingPool> {
 public:
  // `pageable`: of all pools of a device; set when no more memory can be pinned.
  StagingPool(size_t limit, std::shared_ptr<std::atomic<bool>> pageable)
      : limit_(limit), pageable_(std::move(pageable)) {}

  // Gives the memory back when it is destroyed. It is used again when the events have passed. Any thread.
  class Block {
   public:
    Block(std::shared_ptr<StagingPool> pool, at::Tensor memory)
        : pool_(std::move(pool)), memory_(std::move(memory)) {}
    ~Block() { pool_->give_back(std::move(memory_), std::move(events_)); }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    const at::Tensor& memory() const { return memory_; }  // bytes
    void used_until(EventPtr event) {
      const std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
    }

   private:
    const std::shared_ptr<StagingPool> pool_;
    at::Tensor memory_;
    std::mutex mutex_;
    std::vector<EventPtr> events_;
  };

  // May wait for earlier calls to end.
  Status take(size_t bytes, const Patience& patience, std::shared_ptr<Block>* block);

  bool is_pinned() const { return !*pageable_; }

 private:
  struct Free {
    at::Tensor memory;
    std::vector<EventPtr> events;
  };

  void give_back(at::Tensor memory, std::vector<EventPtr> events);
  at::Tensor find(size_t bytes);
  std::vector<Free> take_surplus(size_t bytes);
  void free(std::vector<Free> blocks, std::unique_lock<std::mutex>* lock);
  at::Tensor allocate(size_t bytes);

  const size_t limit_;
  const std::shared_ptr<std::atomic<bool>> pageable_;
  std::mutex mutex_;
  std::condition_variable given_back_;
  std::vector<Free> free_;
  size_t total_ = 0;  // bytes that have been allocated
};

// What a group has for one device.
struct Lane {
  // How tensors are staged, in bytes.
  struct Limits {
    size_t pool = 0;     // of calls in flight
    size_t segment = 0;  // 0: tensors are staged as a whole
  };

  Lane(const c10::Device& device, const Limits& limits,
       std::shared_ptr<std::atomic<bool>> pageable = std::make_shared<std::atomic<bool>>(false));

  const c10::Device device;
  const c10::impl::VirtualGuardImpl guard;
  const c10::Stream in, out;  // of copies to and from the host
  const std::shared_ptr<StagingPool> pool;
  // Of gradients that are compressed on the host, without a limit: calls that wait for memory of `pool` may be before theirs.
  const std::shared_ptr<StagingPool> gradients;
  const size_t segment;  // Limits
};
using LanePtr = std::shared_ptr<Lane>;

// kUnsupported: the current stream of the device is being captured.
Status check_not_captured(const Lane& lane);

// Results on the device, which are there after an event.
class Arrival {
 public:
  Arrival() = default;
  Arrival(LanePtr lane, EventPtr event) : lane_(std::move(lane)), event_(std::move(event)) {}

  const LanePtr& lane() const { return lane_; }
  bool has_come() const { return !event_ || event_->query(); }
  void block_current_stream() const;

 private:
  LanePtr lane_;
  EventPtr event_;
};

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_STAGING_H_
