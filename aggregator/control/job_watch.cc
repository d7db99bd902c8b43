#include "aggregator/control/job_watch.h"

#include <algorithm>
#include <cstddef>

#include "src/faults/path_faults.h"

namespace netsum {
namespace {

// Adds what was counted since `before`; of counters that have begun anew, nothing.
void add_since(const AggregatorJobStatus::Path& before, const AggregatorJobStatus::Path& now, uint64_t most,
               AggregatorJobStatus::Path* lately) {
  if (now.kept_to >= before.kept_to && now.lost_to >= before.lost_to) {
    lately->kept_to += now.kept_to - before.kept_to;
    lately->lost_to += now.lost_to - before.lost_to;
  }
  if (now.kept_from >= before.kept_from && now.lost_from >= before.lost_from) {
    lately->kept_from += now.kept_from - before.kept_from;
    lately->lost_from += now.lost_from - before.lost_from;
  }
  for (; lately->kept_to > most; lately->lost_to /= 2) lately->kept_to /= 2;
  for (; lately->kept_from > most; lately->lost_from /= 2) lately->kept_from /= 2;
}

// All paths over a link with this loss have at least a third of it, as far as they have packets enough to tell.
bool all_lose(const std::vector<faults::PathCount>& paths, size_t link, double loss) {
  constexpr double kEnough = 9;
  return std::all_of(paths.begin(), paths.end(), [&](const faults::PathCount& path) {
    const bool is_over = path.links.front().first == link || path.links.back().first == link;
    const double expected = loss * static_cast<double>(path.kept + path.lost);
    return !is_over || expected < kEnough || 3 * static_cast<double>(path.lost) >= expected;
  });
}

}  // namespace

void JobWatch::look(int64_t now_us, const JobProgress& progress) {
  const bool same = progress_.missing != 0 && progress.missing != 0 && progress.oldest == progress_.oldest;
  if (!same) since_us_ = now_us;
  since_us_ = std::min(since_us_, now_us);  // the clock may step back
  const int64_t stands_for_us =
      looked_us_ < 0 ? 0 : std::clamp<int64_t>(now_us - looked_us_, 0, kMostPerLookUs);
  looked_us_ = now_us;
  progress_ = progress;
  links_.observe(progress.members);
  for (const int rank : waiting_for()) waited_us_[static_cast<size_t>(rank)] += stands_for_us;
}

std::vector<int> JobWatch::waiting_for() const {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < member_of_rank_.size(); ++rank) {
    const uint16_t member = member_of_rank_[rank];
    if (member < 64 && (progress_.missing >> member & 1)) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

std::vector<int> JobWatch::ranks_of(size_t member) const {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < member_of_rank_.size(); ++rank)
    if (member_of_rank_[rank] == member) ranks.push_back(static_cast<int>(rank));
  return ranks;
}

AggregatorJobStatus::Path path_of(std::vector<int> ranks, const faults::MemberTotals& totals) {
  return {.ranks = std::move(ranks),
          .kept_to = totals.kept[0],
          .lost_to = totals.lost[0],
          .kept_from = totals.kept[1],
          .lost_from = totals.lost[1]};
}

void JobWatch::look_at_shards(const std::vector<AggregatorJobStatus::Path>& paths) {
  of_shards_.clear();
  if (shards_.size() != paths.size()) lately_.assign(paths.size(), {});
  std::vector<faults::PathCount> counts;
  size_t links = 0;
  for (size_t i = 0; i < paths.size(); ++i) {
    const AggregatorJobStatus::Path& now = paths[i];
    AggregatorJobStatus::Path& lately = lately_[i];
    if (shards_.size() == paths.size()) add_since(shards_[i], now, kMemory, &lately);
    const auto rank = static_cast<size_t>(now.ranks.front()), owner = static_cast<size_t>(now.shard);
    links = std::max(links, 2 * std::max(rank, owner) + 2);
    counts.push_back({{{2 * rank, 1}, {2 * owner + 1, 1}}, lately.kept_to, lately.lost_to});
    counts.push_back({{{2 * owner, 1}, {2 * rank + 1, 1}}, lately.kept_from, lately.lost_from});
  }
  shards_ = paths;
  const double usual = faults::usual_loss(counts);
  for (const faults::BadLink& bad : faults::bad_links(counts, links, usual)) {
    // Between two ranks, or between switches: of which, not known here.
    if (bad.links.size() > 1 || !all_lose(counts, bad.links.front(), bad.loss)) continue;
    of_shards_.push_back({.ranks = {static_cast<int>(bad.links.front() / 2)},
                          .kind = bad.links.front() % 2 == 0 ? "loss_to_aggregator" : "loss_from_aggregator",
                          .value = bad.loss,
                          .others = usual});
  }
}

std::vector<AggregatorJobStatus::Path> JobWatch::paths() const {
  std::vector<AggregatorJobStatus::Path> all;
  for (size_t member = 0; member < progress_.members.size(); ++member)
    all.push_back(path_of(ranks_of(member), progress_.members[member]));
  return all;
}

std::vector<AggregatorJobStatus::Fault> JobWatch::faults() const {
  // By faults::Kind.
  constexpr const char* kNames[] = {"loss_to_aggregator", "loss_from_aggregator", "slow", "slow", "slow"};
  constexpr const char* kCauses[] = {"", "", "", "link", "host"};
  std::vector<AggregatorJobStatus::Fault> all = of_shards_;
  for (const faults::Fault& fault : links_.faults()) {
    const double unit = fault.kind >= faults::Kind::kSlow ? 1e-6 : 1;
    all.push_back({.ranks = ranks_of(fault.member),
                   .kind = kNames[static_cast<size_t>(fault.kind)],
                   .value = fault.value * unit,
                   .others = fault.others * unit,
                   .cause = kCauses[static_cast<size_t>(fault.kind)]});
  }
  return all;
}

}  // namespace netsum
