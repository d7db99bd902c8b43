// A number written by one thread and read by any.
#ifndef NETSUM_SRC_BASE_COUNTER_H_
#define NETSUM_SRC_BASE_COUNTER_H_

#include <atomic>
#include <cstdint>

namespace netsum {

class Counter {
 public:
  // Owner thread only. A plain add of a relaxed load: no locked instruction on the data path.
  void add(uint64_t n = 1) {
    value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  void set(uint64_t n) { value_.store(n, std::memory_order_relaxed); }
  // Any thread.
  uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

}  // namespace netsum

#endif  // NETSUM_SRC_BASE_COUNTER_H_
