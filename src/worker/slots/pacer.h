// A token bucket: what leaves obeys E(tau) <= burst + rate tau in every window (src/bursts/bursts.h). No I/O: time is an
// argument.
#ifndef NETSUM_SRC_WORKER_SLOTS_PACER_H_
#define NETSUM_SRC_WORKER_SLOTS_PACER_H_

#include <algorithm>
#include <cstdint>

namespace netsum {

class Pacer {
 public:
  // `bytes_per_s` and `burst_bytes` > 0. A packet larger than `burst_bytes` never leaves. The bucket is full at first.
  Pacer(uint64_t bytes_per_s, uint64_t burst_bytes)
      : rate_(static_cast<int64_t>(bytes_per_s)),
        most_(static_cast<int64_t>(burst_bytes) * kByte),
        tokens_(most_) {}

  // The earliest time, from `now_us` on, at which `bytes` may leave.
  int64_t ready_us(int64_t now_us, uint64_t bytes) {
    refill(now_us);
    const int64_t missing = static_cast<int64_t>(bytes) * kByte - tokens_;
    return missing <= 0 ? now_us : now_us + (missing + rate_ - 1) / rate_;
  }
  // They leave at `now_us`, which ready_us() has allowed.
  void sent(int64_t now_us, uint64_t bytes) {
    refill(now_us);
    tokens_ -= static_cast<int64_t>(bytes) * kByte;
  }

 private:
  // Tokens are in 1e-6 bytes: bytes per second times microseconds.
  static constexpr int64_t kByte = 1'000'000;

  void refill(int64_t now_us) {
    // No longer than an empty bucket takes to fill, so that the product fits.
    const int64_t passed = std::clamp<int64_t>(now_us - filled_us_, 0, most_ / rate_ + 1);
    tokens_ = std::min(most_, tokens_ + passed * rate_);
    filled_us_ = std::max(filled_us_, now_us);
  }

  const int64_t rate_;
  const int64_t most_;
  int64_t tokens_;
  int64_t filled_us_ = 0;
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_SLOTS_PACER_H_
