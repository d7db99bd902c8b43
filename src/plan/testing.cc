#include "src/plan/testing.h"

namespace netsum::plan::testing {
namespace {

Link random_link(Rng& rng) {
  const double in = 10 * static_cast<double>(1 + rng.below(40));
  const double out = rng.below(2) == 0 ? in : 10 * static_cast<double>(1 + rng.below(40));
  return {in * kMbit, out * kMbit};
}

int random_rack(Rng& rng, const Topology& topology) {
  return static_cast<int>(rng.below(topology.racks.size() + 1)) - 1;
}

SumLimits random_limits(Rng& rng) {
  SumLimits limits;
  if (rng.below(2) == 0) limits.stream_bps = 5 * kMbit * static_cast<double>(1 + rng.below(40));
  if (rng.below(3) == 0) limits.adds_per_second = kMbit * static_cast<double>(1 + rng.below(40));
  if (rng.below(4) == 0) {
    limits.slots = 512;
    limits.slot_bytes = 1024;
    limits.round_trip_s = 0.01 * static_cast<double>(1 + rng.below(9));
  }
  return limits;
}

Place random_place(Rng& rng, const Topology& topology, size_t number) {
  Place place;
  place.name = "place" + std::to_string(number);
  if (rng.below(4) == 0) {
    place.kind = PlaceKind::kSwitch;
  } else {
    const size_t ports = 1 + rng.below(3);
    for (size_t port = 0; port < ports; ++port) place.ports.push_back(random_link(rng));
    place.multicast = rng.below(3) == 0;
  }
  place.cores = 1 + rng.below(4);
  if (rng.below(2) == 0) place.limits = random_limits(rng);
  place.rack = random_rack(rng, topology);
  return place;
}

}  // namespace

Topology random_topology(Rng& rng, size_t most_ranks, bool racks) {
  Topology topology;
  const size_t rack_count = racks ? 1 + rng.below(4) : 0;
  for (size_t i = 0; i < rack_count; ++i) {
    Rack rack;
    rack.name = "rack" + std::to_string(i);
    rack.uplink = random_link(rng);
    rack.parent = random_rack(rng, topology);  // of the ones before
    topology.racks.push_back(rack);
  }
  const size_t ranks = 1 + rng.below(most_ranks);
  const size_t shards = rng.below(4);  // of every 3 ranks
  const size_t places = rng.below(7);
  for (size_t i = 0; i < ranks; ++i) {
    Rank rank;
    rank.name = "worker" + std::to_string(i);
    rank.link = random_link(rng);
    rank.shard = rng.below(3) < shards || (places == 0 && i == 0);
    if (rank.shard && rng.below(4) == 0) rank.limits = random_limits(rng);
    rank.rack = random_rack(rng, topology);
    topology.ranks.push_back(rank);
  }
  for (size_t i = 0; i < places; ++i) topology.places.push_back(random_place(rng, topology, i));
  return topology;
}

}  // namespace netsum::plan::testing
