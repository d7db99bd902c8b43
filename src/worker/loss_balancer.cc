#include "src/worker/loss_balancer.h"

#include <algorithm>

#include "src/base/assert.h"
#include "src/worker/trials.h"

namespace netsum {
namespace {

// A stripe is lossy if it has lost one packet in kOneIn lately, and more than it would at the others' loss: by half at
// least (where one of three ranks has a lossy link, its shard's stripe loses twice as many as the others), and by five standard
// deviations of the difference. Chance makes this less than once in a million periods.
constexpr int64_t kOneIn = 4000, kDeviations = 5;
constexpr int64_t kMemory = 131'072;  // packets: counts are halved
// Fewer packets do not show whether a link is repaired.
constexpr int64_t kEnoughPackets = 256;

}  // namespace

bool LossBalancer::take(std::span<const int64_t> lost, std::span<const int64_t> sent, int64_t ns, bool may) {
  NETSUM_ASSERT(lost.size() == stripes_.size() && sent.size() == stripes_.size());
  if (ns <= 0) return false;
  for (size_t i = 0; i < stripes_.size(); ++i) {
    Stripe& stripe = stripes_[i];
    stripe.lost += lost[i];
    stripe.sent += sent[i];
    while (stripe.sent > kMemory) {
      stripe.sent /= 2;
      stripe.lost /= 2;
    }
    if (stripe.wait > 0) --stripe.wait;
    if (stripe.part == kWhole && is_calm(++stripe.calm, stripe.pause)) stripe.pause = 0;
  }
  // One change at a time, or none is judged by its own effect.
  return may && (judge(ns) || judge_probes() || send_away(ns) || bring_back());
}

// Against the median of the others' losses: what all lose says nothing about a stripe.
bool LossBalancer::is_lossy(size_t number) const {
  const Stripe& stripe = stripes_[number];
  if (stripe.lost * kOneIn < stripe.sent) return false;
  // Losses in a million packets; one more than were lost: few packets do not show that a stripe loses none.
  constexpr int64_t kMillion = 1'000'000;
  std::vector<int64_t> others;
  for (size_t other = 0; other < stripes_.size(); ++other) {
    const Stripe& one = stripes_[other];
    if (other != number && one.part > 0 && one.sent > 0)
      others.push_back((one.lost + 1) * kMillion / (one.sent + 1));
  }
  if (others.empty()) return false;
  const auto middle = others.begin() + static_cast<std::ptrdiff_t>(others.size() / 2);
  std::nth_element(others.begin(), middle, others.end());
  const int64_t expected = *middle * stripe.sent / kMillion, more = stripe.lost - expected;
  return more > 0 && more * 2 >= expected &&
         more * more >= kDeviations * kDeviations * (stripe.lost + expected);
}

// Returns true if the shares of a trial come back.
bool LossBalancer::judge(int64_t ns) {
  bool changed = false;
  for (Stripe& stripe : stripes_) {
    if (!stripe.tried) continue;
    stripe.tried = false;
    const bool good = ns * 100 <= before_ns_ * kAsFast;
    if (!good) lengthen_pause(&stripe);  // once more: trials that fail cost time
    stripe.wait = stripe.pause;
    if (good) continue;
    give_back(&stripe, kWhole);
    changed = true;
  }
  return changed;
}

// Of the parts that have come back. What is lost again shows the same as before, so no time is compared.
bool LossBalancer::judge_probes() {
  bool changed = false;
  for (size_t i = 0; i < stripes_.size(); ++i) {
    Stripe& stripe = stripes_[i];
    if (stripe.part != kProbe) continue;
    if (is_lossy(i)) {
      lengthen_pause(&stripe);
      stripe.part = 0;
      stripe.wait = stripe.pause;
    } else if (stripe.sent >= kEnoughPackets) {
      give_back(&stripe, kWhole);
    } else {
      continue;
    }
    changed = true;
  }
  return changed;
}

// At most a third of the stripes, and never all.
bool LossBalancer::send_away(int64_t ns) {
  const size_t most = std::max<size_t>(1, stripes_.size() / 3);
  const auto is_away = [](const Stripe& stripe) { return stripe.part < kWhole; };
  bool changed = false;
  for (size_t i = 0; i < stripes_.size(); ++i) {
    Stripe& stripe = stripes_[i];
    const auto away = static_cast<size_t>(std::count_if(stripes_.begin(), stripes_.end(), is_away));
    if (stripe.part < kWhole || stripe.wait > 0 || away >= most || away + 1 >= stripes_.size() ||
        !is_lossy(i))
      continue;
    lengthen_pause(&stripe);
    stripe.part = 0;
    stripe.tried = true;
    before_ns_ = ns;
    changed = true;
  }
  return changed;
}

bool LossBalancer::bring_back() {
  bool changed = false;
  for (Stripe& stripe : stripes_) {
    if (stripe.part > 0 || stripe.wait > 0) continue;
    give_back(&stripe, kProbe);
    changed = true;
  }
  return changed;
}

void LossBalancer::give_back(Stripe* stripe, uint32_t part) {
  stripe->part = part;
  stripe->calm = 0;
  stripe->lost = stripe->sent = 0;  // what it loses from now on counts
}

void LossBalancer::lengthen_pause(Stripe* stripe) {
  stripe->pause = longer_pause(stripe->pause);
}

}  // namespace netsum
