// Placements against known values, and against all hosts, switches and assignments of data on random clusters.
#include "src/plan/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/base/rng.h"
#include "src/base/soak.h"
#include "src/plan/bounds.h"
#include "src/plan/placement_time.h"
#include "src/plan/tree_plan.h"

namespace netsum::plan::placement_test {
namespace {

constexpr size_t kNone = ClusterSwitch::kNone;

// Racks below a core, with as many hosts as given, of rate 1.
Cluster racks(const std::vector<size_t>& free, int64_t rate, int64_t uplink) {
  Cluster cluster;
  cluster.switches.push_back({.name = "core"});
  for (size_t i = 0; i < free.size(); ++i) {
    const std::string name = "rack" + std::to_string(i);
    cluster.switches.push_back({.name = name, .parent = 0, .up = uplink});
    for (size_t n = 0; n < free[i]; ++n)
      cluster.hosts.push_back({.name = name + "-" + std::to_string(n), .at = i + 1, .rate = rate});
  }
  return cluster;
}

PlacementJob job_of(size_t ranks, size_t aggregators = 0) {
  PlacementJob job;
  job.ranks = ranks;
  job.gradient_bits = 1;
  job.aggregators = aggregators;
  return job;
}

Placement placed(const Cluster& cluster, const PlacementJob& job) {
  Result<Placement> found = place(cluster, job);
  EXPECT_TRUE(found.ok()) << found.status().message();
  if (!found.ok()) return {};
  EXPECT_EQ(found->hosts.size(), job.ranks);
  EXPECT_GE(found->total_s, found->bound_s);
  return std::move(found).value();
}

TEST(Placement, SplitsEvenlyAmongEquals) {
  // All 97 counts take 9/5.
  const Placement found = placed(racks({8, 6, 4, 2}, 1, 2), job_of(10));
  EXPECT_EQ(found.time, Fraction(9, 5));
  EXPECT_EQ(found.ring, Fraction(9, 5));
  EXPECT_TRUE(found.all_tried);
  EXPECT_EQ(found.counts, (std::vector<size_t>{0, 5, 5, 0, 0}));
  EXPECT_EQ(found.aggregators.size(), 0u);
}

TEST(Placement, ChoosesTheSummingSwitches) {
  Cluster cluster = racks({8, 6, 4, 2}, 1, 2);
  for (const size_t i : {0, 1, 3}) cluster.switches[i].sums = true;
  const PlacementTimes times(cluster, {true, false, false, false, false});
  EXPECT_EQ(times.of({0, 6, 0, 4, 0}, {0, 1, 3}), 1);
  // One switch is enough for the same time: two ranks sum for each other in a rack without one.
  const Placement found = placed(cluster, job_of(10, 3));
  EXPECT_EQ(found.time, 1);
  EXPECT_EQ(found.counts, (std::vector<size_t>{0, 8, 0, 0, 2}));
  EXPECT_EQ(found.aggregators, std::vector<size_t>{1});
  cluster.switches[1].sums = cluster.switches[3].sums = false;
  const Placement spine = placed(cluster, job_of(10, 3));
  EXPECT_EQ(spine.time, Fraction(6, 5));
  EXPECT_EQ(spine.counts, (std::vector<size_t>{0, 3, 3, 2, 2}));
  EXPECT_EQ(spine.aggregators, std::vector<size_t>{0});
}

// The times with 0, 1, ... aggregators if all switches may sum and all hosts get a rank.
std::vector<Fraction> by_aggregators(Cluster cluster, size_t most) {
  for (ClusterSwitch& each : cluster.switches) each.sums = true;
  std::vector<Fraction> times;
  for (size_t k = 0; k <= most; ++k) times.push_back(placed(cluster, job_of(cluster.hosts.size(), k)).time);
  return times;
}

TEST(Placement, TimesByNumberOfAggregators) {
  EXPECT_EQ(by_aggregators(racks({4, 4}, 1, 1), 2), (std::vector<Fraction>{{7, 4}, {8, 5}, 1}));
  EXPECT_EQ(by_aggregators(racks({8, 8, 8, 8}, 1, 4), 4),
            (std::vector<Fraction>{{31, 16}, {4, 3}, {4, 3}, {4, 3}, 1}));
}

TEST(Placement, FewestAggregators) {
  Cluster cluster = racks({4, 4}, 1, 1);
  for (ClusterSwitch& each : cluster.switches) each.sums = true;
  EXPECT_EQ(placed(cluster, job_of(4, 3)).aggregators, std::vector<size_t>{1});
}

TEST(Placement, OneRank) {
  const Placement found = placed(racks({2, 1}, 1, 1), job_of(1));
  EXPECT_EQ(found.time, 0);
  EXPECT_EQ(found.counts, (std::vector<size_t>{0, 0, 1}));  // the other rack stays whole
}

TEST(Placement, RanksAreInTheOrderOfRacksAndFastHostsFirst) {
  Cluster cluster = racks({3, 2}, 10, 20);
  cluster.hosts[0].rate = 5;
  cluster.hosts[3].free = false;
  const Placement found = placed(cluster, job_of(3));
  EXPECT_EQ(found.hosts, (std::vector<size_t>{1, 2, 4}));
}

TEST(Placement, DataStaysWhereItIs) {
  Cluster cluster = racks({4, 4, 4}, 1000, 1000);
  PlacementJob job = job_of(2);
  job.shards = {{.name = "a", .bytes = 1000, .replicas = {{"rack0", 1}}},
                {.name = "b", .bytes = 1000, .replicas = {{"rack2-1", 3}, {"rack1", 2}}}};
  const Placement found = placed(cluster, job);
  EXPECT_EQ(found.counts, (std::vector<size_t>{0, 1, 1, 0}));
  EXPECT_EQ(found.data_ns, 0);
  EXPECT_EQ(found.shard_rank, (std::vector<size_t>{0, 1}));
  EXPECT_EQ(found.shard_replica, (std::vector<size_t>{0, 1}));
  // If the all-reduce is slower between racks, and long, then the data move.
  for (ClusterSwitch& each : cluster.switches) each.up = 10;
  job.iterations = 1'000'000;
  job.gradient_bits = 1'000'000;
  const Placement together = placed(cluster, job);
  EXPECT_EQ(together.counts, (std::vector<size_t>{0, 2, 0, 0}));
  EXPECT_EQ(together.data_ns, 800'000'000'000);
}

TEST(Placement, WithinATier) {
  PlacementJob job = job_of(5);
  job.tier = 1;
  const Cluster cluster = racks({4, 4}, 1, 1);
  const Placement preferred = placed(cluster, job);
  EXPECT_FALSE(preferred.within_tier);
  job.required = true;
  const Result<Placement> refused = place(cluster, job);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), ErrorCode::kResourceExhausted);
  EXPECT_NE(refused.status().message().find("'rack0' has 4"), std::string::npos)
      << refused.status().message();
  job.ranks = 4;
  EXPECT_TRUE(placed(cluster, job).within_tier);
  job.most_per_rack = 1;
  job.ranks = 3;
  job.tier = 0;
  EXPECT_FALSE(place(cluster, job).ok());
}

TEST(Placement, RefusesWhatIsWrong) {
  const Cluster good = racks({2}, 1, 1);
  for (const int64_t rate : {int64_t{0}, int64_t{-1}, kMostRate + 1}) {
    Cluster bad = good;
    bad.hosts[1].rate = rate;
    bad.hosts[1].line = 7;
    const Result<Placement> found = place(bad, job_of(1));
    ASSERT_FALSE(found.ok());
    EXPECT_EQ(found.status().message().find("line 7: host 'rack0-1'"), 0u) << found.status().message();
  }
  Cluster twice = good;
  twice.hosts[1].name = "core";
  EXPECT_FALSE(place(twice, job_of(1)).ok());
  EXPECT_FALSE(place(good, job_of(0)).ok());
  EXPECT_FALSE(place(good, job_of(3)).ok());
  EXPECT_FALSE(place({}, job_of(1)).ok());
  PlacementJob job = job_of(1);
  job.shards = {{.name = "a", .bytes = 1}};
  EXPECT_FALSE(place(good, job).ok());
  job.shards.front().replicas = {{"rack0", 1}};
  EXPECT_TRUE(place(good, job).ok());
  Cluster busy = good;
  for (ClusterHost& host : busy.hosts) host.free = false;
  EXPECT_EQ(place(busy, job).status().code(), ErrorCode::kResourceExhausted);
}

// Switches in a random tree; hosts at some of them.
Cluster random_cluster(Rng& rng, size_t racks, size_t most_free) {
  Cluster cluster;
  cluster.switches.push_back({.name = "s0"});
  const size_t above = racks < 3 ? 0 : rng.below(3);  // switches between racks and root
  for (size_t i = 0; i < above + racks; ++i) {
    const size_t parent = i < above ? 0 : rng.below(above + 1);
    cluster.switches.push_back({.name = "s" + std::to_string(i + 1),
                                .parent = parent,
                                .up = static_cast<int64_t>(1 + rng.below(8))});
  }
  for (ClusterSwitch& each : cluster.switches) each.sums = rng.below(3) == 0;
  for (size_t i = above + 1; i < cluster.switches.size(); ++i) {
    const size_t free = 1 + rng.below(most_free);
    for (size_t n = 0; n < free; ++n) {
      cluster.hosts.push_back({.name = "h" + std::to_string(cluster.hosts.size()),
                               .at = i,
                               .rate = static_cast<int64_t>(2 + 2 * rng.below(2)),
                               .free = rng.below(8) != 0});
    }
  }
  return cluster;
}

// Tries everything. It shares no code with the placement.
class Oracle {
 public:
  Oracle(const Cluster& cluster, const PlacementJob& job) : cluster_(cluster), job_(job) {}

  struct Found {
    double total = INFINITY, time = INFINITY;
    size_t aggregators = 0, spread = 0, racks = 0, left = 0;
    std::vector<size_t> counts;
  };

  Found best() {
    std::vector<size_t> counts(cluster_.switches.size());
    try_counts(0, job_.ranks, &counts);
    return best_;
  }

  // By bisection, from the conditions of every switch.
  double time(const std::vector<size_t>& hosts, const std::vector<bool>& sums) const {
    double low = 0, high = 1e6;
    for (int i = 0; i < 80; ++i) {
      const double middle = (low + high) / 2;
      (fits(hosts, sums, middle) ? high : low) = middle;
    }
    return job_.ranks == 1 ? 0 : high;
  }

 private:
  bool fits(const std::vector<size_t>& hosts, const std::vector<bool>& sums, double t) const {
    std::vector<double> parts(cluster_.switches.size());
    std::vector<size_t> below(cluster_.switches.size());
    for (const size_t host : hosts) {
      const auto rate = static_cast<double>(cluster_.hosts[host].rate);
      if (t * rate < 1) return false;
      parts[cluster_.hosts[host].at] += 2 - t * rate;
      ++below[cluster_.hosts[host].at];
    }
    for (size_t i = parts.size(); i-- > 0;) {
      if (below[i] == 0) continue;
      const bool out = below[i] < hosts.size();
      const double up = static_cast<double>(cluster_.switches[i].up);
      if (out && t * up < 1) return false;
      double f = parts[i];
      if (sums[i]) {
        f = out ? 2 - t * up : 0;
      } else {
        if (f + (out ? 2 - t * up : 0) > 2) return false;
        if (out) f = std::max(f, 2 - t * up);
      }
      if (i == 0) continue;
      parts[cluster_.switches[i].parent] += f;
      below[cluster_.switches[i].parent] += below[i];
    }
    return true;
  }

  void try_counts(size_t at, size_t left, std::vector<size_t>* counts) {
    if (at == counts->size()) {
      if (left == 0) try_switches(*counts);
      return;
    }
    for (size_t n = 0; n <= std::min(left, free_at(at).size()); ++n) {
      (*counts)[at] = n;
      try_counts(at + 1, left - n, counts);
    }
    (*counts)[at] = 0;
  }

  std::vector<size_t> free_at(size_t at) const {
    std::vector<size_t> hosts;
    for (size_t i = 0; i < cluster_.hosts.size(); ++i) {
      if (cluster_.hosts[i].at == at && cluster_.hosts[i].free) hosts.push_back(i);
    }
    std::stable_sort(hosts.begin(), hosts.end(),
                     [&](size_t a, size_t b) { return cluster_.hosts[a].rate > cluster_.hosts[b].rate; });
    return hosts;
  }

  void try_switches(const std::vector<size_t>& counts) {
    std::vector<size_t> hosts, may_sum;
    std::vector<size_t> below = counts;
    for (size_t i = counts.size(); i-- > 0;) {
      const auto free = free_at(i);
      hosts.insert(hosts.end(), free.begin(), free.begin() + static_cast<std::ptrdiff_t>(counts[i]));
      if (i > 0) below[cluster_.switches[i].parent] += below[i];
      if (below[i] > 0 && cluster_.switches[i].sums) may_sum.push_back(i);
    }
    const double data = data_cost(counts);
    for (size_t set = 0; set < size_t{1} << may_sum.size(); ++set) {
      const auto used = static_cast<size_t>(__builtin_popcountll(set));
      if (used > job_.aggregators) continue;
      std::vector<bool> sums(counts.size());
      for (size_t i = 0; i < may_sum.size(); ++i) sums[may_sum[i]] = (set >> i & 1) != 0;
      keep(counts, used, time(hosts, sums), data);
    }
  }

  void keep(const std::vector<size_t>& counts, size_t used, double time, double data) {
    Found found{.time = time, .aggregators = used, .counts = counts};
    const double reduce = time * static_cast<double>(job_.gradient_bits);
    const double compute = job_.compute_s.to_double();
    found.total =
        (job_.overlap ? std::max(reduce, compute) : reduce + compute) * static_cast<double>(job_.iterations) +
        data;
    size_t least = SIZE_MAX, most = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] == 0) continue;
      least = std::min(least, counts[i]);
      most = std::max(most, counts[i]);
      ++found.racks;
      found.left += free_at(i).size() - counts[i];
    }
    found.spread = most - least;
    const auto differ = [](double a, double b) { return std::abs(a - b) > 1e-9 * std::max(a, b); };
    const auto key = [](const Found& f) { return std::array{f.aggregators, f.spread, f.racks, f.left}; };
    const bool better = differ(found.total, best_.total) ? found.total < best_.total
                        : differ(found.time, best_.time) ? found.time < best_.time
                        : key(found) != key(best_)       ? key(found) < key(best_)
                                                         : found.counts > best_.counts;
    if (best_.counts.empty() || better) best_ = found;
  }

  // Over all assignments of shards to switches.
  double data_cost(const std::vector<size_t>& counts) const {
    std::vector<size_t> room = counts;
    const size_t each = (job_.shards.size() + job_.ranks - 1) / job_.ranks;
    for (size_t& n : room) n *= each;
    return job_.shards.empty() ? 0 : cheapest(0, &room);
  }

  double cheapest(size_t shard, std::vector<size_t>* room) const {
    if (shard == job_.shards.size()) return 0;
    double least = INFINITY;
    for (size_t to = 0; to < room->size(); ++to) {
      if ((*room)[to] == 0) continue;
      --(*room)[to];
      double cost = INFINITY;
      for (const DataReplica& replica : job_.shards[shard].replicas)
        cost = std::min(cost,
                        std::ceil(8e9 * static_cast<double>(job_.shards[shard].bytes) / way(replica.at, to)));
      least = std::min(least, cost * 1e-9 + cheapest(shard + 1, room));
      ++(*room)[to];
    }
    return least;
  }

  double way(size_t a, size_t b) const {
    double rate = INFINITY;
    while (a != b) {  // parents have lower numbers
      size_t& lower = a > b ? a : b;
      rate = std::min(rate, static_cast<double>(cluster_.switches[lower].up));
      lower = cluster_.switches[lower].parent;
    }
    return rate;
  }

  const Cluster& cluster_;
  const PlacementJob& job_;
  Found best_;
};

PlacementJob random_job(Rng& rng, const Cluster& cluster, size_t most_ranks) {
  const auto free = static_cast<size_t>(
      std::count_if(cluster.hosts.begin(), cluster.hosts.end(), [](const auto& host) { return host.free; }));
  PlacementJob job = job_of(1 + rng.below(std::max<size_t>(1, std::min(most_ranks, free))), rng.below(4));
  job.gradient_bits = static_cast<int64_t>(1 + rng.below(20));
  job.compute_s = Fraction(static_cast<int64_t>(rng.below(30)), 4);
  job.iterations = static_cast<int64_t>(1 + rng.below(5));
  job.overlap = rng.below(2) == 0;
  for (size_t i = rng.below(2) == 0 ? 0 : rng.below(5); i > 0; --i) {
    DataShard shard{.name = "shard" + std::to_string(i), .bytes = 1 + rng.below(9)};
    for (size_t r = 1 + rng.below(2); r > 0; --r)
      shard.replicas.push_back({"", rng.below(cluster.switches.size())});
    job.shards.push_back(shard);
  }
  return job;
}

TEST(Placement, EqualsTheOracle) {
  Rng rng(20261128);
  for (int i = 0; i < (soak() ? 500 : 60); ++i) {
    const bool many = rng.below(3) == 0;
    const Cluster cluster = random_cluster(rng, many ? 5 + rng.below(12) : 1 + rng.below(4), many ? 2 : 4);
    const PlacementJob job = random_job(rng, cluster, many ? 3 : 7);
    const Result<Placement> found = place(cluster, job);
    const Oracle::Found best = Oracle(cluster, job).best();
    if (best.counts.empty()) {
      EXPECT_FALSE(found.ok());
      continue;
    }
    ASSERT_TRUE(found.ok()) << found.status().message();
    ASSERT_NEAR(found->total_s.to_double(), best.total, 1e-9 * best.total) << "cluster " << i;
    ASSERT_TRUE(found->all_tried);
    EXPECT_EQ(found->counts, best.counts) << "cluster " << i;
    EXPECT_EQ(found->aggregators.size(), best.aggregators) << "cluster " << i;
  }
}

// The closed form, which is compared with linear programs elsewhere, gives the same time for every placement.
TEST(Placement, TimesAreThoseOfTheGraph) {
  Rng rng(7);
  for (int i = 0; i < 200; ++i) {
    const Cluster cluster = random_cluster(rng, 1 + rng.below(6), 4);
    const PlacementJob job = random_job(rng, cluster, 12);
    const Result<Placement> found = place(cluster, job);
    if (!found.ok()) continue;
    const Graph graph = graph_of(cluster, found->hosts, found->aggregators);
    ASSERT_TRUE(check(graph).ok()) << check(graph).message();
    const auto bound = all_reduce_bound_of_racks(graph);
    ASSERT_TRUE(bound.has_value());
    EXPECT_EQ(bound->time, found->time) << "cluster " << i;
  }
}

TEST(Placement, TreesTakeTheTime) {
  Rng rng(8);
  for (int i = 0; i < 10; ++i) {
    const Cluster cluster = random_cluster(rng, 2 + rng.below(3), 3);
    const PlacementJob job = random_job(rng, cluster, 5);
    const Result<Placement> found = place(cluster, job);
    if (!found.ok() || job.ranks < 2) continue;
    const Graph graph = graph_of(cluster, found->hosts, found->aggregators);
    const Result<TreePlan> plan = plan_trees(graph, TreeCollective::kAllReduce, 0);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan->optimum, found->time) << "cluster " << i;
  }
}

TEST(Placement, LargeClustersAreNearTheirBound) {
  Rng rng(9);
  Cluster cluster;
  cluster.switches.push_back({.name = "root"});
  for (size_t pod = 0; pod < 5; ++pod)
    cluster.switches.push_back({.name = "pod" + std::to_string(pod), .parent = 0, .up = 400});
  for (size_t rack = 0; rack < 50; ++rack) {
    cluster.switches.push_back(
        {.name = "rack" + std::to_string(rack), .parent = 1 + rack % 5, .up = 200, .sums = true});
    for (size_t n = 0; n < 20; ++n) {
      cluster.hosts.push_back({.name = "h" + std::to_string(cluster.hosts.size()),
                               .at = 6 + rack,
                               .rate = 25,
                               .free = rng.below(3) != 0});
    }
  }
  PlacementJob job = job_of(100);
  job.gradient_bits = 1000;
  job.compute_s = Fraction(1, 10);
  for (size_t i = 0; i < 200; ++i)
    job.shards.push_back({.name = std::to_string(i), .bytes = 1, .replicas = {{"", 6 + rng.below(50)}}});
  const Placement found = placed(cluster, job);
  EXPECT_FALSE(found.all_tried);
  EXPECT_LE(found.distance(), 0.02);
  job.shards.clear();
  job.aggregators = 4;
  EXPECT_EQ(placed(cluster, job).distance(), 0);
}

}  // namespace
}  // namespace netsum::plan::placement_test
