// The rule by which ranks continue without those that are missing: how many must come, how long they wait for more, and
// how they are numbered. It does no I/O. Communicator::regroup() applies it to the ranks that come to an aggregator; other
// programs, such as the PyTorch backend, can apply it to ranks that meet elsewhere.
#ifndef NETSUM_REGROUP_H_
#define NETSUM_REGROUP_H_

#include <chrono>
#include <optional>
#include <span>

#include "netsum/export.h"
#include "netsum/status.h"

namespace netsum {

class NETSUM_EXPORT RegroupRule {
 public:
  using Duration = std::chrono::microseconds;

  // For ranks 0 to `world_size` - 1. `min_members` and `gather` as in RegroupOptions. Error: kInvalidArgument.
  static Result<RegroupRule> make(int world_size, int min_members, Duration gather);

  int world_size() const { return world_size_; }
  int min_members() const { return min_members_; }  // 1 to world_size()

  // How long after the most recent arrival `arrived` ranks continue: at once if all are there, never (empty) while fewer
  // than min_members() are.
  std::optional<Duration> closes_after(int arrived) const;

  // kTimeout: the ranks could not continue within `waited`. `missing` is ascending and not empty.
  Status timed_out(std::span<const int> missing, Duration waited) const;
  // kPeerLost: `rank` came after ranks `members` (empty: not known) had continued.
  static Status came_too_late(int rank, std::span<const int> members);

  // The new number of a rank, or kNoRank if it does not take part. `members`: the old numbers of all that do, ascending.
  static int new_rank(std::span<const int> members, int old_rank);

 private:
  RegroupRule(int world_size, int min_members, Duration gather)
      : world_size_(world_size), min_members_(min_members), gather_(gather) {}

  int world_size_, min_members_;
  Duration gather_;
};

}  // namespace netsum

#endif  // NETSUM_REGROUP_H_
