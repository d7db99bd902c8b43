#include "src/plan/routes_testing.h"

#include <algorithm>
#include <set>

namespace netsum::plan::testing {
namespace {

constexpr size_t kNone = SIZE_MAX;

struct Leaf {
  size_t rank = kNone;  // of a shard
  size_t place = kNone;
  size_t port = 0;
  int rack = kNoRack;
};

class Router {
 public:
  explicit Router(const Topology& topology) : topology_(topology) {
    for (size_t i = 0; i < topology.places.size(); ++i) {
      for (size_t port = 0; port < std::max<size_t>(1, topology.places[i].ports.size()); ++port) {
        leaves_.push_back({kNone, i, port, topology.places[i].rack});
      }
    }
    for (size_t i = 0; i < topology.ranks.size(); ++i) {
      if (topology.ranks[i].shard) leaves_.push_back({i, kNone, 0, topology.ranks[i].rack});
    }
  }

  Routes route() {
    routes_.leaves = leaves_.size();
    for (const Rank& rank : topology_.ranks) ranks_.push_back(add(rank.link));
    for (const Rack& rack : topology_.racks) racks_.push_back(add(rack.uplink));
    for (const Place& place : topology_.places) {
      ports_.emplace_back();
      for (const Link& port : place.ports) ports_.back().push_back(add(port));
    }
    for (size_t leaf = 0; leaf < leaves_.size(); ++leaf) {
      for (size_t rank = 0; rank < topology_.ranks.size(); ++rank) send(rank, leaf);
    }
    for (size_t leaf = 0; leaf < leaves_.size(); ++leaf) {
      if (leaves_[leaf].place != kNone && is_hierarchy(leaves_[leaf].place))
        pass_on(topology_.places[leaves_[leaf].place], false, leaf);
    }
    for (size_t i = 0; i < topology_.places.size(); ++i) {
      if (is_hierarchy(i)) continue;
      limit(topology_.places[i].limits, [&](const Leaf& leaf) { return leaf.place == i; });
    }
    for (size_t i = 0; i < topology_.ranks.size(); ++i) {
      if (!topology_.ranks[i].shard) continue;
      limit(topology_.ranks[i].limits, [&](const Leaf& leaf) { return leaf.rank == i; });
    }
    return std::move(routes_);
  }

 private:
  struct Ends {
    size_t in = 0;
    size_t out = 0;
  };

  size_t add(double rate) {
    routes_.links.push_back({rate, std::vector<double>(leaves_.size())});
    return routes_.links.size() - 1;
  }
  Ends add(const Link& link) {
    const size_t in = add(link.in_bps);
    return {in, add(link.out_bps)};
  }

  std::set<int> racks_around(int rack) const {
    std::set<int> around;
    for (; rack != kNoRack; rack = topology_.racks[static_cast<size_t>(rack)].parent) around.insert(rack);
    return around;
  }

  // One contribution and one result between a rank and a leaf.
  void send(size_t rank, size_t leaf_index) {
    const Leaf& leaf = leaves_[leaf_index];
    if (leaf.rank == rank) return;
    const auto load = [&](size_t link) { routes_.links[link].load[leaf_index] += 1; };
    load(ranks_[rank].out);
    load(ranks_[rank].in);
    const std::set<int> near = racks_around(topology_.ranks[rank].rack);
    const std::set<int> far = racks_around(leaf.rack);
    for (size_t rack = 0; rack < racks_.size(); ++rack) {
      if (near.contains(static_cast<int>(rack)) == far.contains(static_cast<int>(rack))) continue;
      load(racks_[rack].in);
      load(racks_[rack].out);
    }
    if (leaf.rank != kNone) {
      load(ranks_[leaf.rank].in);
      load(ranks_[leaf.rank].out);
    } else if (!ports_[leaf.place].empty() && !is_hierarchy(leaf.place)) {
      const Ends port = ports_[leaf.place][leaf.port];
      load(port.in);
      if (!topology_.places[leaf.place].multicast || rank == 0) load(port.out);
    }
  }

  bool is_hierarchy(size_t place) const { return !topology_.places[place].below.empty(); }

  // Packet by packet: what each member of an aggregator sends and gets, and what it exchanges with its parent itself.
  void pass_on(const Place& place, bool has_parent, size_t leaf) {
    const auto load = [&](size_t link) { routes_.links[link].load[leaf] += 1; };
    if (!place.ports.empty()) {
      const Ends port = add(place.ports.front());
      for (size_t member = 0; member < place.members; ++member) {
        load(port.in);
        if (member == 0 || !place.multicast || !place.below.empty()) load(port.out);
      }
      if (has_parent) load(port.in);
      if (has_parent) load(port.out);
    }
    if (place.uplink) {
      const Ends uplink = add(*place.uplink);
      load(uplink.in);
      load(uplink.out);
    }
    if (place.limits.stream_bps > 0) load(add(place.limits.stream_bps));
    if (place.limits.adds_per_second > 0)
      load(add(place.limits.adds_per_second * topology_.element_bits / static_cast<double>(place.members)));
    for (const Place& lower : place.below) pass_on(lower, true, leaf);
  }

  template <typename Chosen>
  void limit(const SumLimits& limits, Chosen chosen) {
    const auto ranks = static_cast<double>(topology_.ranks.size());
    for (const double rate :
         {limits.stream_bps, limits.adds_per_second * topology_.element_bits / ranks,
          limits.slots > 0 ? limits.slots * limits.slot_bytes * 8 / limits.round_trip_s : 0}) {
      if (rate == 0) continue;
      const size_t link = add(rate);
      for (size_t leaf = 0; leaf < leaves_.size(); ++leaf) {
        if (chosen(leaves_[leaf])) routes_.links[link].load[leaf] = 1;
      }
    }
  }

  const Topology& topology_;
  std::vector<Leaf> leaves_;
  Routes routes_;
  std::vector<Ends> ranks_;
  std::vector<Ends> racks_;
  std::vector<std::vector<Ends>> ports_;
};

}  // namespace

Routes route(const Topology& topology) {
  return Router(topology).route();
}

double time_of(const Routes& routes, const std::vector<double>& shares) {
  double slowest = 0;
  for (const RoutedLink& link : routes.links) {
    double load = 0;
    for (size_t leaf = 0; leaf < routes.leaves; ++leaf) load += link.load[leaf] * shares[leaf];
    slowest = std::max(slowest, load / link.rate_bps);
  }
  return slowest;
}

}  // namespace netsum::plan::testing
