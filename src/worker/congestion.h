// Round-trip estimate (RFC 6298) and congestion window (AIMD with slow start, RFC 5681) of one stripe.
#ifndef NETSUM_SRC_WORKER_CONGESTION_H_
#define NETSUM_SRC_WORKER_CONGESTION_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace netsum {

class RoundTrip {
 public:
  void sample(int64_t rtt_us) {
    const double rtt = static_cast<double>(rtt_us);
    if (srtt_us_ == 0) {
      srtt_us_ = std::max(rtt, 1.0);
      variation_us_ = rtt / 2;
      return;
    }
    variation_us_ += (std::abs(rtt - srtt_us_) - variation_us_) / 4;
    srtt_us_ = std::max(srtt_us_ + (rtt - srtt_us_) / 8, 1.0);
  }
  double srtt_us() const { return srtt_us_; }
  // When to ask what became of a packet. The floor keeps the wake-ups of an idle wait rare; a lost packet is
  // mostly found sooner, by the gap it leaves.
  int64_t timeout_us() const {
    if (srtt_us_ == 0) return kInitialTimeoutUs;
    return std::clamp(static_cast<int64_t>(srtt_us_ + 4 * variation_us_), kMinTimeoutUs, kMaxTimeoutUs);
  }

  static constexpr int64_t kInitialTimeoutUs = 20'000;
  static constexpr int64_t kMinTimeoutUs = 5'000;
  static constexpr int64_t kMaxTimeoutUs = 500'000;

 private:
  double srtt_us_ = 0;
  double variation_us_ = 0;
};

// In packets. The slots granted are the ceiling; results are the acknowledgements.
class CongestionWindow {
 public:
  explicit CongestionWindow(uint32_t slots)
      : ceiling_(slots), window_(std::min<double>(slots, kInitialPackets)), threshold_(slots) {}

  uint32_t packets() const { return static_cast<uint32_t>(window_); }

  void on_result() {
    window_ = std::min(ceiling_, window_ < threshold_ ? window_ + 1 : window_ + 1 / window_);
  }
  // At most one reduction per round trip: the losses of one round have one cause.
  void on_loss(int64_t now_us, double srtt_us) {
    if (reduced_once_ && static_cast<double>(now_us - reduced_at_us_) < srtt_us) return;
    reduced_once_ = true;
    reduced_at_us_ = now_us;
    window_ = threshold_ = std::max(window_ / 2, std::min(ceiling_, kMinPackets));
  }

  static constexpr double kInitialPackets = 32;
  static constexpr double kMinPackets = 4;

 private:
  double ceiling_;
  double window_;
  double threshold_;
  int64_t reduced_at_us_ = 0;
  bool reduced_once_ = false;
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_CONGESTION_H_
