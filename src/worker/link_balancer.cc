#include "src/worker/link_balancer.h"

#include <algorithm>
#include <numeric>

#include "src/base/assert.h"

namespace netsum {
namespace {

constexpr int64_t kThousand = 1000;
// In thousandths of the sums of others' shards. Ranks that are the last so often together are slow if each of them is often
// enough, and if operations take longer than usual; a rank that is almost always the last, too, if this was seen so often.
constexpr int64_t kMostlyLast = 700, kAlone = 500, kAlmostAlwaysLast = 850;
constexpr uint32_t kSeen = 4;
// Fewer sums say little.
constexpr int64_t kEnough = 128;
// In percent of the usual time, and of that before a trial.
constexpr int64_t kAsUsual = 115, kFaster = 97, kAsFast = 104;
constexpr uint32_t kFirstPause = 2, kLongestPause = 128;
// After so many periods and pauses without a trial, pauses are short again.
constexpr uint32_t kCalmPeriods = 64, kCalmPauses = 4;

}  // namespace

bool LinkBalancer::take(std::span<const int32_t> last, std::span<const int32_t> own_share,
                        std::span<const int32_t> ns) {
  NETSUM_ASSERT(last.size() == ranks_.size() && own_share.size() == ranks_.size() &&
                ns.size() == ranks_.size());
  const int64_t least_ns = *std::min_element(ns.begin(), ns.end());
  if (least_ns <= 0) return false;
  const std::vector<Rank> before = ranks_;
  find_slow(last, own_share);
  for (Rank& rank : ranks_) {
    if (rank.wait > 0) --rank.wait;
    if (rank.part == kWhole && ++rank.calm > kCalmPeriods + kCalmPauses * rank.pause) rank.pause = 0;
  }
  if (tries()) judge(least_ns);
  try_less(least_ns);
  if (!tries()) try_more(least_ns);
  return !std::equal(before.begin(), before.end(), ranks_.begin(),
                     [](const Rank& a, const Rank& b) { return a.part == b.part; });
}

void LinkBalancer::find_slow(std::span<const int32_t> last, std::span<const int32_t> own_share) {
  const int64_t all = std::accumulate(last.begin(), last.end(), int64_t{0});
  // Of equal ranks, each is the last in one of ranks - 1 sums of others.
  const auto each = std::min<int64_t>(kAlone, 2500 / static_cast<int64_t>(ranks_.size() - 1));
  int64_t together = 0;
  size_t found = 0;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    const int64_t of_others = std::max<int64_t>(1, all * (kThousand - own_share[i]) / kThousand);
    const int64_t part = last[i] * kThousand / of_others;
    rank.slow = part >= each;
    rank.seen = part >= kAlmostAlwaysLast ? rank.seen + 1 : 0;
    if (!rank.slow) continue;
    ++found;
    together += part;
  }
  if (all >= kEnough && together >= kMostlyLast && found <= std::max<size_t>(1, ranks_.size() / 3)) return;
  for (Rank& rank : ranks_) rank.slow = false;
}

void LinkBalancer::judge(int64_t ns) {
  const bool less = trial_ < 0;
  const bool slow =
      std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.tried && rank.slow; });
  const bool good = ns * 100 <= before_ns_ * (less ? kFaster : slow ? 100 : kAsFast);
  bool any_good = good;
  for (Rank& rank : ranks_) {
    if (!rank.tried) continue;
    rank.tried = false;
    // The time before may be that of a period in which the link was fast at first. Whom all wait for though it has no share is
    // slow anyway.
    const bool keeps = good || (less && rank.seen > 0 && ns * 100 > usual_ns_ * kAsUsual);
    any_good |= keeps;
    if (!keeps) {
      rank.part = rank.before;
      lengthen_pause(&rank);
    }
    rank.wait = less || !keeps ? rank.pause : 0;
  }
  // Operations are slower than usual for another reason.
  if (!any_good && less) usual_ns_ = before_ns_;
  trial_ = 0;
}

void LinkBalancer::try_less(int64_t ns) {
  if (usual_ns_ == 0) usual_ns_ = ns;
  const bool as_usual = ns * 100 <= usual_ns_ * kAsUsual;
  // The first periods may have been slow, so it falls at once.
  if (as_usual && is_whole()) usual_ns_ = std::min(ns, (3 * usual_ns_ + ns) / 4);
  for (Rank& rank : ranks_) {
    if (!rank.slow || rank.part == 0) continue;
    if (as_usual && (rank.wait > 0 || rank.seen < kSeen)) continue;
    // The first time, or it has had its share back for a short time only.
    lengthen_pause(&rank);
    rank.calm = rank.seen = 0;
    change(ns, &rank, 0);
  }
}

void LinkBalancer::try_more(int64_t ns) {
  for (Rank& rank : ranks_) {
    if (rank.part == kWhole || rank.slow || rank.wait > 0) continue;
    change(ns, &rank, rank.part < kWhole * 3 / 4 ? (rank.part + kWhole) / 2 : kWhole);
  }
}

void LinkBalancer::change(int64_t ns, Rank* rank, uint32_t part) {
  trial_ = part < rank->part ? -1 : 1;
  before_ns_ = ns;
  rank->before = rank->part;
  rank->part = part;
  rank->tried = true;
}

bool LinkBalancer::is_whole() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.part == kWhole; });
}

void LinkBalancer::lengthen_pause(Rank* rank) {
  rank->pause = std::clamp(2 * rank->pause, kFirstPause, kLongestPause);
}

}  // namespace netsum
