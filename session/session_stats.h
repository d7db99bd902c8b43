// A session's statistics, and its description in one line.
#ifndef NETSUM_SESSION_SESSION_STATS_H_
#define NETSUM_SESSION_SESSION_STATS_H_

#include <string>
#include <vector>

#include "netsum/communicator.h"
#include "session/data_path.h"
#include "session/shard.h"

namespace netsum {

// Adds the counters of the path's engines, and the shard's traffic. `shard` may be null.
void add_path_stats(const DataPath& path, const Shard* shard, CommunicatorStats* stats);

// As Communicator::describe(). `aggregators`: their addresses, in the order of `job`. `why_shards`: why the ranks sum
// in their shards though aggregators are configured; empty if none are.
struct PathDescription {
  const DataPath& path;
  const Memberships& job;
  const std::vector<std::string>& aggregators;
  std::string why_shards;
};
std::string describe(const PathDescription& what);

// Ranks whose shards have lost most of their planned share. Any thread.
std::vector<int> ranks_away(const NetworkPath& network);

// Where sums are made: of `aggregators` those that have stripes with a share, and "hosts" if embedded shards do.
std::vector<std::string> places_of(const PathDescription& what);
// As CommunicatorStats::wrong_sums, of this session alone.
std::vector<CommunicatorStats::WrongSums> wrong_sums_of(const PathDescription& what);

}  // namespace netsum

#endif  // NETSUM_SESSION_SESSION_STATS_H_
