// Shards of data to ranks: the moves that take the least time.
#ifndef NETSUM_SRC_PLAN_PLACEMENT_DATA_H_
#define NETSUM_SRC_PLAN_PLACEMENT_DATA_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/plan/cluster.h"

namespace netsum::plan {

inline constexpr size_t kMostShards = 100'000;

struct DataReplica {
  std::string name;  // of a host or a switch
  size_t at = 0;     // the switch; of a host, its own
};

struct DataShard {
  std::string name;
  uint64_t bytes = 0;
  std::vector<DataReplica> replicas;
  int line = 0;
};

// A shard moves from its nearest replica at the rate of the slowest uplink on the way. Within a rack it moves at no cost.
class DataMoves {
 public:
  // Errors: kInvalidArgument with the shard and its line; kResourceExhausted if a move takes longer than years.
  static Result<DataMoves> make(const Cluster& cluster, const std::vector<DataShard>& shards);

  size_t shards() const { return costs_.size(); }
  // In nanoseconds, rounded up.
  int64_t cost(size_t shard, size_t at) const { return costs_[shard][at]; }
  size_t replica(size_t shard, size_t at) const { return nearest_[shard][at]; }
  // Less than or equal to the sum of the costs for any counts within `most`.
  int64_t least_cost(const std::vector<size_t>& most) const;
  // A larger such cost, for so many ranks in all; it takes longer to compute.
  int64_t least_for(const std::vector<size_t>& most, size_t ranks) const { return assign(most, ranks).cost; }

  struct Assignment {
    int64_t cost = 0;
    std::vector<size_t> at;  // [shard]: a switch with ranks
    size_t work = 0;         // steps that it took
  };
  // The least sum of costs. No rank gets more than the number of shards divided by that of ranks, rounded up.
  Assignment assign(const std::vector<size_t>& counts) const;

 private:
  // As if there were more than `ranks` ranks, none of which gets more shards than one of `ranks`.
  Assignment assign(const std::vector<size_t>& counts, size_t ranks) const;

  std::vector<std::vector<int64_t>> costs_;   // [shard][switch]
  std::vector<std::vector<size_t>> nearest_;  // [shard][switch]: a replica
};

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_PLACEMENT_DATA_H_
