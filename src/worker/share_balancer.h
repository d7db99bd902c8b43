// Corrects the weights of a job's stripes while it runs, where the rates that they were planned from are wrong.
//
// Stripes advance together (worker_core.h), so the one with too large a share holds back all others: they could send, but
// may not. The part of the time in which a stripe is held back therefore tells which share is too large (its stripe hardly
// ever is held back, the others almost always are) and which too small (the other way round). In a balanced job, all are
// held back now and then. How wrong a share is, it does not tell: weights change in steps, which grow in one direction and
// shrink when the direction turns, as in Rprop (Riedmiller and Braun, 1993).
//
// All ranks add up their measurements and pass the sums to take(), so all have the same weights. Only integers are used.
// Thread rule: one thread.
#ifndef NETSUM_SRC_WORKER_SHARE_BALANCER_H_
#define NETSUM_SRC_WORKER_SHARE_BALANCER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace netsum {

class ShareBalancer {
 public:
  // Weights are scaled to this sum. None becomes 0 by a change.
  static constexpr uint32_t kSum = 16384;
  static constexpr int32_t kThousand = 1000;  // of a measurement: all the time

  // One weight per stripe, above 0; at least two. `trees`: each stripe is a hierarchy, with links that others do not use. Then a
  // smaller difference is clear, too. (Beside stars, which share the links of the ranks, it is not: with it, an all-reduce beside
  // a link at 75 % took 1.15 times the bound instead of 1.09.)
  explicit ShareBalancer(std::span<const uint32_t> weights, bool trees = false);

  // What a rank has measured: the elements to be summed over all ranks. By stripe: the part of `active_us` in which it was
  // held back. 0 `active_us` of a stripe: the rank has measured nothing.
  static std::vector<int32_t> measurement(std::span<const int64_t> held_us,
                                          std::span<const int64_t> active_us);

  // Of sums of measurements, in the place of a stripe that has not its share: its weight stays, and says nothing of others.
  static constexpr int32_t kNotMeasured = -1;

  // The sums of all ranks' measurements. Returns true if the weights have changed.
  bool take(std::span<const int32_t> sums);
  // By stripe: whether they show clearly that it holds back others.
  std::vector<bool> holding_back(std::span<const int32_t> sums) const;

  std::span<const uint32_t> weights() const { return weights_; }
  // Of trees: what was seen last is not certain yet, or was followed. The next period can be short.
  bool tries() const {
    return trees_ &&
           std::any_of(steps_.begin(), steps_.end(), [](const Step& step) { return step.seen != 0; });
  }

 private:
  struct Step {
    int seen = 0;                // in the last period: -1 too large, 1 too small; 0: neither
    int direction = 0;           // of the last change, likewise; 0: none yet
    uint32_t size = kFirstStep;  // in parts of kWhole
  };
  static constexpr uint32_t kWhole = 256, kFirstStep = 16, kLargestStep = 96, kSmallestStep = 4;

  std::vector<int> directions(std::span<const int32_t> sums) const;
  bool move(const std::vector<int>& directions);
  void normalize();

  const bool trees_;
  std::vector<uint32_t> weights_;
  std::vector<Step> steps_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_SHARE_BALANCER_H_
