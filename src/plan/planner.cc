#include "src/plan/planner.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/base/assert.h"
#include "src/plan/ports.h"
#include "src/plan/share_tree.h"
#include "src/worker/chunk_map.h"

namespace netsum::plan {
namespace {

constexpr double kBitsPerByte = 8;
// Times with a smaller relative difference count as equal.
constexpr double kSameTime = 1e-9;
// All periods up to this one are tried.
constexpr int64_t kShortPeriods = 256;

// The linear program of a topology, and the stripes of each leaf.
struct Program {
  ShareTree tree;
  std::vector<StripePlan> stripes;
  std::vector<std::vector<size_t>> of_leaf;  // [node]: its stripes
  double ring_s_per_bit = 0;
};

std::vector<PortCore> stripes_of(const Place& place) {
  std::vector<double> rates;
  for (const Link& port : place.ports) rates.push_back(std::min(port.in_bps, port.out_bps));
  if (rates.empty()) rates.push_back(1);
  return assign_cores(rates, place.cores);
}

// The stripes of a place with aggregators below it.
class Hierarchy {
 public:
  explicit Hierarchy(const Place& top) : top_(top) { count(top); }

  // [stripe]: the lowest stripe with which it shares a port of an aggregator with several, directly or through others. If
  // all aggregators have one port, the stripes are one group.
  std::vector<size_t> groups() {
    group_of_.assign(stripes_, 0);
    if (several_ports_) std::iota(group_of_.begin(), group_of_.end(), size_t{0});
    if (several_ports_) join(top_);
    return std::move(group_of_);
  }

 private:
  void count(const Place& place) {
    stripes_ = std::min(stripes_, stripes_of(place).size());
    several_ports_ |= place.ports.size() > 1;
    for (const Place& lower : place.below) count(lower);
  }

  void join(const Place& place) {
    const std::vector<PortCore> stripes = stripes_of(place);
    for (size_t i = 1; i < group_of_.size() && place.ports.size() > 1; ++i) {
      // The stripes of a port are consecutive.
      if (stripes[i].port == stripes[i - 1].port) merge(group_of_[i - 1], group_of_[i]);
    }
    for (const Place& lower : place.below) join(lower);
  }

  void merge(size_t into, size_t from) {
    const size_t low = std::min(into, from), high = std::max(into, from);
    for (size_t& group : group_of_) group = group == high ? low : group;
  }

  const Place& top_;
  size_t stripes_ = SIZE_MAX;
  bool several_ports_ = false;
  std::vector<size_t> group_of_;
};

class Builder {
 public:
  explicit Builder(const Topology& topology)
      : topology_(topology), ranks_(static_cast<double>(topology.ranks.size())) {}

  Program build() {
    add_racks();
    for (size_t i = 0; i < topology_.places.size(); ++i) {
      if (topology_.places[i].below.empty()) {
        add_place(i);
      } else {
        add_hierarchy(i);
      }
    }
    for (size_t i = 0; i < topology_.ranks.size(); ++i) add_rank(i);
    program_.ring_s_per_bit = 2 * (ranks_ - 1) / ranks_ / slowest_;
    return std::move(program_);
  }

 private:
  int node_of_rack(int rack) const {
    return rack == kNoRack ? ShareTree::kRoot : racks_[static_cast<size_t>(rack)];
  }

  int add_node(int parent, Preference preference) {
    program_.of_leaf.resize(program_.tree.size() + 1);
    return program_.tree.add(parent, preference);
  }

  // A link whose load depends on the shares below `node`.
  void add_link(int node, const std::string& name, const Link& link, double fixed, double in_slope,
                double out_slope) {
    program_.tree.constrain(node, {name + ", in", fixed, in_slope, link.in_bps});
    program_.tree.constrain(node, {name + ", out", fixed, out_slope, link.out_bps});
  }

  // A new node below `parent` with these limits, or `parent` itself if there are none.
  int below_limits(int parent, const std::string& name, const SumLimits& limits) {
    const double rate = stream_rate(limits, ranks_, topology_.element_bits);
    if (!std::isfinite(rate)) return parent;
    const int node = add_node(parent, Preference::kInnerNode);
    program_.tree.constrain(node, {name + ", sums", 0, 1, rate});
    return node;
  }

  // The load of an uplink with n of the N ranks behind it, if the share s is summed behind it: of this share, N - n
  // contributions come in and N - n results go out; of the rest, n contributions go out and n results come in. In each
  // direction, that is n (1 - s) + (N - n) s = n + (N - 2 n) s.
  void add_racks() {
    std::vector<double> members(topology_.racks.size());
    for (const Rank& rank : topology_.ranks) {
      for (int up = rank.rack; up != kNoRack; up = topology_.racks[static_cast<size_t>(up)].parent) {
        members[static_cast<size_t>(up)] += 1;
      }
    }
    racks_.assign(topology_.racks.size(), -1);
    for (size_t i = 0; i < racks_.size(); ++i) add_rack(i, members);
  }

  // Adds enclosing racks first.
  void add_rack(size_t i, const std::vector<double>& members) {
    if (racks_[i] >= 0) return;
    const Rack& rack = topology_.racks[i];
    if (rack.parent != kNoRack) add_rack(static_cast<size_t>(rack.parent), members);
    racks_[i] = add_node(node_of_rack(rack.parent), Preference::kInnerNode);
    const double slope = ranks_ - 2 * members[i];
    add_link(racks_[i], "uplink of " + rack.name, rack.uplink, members[i], slope, slope);
    if (members[i] > 0 && members[i] < ranks_) meet_ring(rack.uplink);
  }

  void add_place(size_t i) {
    const Place& place = topology_.places[i];
    const bool in_switch = place.kind == PlaceKind::kSwitch;
    const std::vector<PortCore> stripes = stripes_of(place);
    const size_t ports = std::max<size_t>(1, place.ports.size());

    const int host = below_limits(node_of_rack(place.rack), place.name, place.limits);
    for (size_t port = 0; port < ports; ++port) {
      const int leaf = add_node(host, in_switch ? Preference::kSwitch : Preference::kSpareHost);
      for (const PortCore& stripe : stripes) {
        if (stripe.port == port) add_stripe(leaf, {i, StripePlan::kNone, port, stripe.core, 0});
      }
      if (in_switch) continue;
      add_link(leaf, name_of_port(place, port), place.ports[port], 0, ranks_, place.multicast ? 1 : ranks_);
    }
  }

  static std::string name_of_port(const Place& place, size_t port) {
    return place.ports.size() == 1 ? place.name : place.name + " port " + std::to_string(port);
  }

  // Every aggregator of the hierarchy sums the same share. Stripes that share one of several ports have equal weights, so
  // that each port's load depends on the share below one leaf; an aggregator with a single port does not limit how
  // weights may differ.
  void add_hierarchy(size_t i) {
    const Place& top = topology_.places[i];
    const std::vector<size_t> group_of = Hierarchy(top).groups();
    const int host = add_node(ShareTree::kRoot, Preference::kInnerNode);
    const Preference preference =
        top.kind == PlaceKind::kSwitch ? Preference::kSwitch : Preference::kSpareHost;
    const std::vector<PortCore> stripes = stripes_of(top);
    std::vector<int> leaf_of(group_of.size());
    for (size_t stripe = 0; stripe < group_of.size(); ++stripe) {
      if (group_of[stripe] == stripe) leaf_of[stripe] = add_node(host, preference);
      leaf_of[stripe] = leaf_of[group_of[stripe]];
      add_stripe(leaf_of[stripe], {i, StripePlan::kNone, stripes[stripe].port, stripes[stripe].core, 0});
    }
    add_level(top, false, host, leaf_of);
  }

  void add_level(const Place& place, bool has_parent, int host, const std::vector<int>& leaf_of) {
    const double members = place.members == 0 ? ranks_ : static_cast<double>(place.members);
    const double up = has_parent ? 1 : 0;  // its sums, and its parent's results
    const double in = members + up;
    const double out = (place.multicast && place.below.empty() ? 1 : members) + up;
    const double rate = stream_rate(place.limits, members, topology_.element_bits);
    if (std::isfinite(rate)) program_.tree.constrain(host, {place.name + ", sums", 0, 1, rate});
    if (place.ports.size() == 1) add_link(host, place.name, place.ports[0], 0, in, out);
    if (place.ports.size() > 1) add_ports(place, in, out, leaf_of);
    if (place.uplink) add_link(host, "uplink of " + place.name, *place.uplink, 0, 1, 1);
    for (const Place& lower : place.below) add_level(lower, true, host, leaf_of);
  }

  void add_ports(const Place& place, double in, double out, const std::vector<int>& leaf_of) {
    const std::vector<PortCore> stripes = stripes_of(place);
    for (size_t port = 0; port < place.ports.size(); ++port) {
      double used = 0, of_leaf = 0;
      int leaf = ShareTree::kRoot;
      for (size_t i = 0; i < leaf_of.size(); ++i) {
        if (stripes[i].port != port) continue;
        used += 1;
        leaf = leaf_of[i];
      }
      if (used == 0) continue;
      for (const int other : leaf_of) of_leaf += other == leaf ? 1 : 0;
      const double part = used / of_leaf;
      add_link(leaf, name_of_port(place, port), place.ports[port], 0, in * part, out * part);
    }
  }

  void add_rank(size_t i) {
    const Rank& rank = topology_.ranks[i];
    meet_ring(rank.link);
    if (!rank.shard) {
      add_link(ShareTree::kRoot, rank.name, rank.link, 1, 0, 0);
      return;
    }
    const int leaf =
        add_node(below_limits(node_of_rack(rank.rack), rank.name, rank.limits), Preference::kShard);
    add_stripe(leaf, {StripePlan::kNone, i, 0, 0, 0});
    // With the share s, a rank sends 1 - s to other places, and s as results to N - 1 ranks: 1 + (N - 2) s. Its own
    // contribution to its shard, and the shard's result for it, do not use the link.
    add_link(leaf, rank.name, rank.link, 1, ranks_ - 2, ranks_ - 2);
  }

  void add_stripe(int leaf, StripePlan stripe) {
    program_.of_leaf[static_cast<size_t>(leaf)].push_back(program_.stripes.size());
    program_.stripes.push_back(stripe);
  }

  void meet_ring(const Link& link) { slowest_ = std::min({slowest_, link.in_bps, link.out_bps}); }

  const Topology& topology_;
  const double ranks_;
  Program program_;
  std::vector<int> racks_;  // [rack]: node
  double slowest_ = INFINITY;
};

// The best weights with one period.
struct BestPeriod {
  int64_t period = 0;
  double time = 0;
  ShareTree::Use use = ShareTree::kAll;
};

// The periods that are tried, from the longest on: short ones, in which small ratios are exact, and, for more stripes than
// these have room for, the longest. A multiple of the number of shards can give each shard the same, as a ring does.
std::vector<int64_t> periods_for(size_t shards) {
  constexpr auto kLongest = static_cast<int64_t>(ChunkMap::kMaxPeriod);
  std::vector<int64_t> periods = {kLongest};
  const auto count = static_cast<int64_t>(shards);
  if (count > 0 && kLongest % count != 0) periods.push_back(kLongest / count * count);
  for (int64_t period = kShortPeriods; period > 0; --period) periods.push_back(period);
  return periods;
}

// Chooses the period with the smallest time. Among equal ones, it excludes those that use shards (or, next, spare hosts)
// more than the longest of them does, and takes the shortest of the rest.
// Error: kInvalidArgument, if the rates are so different that doubles cannot tell the times apart.
Result<BestPeriod> best_period(const ShareTree& tree, size_t shards, double optimum) {
  BestPeriod best{.time = tree.ample_time()};
  const auto measure_use = [&] { return tree.smallest_use(best.time * (1 + kSameTime), best.period); };
  bool measured = false;
  for (const int64_t period : periods_for(shards)) {
    if (!tree.feasible(best.time * (1 + kSameTime), period, ShareTree::kAll)) continue;
    if (tree.feasible(best.time * (1 - kSameTime), period, ShareTree::kAll)) {
      best.time = tree.smallest_time(optimum, best.time * (1 - kSameTime), period);
      measured = false;
    } else {
      if (!measured) best.use = measure_use();
      measured = true;
      ShareTree::Use use = best.use;
      for (double& part : use) part = std::min(1.0, part * (1 + 1e-6));
      if (!tree.feasible(best.time * (1 + kSameTime), period, use)) continue;
    }
    best.period = period;
  }
  if (best.period == 0) {
    return Status(ErrorCode::kInvalidArgument,
                  "the rates are too different to compute with: the slowest link or limit takes " +
                      std::to_string(best.time) + " s for a bit; correct it, or leave it out");
  }
  best.use = measure_use();
  return best;
}

// How many times as long the period must be so that the cores of each port take equal parts; or, if that is too long, as
// it may be.
int64_t factor_for_cores(const Program& program, const std::vector<int64_t>& shares, int64_t period) {
  const int64_t most = std::max<int64_t>(1, static_cast<int64_t>(ChunkMap::kMaxPeriod) / period);
  int64_t factor = 1;
  for (size_t node = 0; node < program.of_leaf.size(); ++node) {
    const auto cores = static_cast<int64_t>(program.of_leaf[node].size());
    if (cores > 0) factor = std::lcm(factor, cores / std::gcd(cores, shares[node]));
    if (factor >= most) return most;
  }
  return factor;
}

// Loads, times and the bottleneck of the weights in `program.stripes`.
Plan measure(Program program, double optimum) {
  Plan plan;
  const ShareTree& tree = program.tree;
  std::vector<uint64_t> shares(tree.size());
  for (size_t node = 0; node < tree.size(); ++node) {
    for (const size_t stripe : program.of_leaf[node]) {
      const uint32_t weight = program.stripes[stripe].weight;
      plan.period += weight;
      for (int at = static_cast<int>(node); at >= 0; at = tree.parent(at))
        shares[static_cast<size_t>(at)] += weight;
    }
  }
  double slowest = 0;
  for (const auto& [node, constraint] : tree.constraints()) {
    const double share = static_cast<double>(shares[static_cast<size_t>(node)]) / plan.period;
    const double load = constraint.fixed + constraint.slope * share;
    const double time = load / constraint.rate;
    if (time > slowest) {
      slowest = time;
      plan.bottleneck = plan.links.size();
    }
    plan.links.push_back({constraint.name, constraint.rate, load, time * kBitsPerByte});
  }
  plan.s_per_byte = slowest * kBitsPerByte;
  plan.optimum_s_per_byte = optimum * kBitsPerByte;
  plan.ring_s_per_byte = program.ring_s_per_bit * kBitsPerByte;
  if (slowest > 0) plan.speed_up = plan.ring_s_per_byte / plan.s_per_byte;
  plan.bottlenecks =
      static_cast<size_t>(std::count_if(plan.links.begin(), plan.links.end(), [&](const LinkLoad& link) {
        return link.s_per_byte >= 0.99 * plan.s_per_byte;
      }));
  plan.stripes = std::move(program.stripes);
  return plan;
}

}  // namespace

std::vector<uint32_t> Plan::weights() const {
  std::vector<uint32_t> weights;
  for (const StripePlan& stripe : stripes) weights.push_back(stripe.weight);
  return weights;
}

Result<Plan> make_plan(const Topology& topology) {
  if (Status s = check(topology); !s.ok()) return s;
  Program program = Builder(topology).build();
  const ShareTree& tree = program.tree;
  const double optimum = tree.smallest_time(0, tree.ample_time(), ShareTree::kRealNumbers);
  const auto shards = static_cast<size_t>(std::count_if(topology.ranks.begin(), topology.ranks.end(),
                                                        [](const Rank& rank) { return rank.shard; }));
  const Result<BestPeriod> best = best_period(tree, shards, optimum * (1 - kSameTime));
  if (!best.ok()) return best.status();
  const std::vector<int64_t> shares = tree.solve(best->time * (1 + kSameTime), best->period, best->use);
  const int64_t factor = factor_for_cores(program, shares, best->period);
  for (size_t node = 0; node < tree.size(); ++node) {
    const std::vector<size_t>& stripes = program.of_leaf[node];
    if (stripes.empty()) continue;
    // The weight is divided evenly over the port's cores; the first ones get the remainder.
    const auto weight = static_cast<size_t>(shares[node] * factor);
    for (size_t i = 0; i < stripes.size(); ++i) {
      program.stripes[stripes[i]].weight =
          static_cast<uint32_t>(weight / stripes.size() + (i < weight % stripes.size() ? 1 : 0));
    }
  }
  uint32_t divisor = 0;
  for (const StripePlan& stripe : program.stripes) divisor = std::gcd(divisor, stripe.weight);
  for (StripePlan& stripe : program.stripes) stripe.weight /= divisor;
  return measure(std::move(program), optimum);
}

Result<Plan> evaluate(const Topology& topology, const std::vector<uint32_t>& weights) {
  if (Status s = check(topology); !s.ok()) return s;
  Program program = Builder(topology).build();
  if (weights.size() != program.stripes.size()) {
    return Status(ErrorCode::kInvalidArgument, std::to_string(weights.size()) + " weights for " +
                                                   std::to_string(program.stripes.size()) +
                                                   " stripes; give one for each");
  }
  const uint64_t sum = std::accumulate(weights.begin(), weights.end(), uint64_t{0});
  if (sum == 0) {
    return Status(ErrorCode::kInvalidArgument, "no stripe has a weight above 0; give at least one");
  }
  if (sum > UINT32_MAX) {
    return Status(ErrorCode::kInvalidArgument, "the weights sum to " + std::to_string(sum) +
                                                   ", more than the limit of " + std::to_string(UINT32_MAX) +
                                                   "; give smaller ones");
  }
  for (size_t i = 0; i < weights.size(); ++i) program.stripes[i].weight = weights[i];
  const double optimum = program.tree.smallest_time(0, program.tree.ample_time(), ShareTree::kRealNumbers);
  return measure(std::move(program), optimum);
}

}  // namespace netsum::plan
