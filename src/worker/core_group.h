// The stripes of a rank may be divided among several WorkerCores, each with a thread and packet I/O of its own. They handle
// the same operations in the same order, each its stripes' chunks of them. The cores share only:
//
//   how far each is in its stripes, because no stripe may run far ahead of the others (worker_core.h). A core writes one
//     cache line for each burst of packets, and reads those of the others. No core waits for another one: a core that is held
//     back by another one checks again after a while.
//   what each has measured for the correction of weights (share_balancer.h), and the operation in which the ranks add it up:
//     its result arrives at one core, and all need it.
//
// Thread rule: any thread, but only the core itself writes what is its own or its stripes'.
#ifndef NETSUM_SRC_WORKER_CORE_GROUP_H_
#define NETSUM_SRC_WORKER_CORE_GROUP_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "src/base/counter.h"
#include "src/worker/slots/slot_layout.h"

namespace netsum {

// How far stripes are in a stream.
struct Progress {
  // The first chunk that some stripe has not sent, by Operation::first_chunk; UINT64_MAX: all are sent.
  uint64_t lowest_chunk = UINT64_MAX;
  uint64_t window_packets = 0;  // of all stripes together
};

class CoreGroup {
 public:
  // By stripe, the number of its core. Each core has one stripe at least.
  explicit CoreGroup(std::vector<size_t> core_of_stripe);

  size_t cores() const { return cores_.size(); }
  size_t stripes() const { return core_of_.size(); }
  size_t core_of(size_t stripe) const { return core_of_[stripe]; }

  void note(size_t core, size_t stream, const Progress& progress);
  Progress progress(size_t stream) const;  // of all cores together

  // The operation in which all ranks add up what they have measured. Its tensor is `measured`.
  struct WeightUpdate {
    std::vector<int32_t> measured;
    std::atomic<size_t> left;                                     // cores at which it has not ended
    void end() { left.fetch_sub(1, std::memory_order_acq_rel); }  // at one core
    bool answered() const { return left.load(std::memory_order_acquire) == 0; }
  };
  // In microseconds, since the last change of weights: when a stripe was held back, and when a core had something to send.
  Counter& held_us(size_t stripe) { return held_us_[stripe]; }
  Counter& active_us(size_t core) { return cores_[core].active_us; }
  // Since the job's begin: StripeCounters::losses.
  Counter& losses(size_t stripe) { return losses_[stripe]; }
  // As held_us: when a core had an operation.
  Counter& busy_us(size_t core) { return cores_[core].busy_us; }
  // Number `number` of the job. The first core that comes to it begins it, with what all have measured by then, and with what
  // it adds.
  std::shared_ptr<WeightUpdate> weight_update(uint64_t number, std::span<const int32_t> added = {});

 private:
  struct alignas(64) Core {
    struct Stream {
      std::atomic<uint64_t> lowest_chunk{UINT64_MAX}, window_packets{0};
    };
    std::array<Stream, SlotLayout::kStreams> streams;
    Counter active_us, busy_us;
  };

  const std::vector<size_t> core_of_;
  std::vector<Core> cores_;
  std::vector<Counter> held_us_, losses_;

  std::mutex mutex_;
  std::shared_ptr<WeightUpdate> latest_;
  uint64_t updates_ = 0;
};

// Divides stripes of these weights among `cores`, at most as many as there are stripes, as evenly as whole stripes allow. By
// stripe, the number of its core.
std::vector<size_t> divide_stripes(std::span<const uint32_t> weights, size_t cores);

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_CORE_GROUP_H_
