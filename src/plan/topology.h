// What the planner knows of a job's network: the links of its ranks, and the places that can sum.
//
// The network between the links is taken as fast enough, except for the uplinks of racks. Rates are in bits per
// second. They may be declared, read from interfaces or measured; the planner does not ask which.
#ifndef NETSUM_SRC_PLAN_TOPOLOGY_H_
#define NETSUM_SRC_PLAN_TOPOLOGY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "netsum/status.h"

namespace netsum::plan {

inline constexpr size_t kMaxRanks = 512;
inline constexpr size_t kMaxPlaces = 64;
inline constexpr size_t kMaxRacks = 512;
inline constexpr size_t kMaxPorts = 64;  // of one place; and cores
// A rate outside of these is a mistake in a unit.
inline constexpr double kMinRateBps = 1e3;
inline constexpr double kMaxRateBps = 1e14;

inline constexpr int kNoRack = -1;

// One full-duplex link, seen from its host: `in` is what the host receives.
struct Link {
  double in_bps = 0;
  double out_bps = 0;
};

// How fast a place can sum, apart from its links. 0: no limit. The smallest limit applies.
struct SumLimits {
  double stream_bps = 0;       // of the gradient, from each rank
  double adds_per_second = 0;  // additions of one element, over all ranks
  // Slots limit a place to slots * slot_bytes per round trip, from each rank. All three or none.
  double slots = 0;
  double slot_bytes = 0;  // payload
  double round_trip_s = 0;
};

// A rank that sends its own contributions. The ranks of a host that sum in shared memory first count as one.
struct Rank {
  std::string name;
  Link link;
  int rack = kNoRack;
  bool shard = true;  // whether the rank can embed a shard; `limits` are the shard's
  SumLimits limits;
};

enum class PlaceKind : uint8_t {
  kSwitch,  // every rank reaches it over the rank's own link, and it has none of its own
  kSpareHost,
};

struct Place {
  std::string name;
  PlaceKind kind = PlaceKind::kSpareHost;
  std::vector<Link> ports;  // of a spare host, at least one; of a switch, none
  size_t cores = 1;         // each sums for one or more stripes
  SumLimits limits;
  bool multicast = false;  // a result leaves the port once, not once for each rank
  int rack = kNoRack;
};

// Ranks and places behind one shared link. Racks may be nested. Also fits hosts whose ranks share a link.
// A result that leaves by multicast counts once for each rank behind the uplink, as if it were copied: networks rarely
// forward multicast between racks.
struct Rack {
  std::string name;
  Link uplink;
  int parent = kNoRack;
};

struct Topology {
  std::vector<Rank> ranks;
  std::vector<Place> places;  // besides the embedded shards
  std::vector<Rack> racks;
  double element_bits = 32;  // of an element in the gradient; relates additions to bits
};

// Errors: kInvalidArgument for a value that cannot be, kUnreachable for a place without a link, kResourceExhausted over
// the limits above. The message names the part and says what to do.
Status check(const Topology& topology);

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_TOPOLOGY_H_
