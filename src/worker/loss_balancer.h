// Moves shares away from stripes that lose far more packets than the others, and back.
//
// A link that loses packets need not make its stripe late, so ShareBalancer and LinkBalancer may see nothing: only some chunks wait
// for their repair. But all ranks know what they have lost, and add it up: for each stripe, whether it is that of an aggregator or
// of a shard. All of its share is then tried elsewhere, and stays there unless operations become slower, as where the lossy stripe
// has the faster links.
//
// A part of the share comes back after a pause, to see whether the link is repaired, and if so, all of it. Each time that it must
// go again, the next pause is twice as long, and four times after a failure elsewhere: shares must not follow a link that flaps.
//
// All ranks pass the same sums to take(), so all have the same shares. Only integers are used. Thread rule: one thread.
#ifndef NETSUM_SRC_WORKER_LOSS_BALANCER_H_
#define NETSUM_SRC_WORKER_LOSS_BALANCER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace netsum {

class LossBalancer {
 public:
  static constexpr uint32_t kWhole = 256;

  explicit LossBalancer(size_t stripes) : stripes_(stripes) {}

  // What all ranks have measured in a period. By stripe: packets that they have lost, and about how many they have sent, both 0 if
  // losses have another reason. How long the fastest rank took for a chunk, in ns; 0: it has measured nothing. Returns true if
  // shares have changed, which they do only if they `may`: another balancer's change is not judged yet.
  bool take(std::span<const int64_t> lost, std::span<const int64_t> sent, int64_t ns, bool may = true);

  // The next period can be short: it is about a change.
  bool tries() const {
    return std::any_of(stripes_.begin(), stripes_.end(),
                       [](const Stripe& stripe) { return stripe.tried || stripe.part == kProbe; });
  }
  // Which part of its share a stripe has, of kWhole. 0: none, or only what no stripe can be without.
  uint32_t part(size_t stripe) const { return stripes_[stripe].part; }

 private:
  static constexpr uint32_t kProbe = kWhole / 4;
  struct Stripe {
    int64_t lost = 0, sent = 0;  // lately
    uint32_t part = kWhole;
    bool tried = false;  // it is away for a period that has not been judged
    // In periods.
    uint32_t pause = 0;  // after the last return, or failure
    uint32_t wait = 0;   // until it may come back or, after a failure, go again
    uint32_t calm = 0;   // since it came back
  };

  bool is_lossy(size_t stripe) const;
  bool judge(int64_t ns);
  bool judge_probes();
  bool bring_back();
  bool send_away(int64_t ns);
  static void lengthen_pause(Stripe* stripe);
  static void give_back(Stripe* stripe, uint32_t part);

  std::vector<Stripe> stripes_;
  int64_t before_ns_ = 0;  // the trial
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_LOSS_BALANCER_H_
