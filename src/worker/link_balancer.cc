#include "src/worker/link_balancer.h"

#include <algorithm>
#include <numeric>

#include "src/base/assert.h"
#include "src/worker/trials.h"

namespace netsum {
namespace {

constexpr int64_t kThousand = 1000;
// In thousandths of the sums of others' shards. If operations take longer than usual, the one rank that so many sums wait for is
// slow, or several for which so many wait together, each often enough. A rank is, too, if almost all sums wait for it, and
// this was seen so often.
constexpr int64_t kAlone = 500, kMostlyLast = 700, kAlmostAlwaysLast = 850;
constexpr uint32_t kSeen = 4;
// In thousandths of the time: a stripe that is held back less is the one that holds back the others.
constexpr int64_t kRarelyHeld = 200;
// Fewer sums say little.
constexpr int64_t kEnoughSums = 128;
// In percent of the usual time, and of that before a trial.
constexpr int64_t kAsUsual = 115, kFaster = 97;

}  // namespace

bool LinkBalancer::take(std::span<const int32_t> last, std::span<const int32_t> own_share,
                        std::span<const int32_t> ns, std::span<const int32_t> held) {
  NETSUM_ASSERT(last.size() == ranks_.size() && own_share.size() == ranks_.size() &&
                ns.size() == ranks_.size() && held.size() == ranks_.size());
  const int64_t least_ns = *std::min_element(ns.begin(), ns.end());
  if (least_ns <= 0) return false;
  const std::vector<Rank> before = ranks_;
  find_slow(last, own_share, held);
  for (Rank& rank : ranks_) {
    if (rank.wait > 0) --rank.wait;
    if (rank.part == kWhole && is_calm(++rank.calm, rank.pause)) rank.pause = 0;
  }
  if (!joins(least_ns)) {
    if (tries()) judge(least_ns);
    try_less(least_ns);
    if (!tries()) try_more(least_ns);
  }
  return !std::equal(before.begin(), before.end(), ranks_.begin(),
                     [](const Rank& a, const Rank& b) { return a.part == b.part; });
}

// The part of the time, in thousandths, in which the stripes wait that hold back no other.
int64_t LinkBalancer::others_wait(std::span<const int32_t> held) const {
  int64_t sum = 0, count = 0;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (held[i] <= kRarelyHeld) continue;
    sum += held[i];
    ++count;
  }
  return count == 0 ? 0 : sum / count;
}

void LinkBalancer::find_slow(std::span<const int32_t> last, std::span<const int32_t> own_share,
                             std::span<const int32_t> held) {
  const int64_t all = std::accumulate(last.begin(), last.end(), int64_t{0});
  // Of equal ranks, each is the last in one of ranks - 1 sums of others.
  const int64_t usual = kThousand / static_cast<int64_t>(ranks_.size() - 1);
  const int64_t each = std::min(kAlone, usual * 5 / 2);
  // Of the sums in which another rank was the last, those before which it waited for a shard that holds back all others.
  const int64_t waited = others_wait(held);
  int64_t together = 0;
  bool holds_back = false;
  size_t found = 0;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    const int64_t of_others = std::max<int64_t>(1, all * (kThousand - own_share[i]) / kThousand);
    const int64_t part = last[i] * kThousand / of_others;
    int64_t waits = part;
    // What passes a slow link is late in both directions: the rank's contributions, and the results of its shard.
    const bool holds = rank.part == kWhole && held[i] <= kRarelyHeld;
    if (holds && part >= usual) waits += (kThousand - part) * waited / kThousand;
    rank.slow = waits >= each && (holds || rank.part < kWhole || part >= kMostlyLast);
    rank.seen = waits >= kAlmostAlwaysLast ? rank.seen + 1 : 0;
    if (!rank.slow) continue;
    ++found;
    together += part;
    holds_back |= holds;
  }
  if (holds_back && together < kThousand) together += (kThousand - together) * waited / kThousand;
  const int64_t enough = found == 1 ? kAlone : kMostlyLast;
  if (all >= kEnoughSums && together >= enough && found <= most_slow()) return;
  for (Rank& rank : ranks_) rank.slow = false;
}

// Whether the trial goes on with further ranks.
bool LinkBalancer::joins(int64_t ns) {
  if (trial_ >= 0 || ns * 100 <= before_ns_ * kFaster) return false;
  const auto is_new = [](const Rank& rank) { return rank.slow && rank.part == kWhole; };
  const auto more = static_cast<size_t>(std::count_if(ranks_.begin(), ranks_.end(), is_new));
  if (more == 0 || away() + more > most_slow()) return false;
  for (Rank& rank : ranks_)
    if (is_new(rank)) take_all(&rank);
  return true;
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
    if (rank.part == kWhole && away() >= most_slow()) continue;
    before_ns_ = ns;
    take_all(&rank);
  }
}

void LinkBalancer::try_more(int64_t ns) {
  for (Rank& rank : ranks_) {
    if (rank.part == kWhole || rank.slow || rank.wait > 0) continue;
    before_ns_ = ns;
    change(&rank, rank.part < kWhole * 3 / 4 ? (rank.part + kWhole) / 2 : kWhole);
  }
}

void LinkBalancer::take_all(Rank* rank) {
  // The first time, or it has had its share back for a short time only.
  lengthen_pause(rank);
  rank->calm = rank->seen = 0;
  change(rank, 0);
}

void LinkBalancer::change(Rank* rank, uint32_t part) {
  trial_ = part < rank->part ? -1 : 1;
  rank->before = rank->part;
  rank->part = part;
  rank->tried = true;
}

// Ranks whose shards have not their whole share.
size_t LinkBalancer::away() const {
  return static_cast<size_t>(
      std::count_if(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.part < kWhole; }));
}

bool LinkBalancer::is_whole() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.part == kWhole; });
}

void LinkBalancer::lengthen_pause(Rank* rank) {
  rank->pause = longer_pause(rank->pause);
}

}  // namespace netsum
