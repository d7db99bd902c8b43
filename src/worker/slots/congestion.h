// Round-trip estimate (RFC 6298) and congestion window of one stripe: slow start (RFC 5681), then one packet
// more per round trip, unless a queue has formed, and a decrease in proportion to losses.
#ifndef NETSUM_SRC_WORKER_SLOTS_CONGESTION_H_
#define NETSUM_SRC_WORKER_SLOTS_CONGESTION_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

namespace netsum {

class RoundTrip {
 public:
  void sample(int64_t rtt_us) {
    const double rtt = static_cast<double>(rtt_us);
    least_us_ = std::min(least_us_, rtt);
    if (samples_++ % kRecentSamples == 0)
      recent_us_ = {std::numeric_limits<double>::infinity(), recent_us_[0]};
    recent_us_[0] = std::min(recent_us_[0], rtt);
    if (srtt_us_ == 0) {
      srtt_us_ = std::max(rtt, 1.0);
      variation_us_ = rtt / 2;
      return;
    }
    variation_us_ += (std::abs(rtt - srtt_us_) - variation_us_) / 4;
    srtt_us_ = std::max(srtt_us_ + (rtt - srtt_us_) / 8, 1.0);
  }
  double srtt_us() const { return srtt_us_; }
  double least_us() const { return least_us_; }  // infinity before the first sample
  // Whether packets wait in a queue for much longer than the path takes by itself: a larger window would only
  // lengthen the queue. The threshold is that of HyStart++ (RFC 9406).
  bool queues() const { return srtt_us_ > least_us_ + kQueueUs; }
  // Whether even the fastest of the last packets did.
  bool all_queue() const { return std::min(recent_us_[0], recent_us_[1]) > least_us_ + kQueueUs; }
  // After which time to probe for a result. The minimum limits wake-ups of an idle wait; most lost packets are detected
  // earlier, by the gap in the results.
  int64_t timeout_us() const {
    if (srtt_us_ == 0) return kInitialTimeoutUs;
    return std::clamp(static_cast<int64_t>(srtt_us_ + 4 * variation_us_), kMinTimeoutUs, max_timeout_us());
  }

  // The same for a packet that later packets have overtaken. It is already late, so the minimum is small (as in RFC 8985,
  // RACK).
  int64_t overtaken_us() const {
    return std::clamp(static_cast<int64_t>(srtt_us_ + 4 * variation_us_), kMinOvertakenUs, max_timeout_us());
  }

  static constexpr int64_t kInitialTimeoutUs = 20'000;
  static constexpr int64_t kMinTimeoutUs = 5'000;
  static constexpr int64_t kMaxTimeoutUs = 500'000;  // of round trips up to a third of a second
  static constexpr int64_t kMaxSlowTimeoutUs =
      4'000'000;  // of longer ones: a software switch may take a second
  static constexpr int64_t kMinOvertakenUs = 200;
  static constexpr double kQueueUs = 4'000;
  static constexpr uint32_t kRecentSamples = 16;

 private:
  int64_t max_timeout_us() const {
    return std::clamp(static_cast<int64_t>(1.5 * srtt_us_), kMaxTimeoutUs, kMaxSlowTimeoutUs);
  }

  uint32_t samples_ = 0;
  // The least of the last samples, at most kRecentSamples, and of as many before them.
  std::array<double, 2> recent_us_{std::numeric_limits<double>::infinity(),
                                   std::numeric_limits<double>::infinity()};
  double least_us_ = std::numeric_limits<double>::infinity();
  double srtt_us_ = 0;
  double variation_us_ = 0;
};

// In packets. The granted slots are the maximum; results are the acknowledgements.
//
// A loss does not halve the window, as in TCP: the members' losses add up (a step needs a packet of each, in both
// directions), and on a path that loses 1 %, a window that halves would stay at a dozen packets whatever the link's
// capacity. The decrease is proportional, as DCTCP's reaction to marks (RFC 8257): with a loss rate of p, the window is
// about 2 / p packets, and an overflowing queue, which loses a large part, still shrinks it at once.
class CongestionWindow {
 public:
  // Stripes share the rank's link in proportion to their windows, so they begin in proportion to their chunks: `share`
  // is this one's part of all, `largest` that of the stripe with the most.
  explicit CongestionWindow(uint32_t slots, double share = 1, double largest = 1)
      : ceiling_(slots),
        initial_(std::min<double>(slots, initial_packets(share, largest))),
        window_(initial_),
        threshold_(slots) {}

  uint32_t packets() const { return static_cast<uint32_t>(window_); }

  // `queue`: the window would only lengthen a queue. But a path may also have become slower, so the initial window is allowed.
  void on_result(bool queue = false) {
    if (queue && window_ >= initial_) return;
    window_ = std::min(ceiling_, window_ < threshold_ ? window_ + 1 : window_ + 1 / window_);
  }
  // Each loss reduces the window by half a packet, so at a loss rate of p it shrinks by the fraction p / 2 per round trip.
  // At least half of the slots stay usable: the steps after a lost one continue in them during its repair. In a
  // queue, where each repair waits several times, the window returns to the initial one sooner.
  void on_loss(bool queue = false) {
    const double cost = queue && window_ > initial_ ? kLossCostInQueue : kLossCost;
    window_ = std::min(window_ - cost, ceiling_ / 2);
    window_ = threshold_ = std::max(window_, std::min(ceiling_, kMinPackets));
  }

  static constexpr double kMostInitialPackets = 32;
  static constexpr double kInitialPacketsOfAllStripes = 128;
  static constexpr double kMinPackets = 4;
  static constexpr double kLossCost = 0.5, kLossCostInQueue = 4;

 private:
  static double initial_packets(double share, double largest) {
    const double of_all = std::min(kInitialPacketsOfAllStripes, kMostInitialPackets / largest);
    return std::max(kMinPackets, of_all * share);
  }

  double ceiling_;
  double initial_;
  double window_;
  double threshold_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_SLOTS_CONGESTION_H_
