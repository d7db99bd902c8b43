#include "src/plan/placement_data.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace netsum::plan {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 4;

// [switch]: the slowest uplink on the way from `from`; kUnlimited for itself.
std::vector<int64_t> rates_from(const Cluster& cluster, size_t from) {
  std::vector<int64_t> rates(cluster.switches.size(), 0);
  int64_t rate = kUnlimited;
  for (size_t at = from; at != kNone; at = cluster.switches[at].parent) {
    rates[at] = rate;
    if (at > 0) rate = std::min(rate, cluster.switches[at].up);
  }
  for (size_t i = 1; i < rates.size(); ++i) {
    if (rates[i] == 0) rates[i] = std::min(rates[cluster.switches[i].parent], cluster.switches[i].up);
  }
  return rates;
}

// Moves shards between the switches that have ranks, one shard after the other, each along the cheapest way: a shard may
// push another one out of its switch (successive shortest paths).
class Assigner {
 public:
  Assigner(const std::vector<std::vector<int64_t>>& costs, std::vector<size_t> sites,
           std::vector<size_t> room)
      : costs_(costs),
        sites_(std::move(sites)),
        room_(std::move(room)),
        held_(sites_.size()),
        site_of_(costs.size()),
        fresh_(sites_.size()) {}

  DataMoves::Assignment run() {
    for (size_t shard = 0; shard < costs_.size(); ++shard) add(shard);
    DataMoves::Assignment found{.work = work_};
    for (size_t shard = 0; shard < costs_.size(); ++shard) {
      found.at.push_back(sites_[site_of_[shard]]);
      found.cost += cost(shard, site_of_[shard]);
    }
    return found;
  }

 private:
  int64_t cost(size_t shard, size_t site) const { return costs_[shard][sites_[site]]; }

  void put(size_t shard, size_t site) {
    held_[site].push_back(shard);
    site_of_[shard] = site;
    fresh_[site] = false;
  }

  void add(size_t shard) {
    size_t nearest = 0;
    for (size_t i = 1; i < sites_.size(); ++i) {
      if (cost(shard, i) < cost(shard, nearest)) nearest = i;
    }
    work_ += sites_.size();
    // If a switch has room, no shard in another one gains by moving there. So nothing is cheaper than this.
    if (held_[nearest].size() < room_[nearest]) {
      put(shard, nearest);
      return;
    }
    push(shard);
  }

  // What it costs to move one of the shards at `a` to each other site.
  void refresh(size_t a) {
    if (fresh_[a]) return;
    fresh_[a] = true;
    const size_t sites = sites_.size();
    std::fill_n(move_.begin() + static_cast<std::ptrdiff_t>(a * sites), sites, kNever);
    for (const size_t held : held_[a]) {
      for (size_t b = 0; b < sites; ++b) {
        const int64_t extra = cost(held, b) - cost(held, a);
        if (extra >= move_[a * sites + b]) continue;
        move_[a * sites + b] = extra;
        moved_[a * sites + b] = held;
      }
    }
    work_ += sites * held_[a].size();
  }

  void push(size_t shard) {
    const size_t sites = sites_.size();
    move_.resize(sites * sites);
    moved_.resize(sites * sites);
    for (size_t a = 0; a < sites; ++a) refresh(a);
    std::vector<int64_t> least(sites);
    std::vector<size_t> before(sites, kNone);
    for (size_t i = 0; i < sites; ++i) least[i] = cost(shard, i);
    // There is no circle of moves that gains, so this ends.
    for (bool again = true; again;) {
      again = false;
      work_ += sites * sites;
      for (size_t a = 0; a < sites; ++a) {
        for (size_t b = 0; b < sites; ++b) {
          const int64_t extra = move_[a * sites + b];
          if (extra == kNever || least[a] + extra >= least[b]) continue;
          least[b] = least[a] + extra;
          before[b] = a;
          again = true;
        }
      }
    }
    size_t end = kNone;
    for (size_t i = 0; i < sites; ++i) {
      if (held_[i].size() < room_[i] && (end == kNone || least[i] < least[end])) end = i;
    }
    for (size_t at = end; before[at] != kNone; at = before[at]) {
      const size_t from = before[at], other = moved_[from * sites + at];
      held_[from].erase(std::find(held_[from].begin(), held_[from].end(), other));
      fresh_[from] = false;
      put(other, at);
      end = from;
    }
    put(shard, end);
  }

  const std::vector<std::vector<int64_t>>& costs_;
  const std::vector<size_t> sites_;  // switches with ranks
  const std::vector<size_t> room_;   // [site]
  std::vector<std::vector<size_t>> held_;
  std::vector<size_t> site_of_;
  // [a * sites + b]: the cost of moving one of the shards at a to b, and which one.
  std::vector<int64_t> move_;
  std::vector<size_t> moved_;
  std::vector<bool> fresh_;  // [site]: these are up to date
  size_t work_ = 0;
};

}  // namespace

Result<DataMoves> DataMoves::make(const Cluster& cluster, const std::vector<DataShard>& shards) {
  DataMoves moves;
  if (shards.size() > kMostShards) {
    return Status(ErrorCode::kResourceExhausted,
                  "there are " + std::to_string(shards.size()) + " shards of data; at most " +
                      std::to_string(kMostShards) + " can be placed, so join some");
  }
  if (static_cast<double>(shards.size()) * static_cast<double>(cluster.switches.size()) > 2e7) {
    return Status(ErrorCode::kResourceExhausted,
                  "there are too many shards of data for so many switches; join shards that lie together");
  }
  // All shards together stay below kNever.
  const int64_t most = kNever / static_cast<int64_t>(std::max<size_t>(1, shards.size()));
  std::vector<std::vector<int64_t>> rates(cluster.switches.size());  // [replica's switch]
  for (const DataShard& shard : shards) {
    const std::string at = at_line(shard.line);
    if (shard.replicas.empty()) {
      return Status(
          ErrorCode::kInvalidArgument,
          at + "shard '" + shard.name + "' has no replica; name the hosts or switches that have it");
    }
    std::vector<int64_t> costs(cluster.switches.size(), kNever);
    std::vector<size_t> nearest(cluster.switches.size());
    for (size_t r = 0; r < shard.replicas.size(); ++r) {
      const size_t from = shard.replicas[r].at;
      if (rates[from].empty()) rates[from] = rates_from(cluster, from);
      for (size_t to = 0; to < costs.size(); ++to) {
        const unsigned __int128 work = static_cast<unsigned __int128>(shard.bytes) * 8'000'000'000;
        const auto rate = static_cast<unsigned __int128>(rates[from][to]);
        const unsigned __int128 time = from == to ? 0 : (work + rate - 1) / rate;
        if (time > static_cast<unsigned __int128>(most)) {
          return Status(ErrorCode::kResourceExhausted, at + "moving shard '" + shard.name + "' to '" +
                                                           cluster.switches[to].name + "' would take " +
                                                           std::to_string(most / 1'000'000'000) +
                                                           " s or more; check its bytes and the rates");
        }
        if (static_cast<int64_t>(time) >= costs[to]) continue;
        costs[to] = static_cast<int64_t>(time);
        nearest[to] = r;
      }
    }
    moves.costs_.push_back(std::move(costs));
    moves.nearest_.push_back(std::move(nearest));
  }
  return moves;
}

int64_t DataMoves::least_cost(const std::vector<size_t>& most) const {
  int64_t sum = 0;
  for (const std::vector<int64_t>& costs : costs_) {
    int64_t least = kNever;
    for (size_t i = 0; i < costs.size(); ++i) {
      if (most[i] > 0) least = std::min(least, costs[i]);
    }
    sum += least;
  }
  return sum;
}

DataMoves::Assignment DataMoves::assign(const std::vector<size_t>& counts) const {
  return assign(counts, std::accumulate(counts.begin(), counts.end(), size_t{0}));
}

DataMoves::Assignment DataMoves::assign(const std::vector<size_t>& counts, size_t ranks) const {
  const size_t each = ranks == 0 ? 0 : (costs_.size() + ranks - 1) / ranks;
  std::vector<size_t> sites, room;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    sites.push_back(i);
    room.push_back(counts[i] * each);
  }
  return costs_.empty() || sites.empty() ? Assignment{} : Assigner(costs_, sites, room).run();
}

}  // namespace netsum::plan
