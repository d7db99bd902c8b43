#include "src/plan/placement.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "src/base/rng.h"
#include "src/plan/placement_time.h"

namespace netsum::plan {
namespace {

// Additions of all tables of one pass; about 2 s. Beyond, the bound takes every switch that may sum as summing.
constexpr double kMostAdditions = 1e9;
// Of a search, in units of such additions.
constexpr double kSearchWork = 3e8;
constexpr double kPassWork = 1000;  // of a pass besides its additions

struct Candidate {
  TimedCounts timed;
  int64_t data_ns = 0;
  Fraction total_s;
  size_t spread = 0, racks = 0, left = 0;

  bool operator<(const Candidate& other) const {
    if (total_s != other.total_s) return total_s < other.total_s;
    if (timed.time != other.timed.time) return timed.time < other.timed.time;
    const auto key = [](const Candidate& c) {
      return std::array{c.timed.aggregators.size(), c.spread, c.racks, c.left};
    };
    if (key(*this) != key(other)) return key(*this) < key(other);
    return timed.counts > other.timed.counts;
  }
};

class Placer {
 public:
  Placer(const Cluster& cluster, const PlacementJob& job, DataMoves moves, std::vector<bool> tops)
      : cluster_(cluster),
        job_(job),
        moves_(std::move(moves)),
        times_(cluster, std::move(tops)),
        aggregators_(std::min<size_t>(job.aggregators, static_cast<size_t>(std::count_if(
                                                           cluster.switches.begin(), cluster.switches.end(),
                                                           [](const auto& each) { return each.sums; })))) {
    const size_t size = cluster.switches.size();
    all_ = {std::vector<size_t>(size), std::vector<size_t>(size)};
    for (size_t i = 0; i < size; ++i) {
      all_.most[i] = std::min({times_.rates(i).size(), job.most_per_rack, job.ranks});
      if (all_.most[i] > 0) racks_.push_back(i);
    }
  }

  std::optional<Placement> run() {
    if (racks_.empty()) return {};
    const bool counted = times_.work(all_, job_.ranks, aggregators_) <= kMostAdditions;
    const size_t aggregators = counted ? aggregators_ : PlacementTimes::kAll;
    even_splits();
    near_data();
    // The least time of an all-reduce: that of a candidate, unless there is a shorter one.
    Fraction least = fastest_;
    if (const auto found = best_ ? times_.less(all_, job_.ranks, aggregators, fastest_)
                                 : times_.least(all_, job_.ranks, aggregators)) {
      least = found->time;
      consider(found->counts);
    }
    if (!best_) return {};
    const Fraction bound = total(least, moves_.least_for(all_.most, job_.ranks));
    const bool all_tried = racks_.size() <= kMostExactRacks && try_all();
    if (!all_tried) improve(bound);
    return finished(all_tried ? best_->total_s : bound, all_tried);
  }

 private:
  Fraction total(const Fraction& time, int64_t data_ns) const {
    const Fraction reduce = time * Fraction(job_.gradient_bits);
    const Fraction iteration = job_.overlap ? std::max(reduce, job_.compute_s) : reduce + job_.compute_s;
    return iteration * Fraction(job_.iterations) + Fraction(data_ns, 1'000'000'000);
  }

  // The longest time of an all-reduce of one bit with which a job can still take at most as long as the best one so far.
  std::optional<Fraction> longest_time(int64_t data_ns) const {
    const Fraction iteration =
        (best_->total_s - Fraction(data_ns, 1'000'000'000)) / Fraction(job_.iterations);
    const Fraction reduce = job_.overlap ? iteration : iteration - job_.compute_s;
    if (reduce < 0 || iteration < job_.compute_s) return {};
    return reduce / Fraction(job_.gradient_bits);
  }

  // Whether it is the best one so far.
  bool consider(const std::vector<size_t>& counts) {
    const Counts fixed{counts, counts};
    spent_ += kPassWork * 4 + 8 * times_.work(fixed, job_.ranks, aggregators_) +
              static_cast<double>(moves_.shards() * racks_.size());
    auto timed = times_.least(fixed, job_.ranks, aggregators_);
    if (!timed) return false;
    if (!best_ || timed->time < fastest_) fastest_ = timed->time;
    if (best_ && total(timed->time, moves_.least_cost(counts)) > best_->total_s) return false;
    Candidate found{.timed = std::move(*timed)};
    const DataMoves::Assignment assigned = moves_.assign(counts);
    spent_ += static_cast<double>(assigned.work);
    found.data_ns = assigned.cost;
    found.total_s = total(found.timed.time, found.data_ns);
    size_t least = SIZE_MAX, most = 0;
    for (const size_t rack : racks_) {
      if (counts[rack] == 0) continue;
      least = std::min(least, counts[rack]);
      most = std::max(most, counts[rack]);
      ++found.racks;
      found.left += times_.rates(rack).size() - counts[rack];
    }
    found.spread = most - least;
    if (best_ && !(found < *best_)) return false;
    best_ = std::move(found);
    return true;
  }

  // All counts, without those that cannot be as good as the best ones so far. False if it takes too long.
  bool try_all() {
    spent_ = 0;
    twin_.assign(cluster_.switches.size(), kNone);
    const auto children = cluster_.children();
    for (size_t i = 1; i < racks_.size() && moves_.shards() == 0; ++i) {
      const size_t a = racks_[i - 1], b = racks_[i];
      const ClusterSwitch &one = cluster_.switches[a], &other = cluster_.switches[b];
      if (a > 0 && one.parent == other.parent && one.up == other.up && one.sums == other.sums &&
          children[a].empty() && children[b].empty() && times_.rates(a) == times_.rates(b))
        twin_[b] = a;
    }
    Counts open = all_;
    return descend(&open, 0, job_.ranks);
  }

  bool descend(Counts* open, size_t depth, size_t left) {
    if (depth == racks_.size()) {
      if (left == 0) consider(open->least);
      return spent_ < kSearchWork;
    }
    const size_t rack = racks_[depth];
    const size_t saved = open->most[rack];
    size_t room = 0;
    for (size_t i = depth + 1; i < racks_.size(); ++i) room += open->most[racks_[i]];
    size_t most = std::min(saved, left);
    if (twin_[rack] != kNone) most = std::min(most, open->least[twin_[rack]]);
    bool done = true;
    for (size_t n = most + 1; n-- > 0 && done;) {
      if (left - n > room) break;
      open->least[rack] = open->most[rack] = n;
      if (possible(*open)) done = descend(open, depth + 1, left - n);
    }
    open->least[rack] = 0;
    open->most[rack] = saved;
    return done;
  }

  bool possible(const Counts& open) {
    spent_ += kPassWork + times_.work(open, job_.ranks, aggregators_);
    const auto time = longest_time(moves_.least_cost(open.most));
    return time && (job_.ranks == 1 || times_.feasible(open, job_.ranks, aggregators_, *time));
  }

  // Equal counts in the racks of the smallest part of the cluster that fits, of each tier; the tightest racks first.
  void even_splits() {
    std::vector<size_t> free = all_.most;
    for (size_t i = free.size(); i-- > 1;) free[cluster_.switches[i].parent] += free[i];
    const std::vector<size_t> tiers = cluster_.tiers();
    std::vector<size_t> fits;  // [tier]: the fitting switch with the fewest free hosts
    for (size_t i = 0; i < free.size(); ++i) {
      if (free[i] < job_.ranks) continue;
      if (fits.size() <= tiers[i]) fits.resize(tiers[i] + 1, kNone);
      if (fits[tiers[i]] == kNone || free[i] < free[fits[tiers[i]]]) fits[tiers[i]] = i;
    }
    spent_ = 0;
    for (const size_t top : fits) {
      if (top == kNone) continue;
      std::vector<size_t> inside;
      for (const size_t rack : racks_) {
        size_t at = rack;
        while (at != kNone && at != top) at = cluster_.switches[at].parent;
        if (at == top) inside.push_back(rack);
      }
      std::stable_sort(inside.begin(), inside.end(),
                       [&](size_t a, size_t b) { return all_.most[a] < all_.most[b]; });
      for (size_t racks = 1; racks <= std::min(inside.size(), job_.ranks) && spent_ < kSearchWork;
           racks += 1 + racks / 16) {
        split_evenly(inside, racks);
      }
    }
  }

  void split_evenly(const std::vector<size_t>& inside, size_t racks) {
    std::vector<size_t> counts(cluster_.switches.size());
    size_t left = job_.ranks, open = racks;
    for (const size_t rack : inside) {
      const size_t share = open == 0 ? 0 : (left + open - 1) / open;
      if (share == 0 || all_.most[rack] < share) continue;
      counts[rack] = share;
      left -= share;
      --open;
    }
    if (left == 0) consider(counts);
  }

  // Ranks where most shards are.
  void near_data() {
    if (moves_.shards() == 0) return;
    std::vector<size_t> wanted(cluster_.switches.size());
    for (size_t shard = 0; shard < moves_.shards(); ++shard) {
      const auto cheaper = [&](size_t a, size_t b) { return moves_.cost(shard, a) < moves_.cost(shard, b); };
      ++wanted[*std::min_element(racks_.begin(), racks_.end(), cheaper)];
    }
    const size_t each = (moves_.shards() + job_.ranks - 1) / job_.ranks;
    std::vector<size_t> order = racks_;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return wanted[a] > wanted[b]; });
    std::vector<size_t> counts(cluster_.switches.size());
    size_t left = job_.ranks;
    for (const bool fill : {false, true}) {
      for (const size_t rack : order) {
        const size_t most =
            fill ? all_.most[rack] : std::min(all_.most[rack], (wanted[rack] + each - 1) / each);
        const size_t more = std::min(left, most - std::min(most, counts[rack]));
        counts[rack] += more;
        left -= more;
      }
    }
    if (left == 0) consider(counts);
  }

  // Local search: moves some ranks of one rack to another one. The generator's seed is fixed, so that equal input gives equal
  // placements.
  void improve(const Fraction& bound) {
    spent_ = 0;
    Rng rng(1);
    const size_t most_failures = 40 * (racks_.size() + 10);
    for (size_t failures = 0; failures < most_failures && spent_ < kSearchWork;) {
      // Where the time is the least possible, only ties are left.
      if (best_->total_s == bound && failures >= most_failures / 8) return;
      std::vector<size_t> counts = best_->timed.counts;
      const size_t from = racks_[rng.below(racks_.size())], to = racks_[rng.below(racks_.size())];
      const size_t room = all_.most[to] - counts[to], most = std::min(counts[from], room);
      if (from == to || most == 0) {
        spent_ += 1;
        continue;
      }
      const size_t moved = rng.below(2) == 0 ? most : 1 + rng.below(most);
      counts[from] -= moved;
      counts[to] += moved;
      failures = consider(counts) ? 0 : failures + 1;
    }
  }

  Placement finished(const Fraction& bound, bool all_tried) const {
    Placement found;
    found.counts = best_->timed.counts;
    found.aggregators = best_->timed.aggregators;
    found.time = best_->timed.time;
    found.ring = times_.ring(found.counts);
    found.data_ns = best_->data_ns;
    found.total_s = best_->total_s;
    found.bound_s = bound;
    found.all_tried = all_tried;
    std::vector<std::vector<size_t>> of_rack(cluster_.switches.size());
    for (size_t i = 0; i < cluster_.hosts.size(); ++i) {
      if (cluster_.hosts[i].free) of_rack[cluster_.hosts[i].at].push_back(i);
    }
    std::vector<size_t> rack_of_rank;
    // Switches in the order of the tree, so that ranks of one part of it are neighbours.
    std::vector<size_t> waiting = {0};
    const auto children = cluster_.children();
    while (!waiting.empty()) {
      const size_t at = waiting.back();
      waiting.pop_back();
      waiting.insert(waiting.end(), children[at].rbegin(), children[at].rend());
      std::vector<size_t>& hosts = of_rack[at];
      std::stable_sort(hosts.begin(), hosts.end(),
                       [&](size_t a, size_t b) { return cluster_.hosts[a].rate > cluster_.hosts[b].rate; });
      hosts.resize(found.counts[at]);
      std::sort(hosts.begin(), hosts.end());
      found.hosts.insert(found.hosts.end(), hosts.begin(), hosts.end());
      rack_of_rank.insert(rack_of_rank.end(), hosts.size(), at);
    }
    assign_shards(rack_of_rank, &found);
    return found;
  }

  void assign_shards(const std::vector<size_t>& rack_of_rank, Placement* found) const {
    const DataMoves::Assignment assigned = moves_.assign(found->counts);
    std::vector<std::vector<size_t>> ranks(cluster_.switches.size());
    for (size_t rank = 0; rank < rack_of_rank.size(); ++rank) ranks[rack_of_rank[rank]].push_back(rank);
    std::vector<size_t> next(cluster_.switches.size());
    for (size_t shard = 0; shard < assigned.at.size(); ++shard) {
      const size_t at = assigned.at[shard];
      found->shard_rank.push_back(ranks[at][next[at]++ % ranks[at].size()]);
      found->shard_replica.push_back(moves_.replica(shard, at));
    }
  }

  const Cluster& cluster_;
  const PlacementJob& job_;
  const DataMoves moves_;
  const PlacementTimes times_;
  const size_t aggregators_;
  Counts all_;
  std::vector<size_t> racks_;  // switches with free hosts
  std::vector<size_t> twin_;   // [switch]: a rack before it that is like it; it gets at most as many ranks
  std::optional<Candidate> best_;
  Fraction fastest_;  // the least time of an all-reduce so far
  double spent_ = 0;
};

Status check_job(const PlacementJob& job) {
  const auto invalid = [](const std::string& message) {
    return Status(ErrorCode::kInvalidArgument, message);
  };
  if (job.ranks == 0 || job.ranks > kMostHosts)
    return invalid("the job has " + std::to_string(job.ranks) + " ranks; give 1 to " +
                   std::to_string(kMostHosts));
  if (job.gradient_bits <= 0) return invalid("the gradient is empty; give its size, such as 100MiB");
  if (job.iterations <= 0) return invalid("the job has no iterations; give 1 or more");
  if (job.compute_s < 0) return invalid("an iteration computes for less than 0 s; give 0 or more");
  if (job.most_per_rack == 0) return invalid("no rank is allowed in any rack; allow at least 1 per rack");
  return {};
}

// The largest switches of at most this tier.
std::vector<bool> tops_of(const Cluster& cluster, size_t tier) {
  std::vector<bool> tops(cluster.switches.size());
  const std::vector<size_t> tiers = cluster.tiers();
  for (size_t i = 0; i < tops.size(); ++i) {
    const size_t parent = cluster.switches[i].parent;
    tops[i] = tier == 0 ? i == 0 : tiers[i] <= tier && (parent == kNone || tiers[parent] > tier);
  }
  return tops;
}

}  // namespace

Result<Placement> place(const Cluster& cluster, const PlacementJob& job) {
  if (Status s = check(cluster); !s.ok()) return s;
  if (Status s = check_job(job); !s.ok()) return s;
  const Result<DataMoves> moves = DataMoves::make(cluster, job.shards);
  if (!moves.ok()) return moves.status();
  if (auto found = Placer(cluster, job, *moves, tops_of(cluster, job.tier)).run()) return std::move(*found);
  if (job.tier > 0 && !job.required) {
    if (auto found = Placer(cluster, job, *moves, tops_of(cluster, 0)).run()) {
      found->within_tier = false;
      return std::move(*found);
    }
  }
  std::vector<size_t> free(cluster.switches.size());
  for (const ClusterHost& host : cluster.hosts) free[host.at] += host.free ? 1 : 0;
  for (size_t& each : free) each = std::min(each, job.most_per_rack);
  const size_t all = std::accumulate(free.begin(), free.end(), size_t{0});
  for (size_t i = free.size(); i-- > 1;) free[cluster.switches[i].parent] += free[i];
  std::string message = "the job has " + std::to_string(job.ranks) + " ranks, but only " +
                        std::to_string(all) + " hosts may get one; free some, or use fewer ranks";
  if (all >= job.ranks) {
    const std::vector<bool> tops = tops_of(cluster, job.tier);
    size_t largest = 0;
    for (size_t i = 0; i < free.size(); ++i) {
      if (tops[i] && (!tops[largest] || free[i] > free[largest])) largest = i;
    }
    message = "the job has " + std::to_string(job.ranks) + " ranks, but no switch of tier " +
              std::to_string(job.tier) + " has as many free hosts below it; '" +
              cluster.switches[largest].name + "' has " + std::to_string(free[largest]) +
              ", the most. Use fewer ranks or a higher tier";
  }
  return Status(ErrorCode::kResourceExhausted, message);
}

}  // namespace netsum::plan
