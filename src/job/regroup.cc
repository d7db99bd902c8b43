#include "netsum/regroup.h"

#include <algorithm>

#include "src/base/assert.h"
#include "src/job/ranks.h"

namespace netsum {

namespace {

std::string describe(RegroupRule::Duration time) {
  return describe_ms(std::chrono::duration_cast<std::chrono::milliseconds>(time).count());
}

}  // namespace

Result<RegroupRule> RegroupRule::make(int world_size, int min_members, Duration gather) {
  if (min_members < 0 || min_members > world_size)
    return Status(ErrorCode::kInvalidArgument, "regroup: min_members is " + std::to_string(min_members) +
                                                   "; it must be 1 to " + std::to_string(world_size) +
                                                   ", the number of ranks, or 0 for half of them");
  if (gather < Duration::zero())
    return Status(ErrorCode::kInvalidArgument, "regroup: the time to gather must not be negative");
  return RegroupRule(world_size, min_members > 0 ? min_members : (world_size + 1) / 2, gather);
}

std::optional<RegroupRule::Duration> RegroupRule::closes_after(int arrived) const {
  if (arrived == world_size_) return Duration::zero();
  if (arrived < min_members_) return std::nullopt;
  return gather_;
}

Status RegroupRule::timed_out(std::span<const int> missing, Duration waited) const {
  NETSUM_ASSERT(!missing.empty());
  const int arrived = world_size_ - static_cast<int>(missing.size());
  const std::string why = arrived < min_members_ ? ", and " + std::to_string(min_members_) + " are needed"
                                                 : ", but that is not enough time to wait " +
                                                       describe(gather_) + " for another rank";
  return {ErrorCode::kTimeout,
          std::to_string(arrived) + " of " + std::to_string(world_size_) + " ranks came to regroup within " +
              describe(waited) + why + "; missing: " + describe_ranks(missing),
          missing.front()};
}

Status RegroupRule::came_too_late(int rank, std::span<const int> members) {
  const std::string others = members.empty()       ? "the others go"
                             : members.size() == 1 ? describe_ranks(members) + " goes"
                                                   : describe_ranks(members) + " go";
  return {ErrorCode::kPeerLost,
          "rank " + std::to_string(rank) + " came too late: " + others + " on without it", rank};
}

int RegroupRule::new_rank(std::span<const int> members, int old_rank) {
  const auto found = std::find(members.begin(), members.end(), old_rank);
  return found != members.end() ? static_cast<int>(found - members.begin()) : kNoRank;
}

}  // namespace netsum
