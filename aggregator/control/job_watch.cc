#include "aggregator/control/job_watch.h"

#include <algorithm>

namespace netsum {

void JobWatch::look(int64_t now_us, const JobProgress& progress) {
  const bool same = progress_.missing != 0 && progress.missing != 0 && progress.oldest == progress_.oldest;
  if (!same) since_us_ = now_us;
  const int64_t stands_for_us = looked_us_ < 0 ? 0 : std::min(now_us - looked_us_, kMostPerLookUs);
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

std::vector<AggregatorJobStatus::Fault> JobWatch::faults() const {
  // By faults::Kind.
  constexpr const char* kNames[] = {"loss_to_aggregator", "loss_from_aggregator", "slow", "slow", "slow"};
  constexpr const char* kCauses[] = {"", "", "", "link", "host"};
  std::vector<AggregatorJobStatus::Fault> all;
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
