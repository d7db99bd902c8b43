// Topologies for the planner's tests.
#ifndef NETSUM_SRC_PLAN_TESTING_H_
#define NETSUM_SRC_PLAN_TESTING_H_

#include <string>

#include "src/base/rng.h"
#include "src/plan/topology.h"

namespace netsum::plan::testing {

inline constexpr double kMbit = 1e6;

inline Link link(double mbit) {
  return {mbit * kMbit, mbit * kMbit};
}

inline Topology equal_ranks(size_t ranks, double mbit = 100) {
  Topology topology;
  for (size_t i = 0; i < ranks; ++i) {
    Rank rank;
    rank.name = "worker" + std::to_string(i);
    rank.link = link(mbit);
    topology.ranks.push_back(rank);
  }
  return topology;
}

// A spare host with one core per port.
inline Place spare_host(const std::string& name, double mbit, size_t ports = 1) {
  Place place;
  place.name = name;
  place.ports.assign(ports, link(mbit));
  place.cores = ports;
  return place;
}

inline Place in_switch(double stream_mbit) {
  Place place;
  place.name = "tor";
  place.kind = PlaceKind::kSwitch;
  place.limits.stream_bps = stream_mbit * kMbit;
  return place;
}

inline Topology with_spare_hosts(size_t ranks, size_t spares, double mbit = 100, double spare_mbit = 100) {
  Topology topology = equal_ranks(ranks, mbit);
  for (size_t i = 0; i < spares; ++i)
    topology.places.push_back(spare_host("spare" + std::to_string(i), spare_mbit));
  return topology;
}

// Up to `most_ranks` ranks, up to 6 places, and nested racks if `racks`. At least one place can sum.
Topology random_topology(Rng& rng, size_t most_ranks, bool racks);

}  // namespace netsum::plan::testing

#endif  // NETSUM_SRC_PLAN_TESTING_H_
