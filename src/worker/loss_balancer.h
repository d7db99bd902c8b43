// Moves shares away from stripes that lose far more packets than the others, and back.
//
// A link that loses packets need not make its stripe late, so ShareBalancer and LinkBalancer may see nothing: only some chunks wait
// for their repair. But all ranks know what they have sent again, and add it up: for each stripe, whether it is that of an
// aggregator or of a shard. All of its share is then tried elsewhere, and stays there unless operations become slower, as where
// the lossy stripe has the faster links.
//
// A share comes back as a whole, after a pause, to see whether the link is repaired. Each time that it must go again, the next pause
// is twice as long, and four times after a failure elsewhere: shares must not follow a link that flaps.
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
  explicit LossBalancer(size_t stripes) : stripes_(stripes) {}

  // What all ranks have measured in a period. By stripe: packets that they have sent again, and about how many they have sent.
  // How long the fastest rank took for a chunk, in ns; 0: it has measured nothing. Returns true if shares have changed.
  bool take(std::span<const int64_t> lost, std::span<const int64_t> sent, int64_t ns);

  // A change is not judged yet: the next period can be short.
  bool tries() const {
    return std::any_of(stripes_.begin(), stripes_.end(), [](const Stripe& stripe) { return stripe.tried; });
  }
  // It has no share, or only what no stripe can be without.
  bool is_away(size_t stripe) const { return stripes_[stripe].away; }

 private:
  struct Stripe {
    int64_t lost = 0, sent = 0;  // lately
    bool away = false;
    bool tried = false;  // it is away for a period that has not been judged
    // In periods.
    uint32_t pause = 0;  // after the last return, or failure
    uint32_t wait = 0;   // until it may come back or, after a failure, go again
    uint32_t calm = 0;   // since it came back
  };

  bool is_lossy(size_t stripe) const;
  bool judge(int64_t ns);
  bool bring_back();
  bool send_away(int64_t ns);
  static void lengthen_pause(Stripe* stripe);

  std::vector<Stripe> stripes_;
  int64_t before_ns_ = 0;  // the trial
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_LOSS_BALANCER_H_
