// The planner's model of a job's network: the links of its ranks, and the places that can sum.
//
// The network between the links is assumed to be fast enough, except for the uplinks of racks. Rates are in bits per
// second. The caller may declare, measure, or read them from interfaces.
#ifndef NETSUM_SRC_PLAN_TOPOLOGY_H_
#define NETSUM_SRC_PLAN_TOPOLOGY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "netsum/status.h"

namespace netsum::plan {

inline constexpr size_t kMaxRanks = 512;
inline constexpr size_t kMaxPlaces = 64;
inline constexpr size_t kMaxRacks = 512;
inline constexpr size_t kMaxPorts = 64;  // of one place; and cores
// A rate outside this range is probably given in a wrong unit.
inline constexpr double kMinRateBps = 1e3;
inline constexpr double kMaxRateBps = 1e14;
// Of SumLimits. Every rate that follows from numbers in these ranges is far from the limits of a double.
inline constexpr double kMinAddsPerSecond = 1, kMaxAddsPerSecond = 1e18;
inline constexpr double kMinSlots = 1, kMaxSlots = 1e9;  // also of bytes per slot
inline constexpr double kMinRoundTripS = 1e-9, kMaxRoundTripS = 1e6;
inline constexpr size_t kMaxLevels = 8;          // places below each other
inline constexpr size_t kMaxAggregators = 1024;  // places with those below them

inline constexpr int kNoRack = -1;

// One full-duplex link, seen from its host: `in` is what the host receives.
struct Link {
  double in_bps = 0;
  double out_bps = 0;
};

// How fast a place can sum, independently of its links. 0: no limit. The smallest limit applies.
struct SumLimits {
  double stream_bps = 0;       // of the gradient, from each rank
  double adds_per_second = 0;  // additions of one element, over all ranks
  // Slots limit the rate to slots * slot_bytes per round trip, from each rank. Set all three or none.
  double slots = 0;
  double slot_bytes = 0;  // payload
  double round_trip_s = 0;
};

// The rate that the limits allow, in gradient bits per second from each of the members; INFINITY without limits.
double stream_rate(const SumLimits& limits, double members, double element_bits);

// A rank that sends contributions. Ranks of a host that sum in shared memory first count as one.
struct Rank {
  std::string name;
  Link link;
  int rack = kNoRack;
  bool shard = true;  // whether the rank can embed a shard; `limits` are the shard's
  SumLimits limits;
};

enum class PlaceKind : uint8_t {
  kSwitch,  // on the path of all ranks: it has no link of its own
  kSpareHost,
};

struct Place {
  std::string name;
  PlaceKind kind = PlaceKind::kSpareHost;
  std::vector<Link> ports;  // of a spare host, at least one; of a switch, none
  size_t cores = 1;         // each sums for one or more stripes
  SumLimits limits;
  bool multicast = false;  // a result leaves the port once instead of once for each member
  int rack = kNoRack;
  // Hierarchy: the aggregators whose parent this one is. Each sums for its members, sends the sum to its parent as one
  // member, and passes the result on. Each of its stripes belongs to the parent's stripe with the same number, so the
  // place has as many stripes as the aggregator with the fewest.
  std::vector<Place> below;
  size_t members =
      0;  // ranks that send to this aggregator itself, and the aggregators below it. 0: all ranks
  std::optional<Link> uplink;  // below another one: carries each sum and each result once, besides the ports
};

// Ranks and places behind one shared link. Racks may be nested. A host whose ranks share a link is a rack, too. A
// multicast result counts once for each rank behind the uplink, because networks rarely forward multicast between racks.
struct Rack {
  std::string name;
  Link uplink;
  int parent = kNoRack;
};

struct Topology {
  std::vector<Rank> ranks;
  std::vector<Place> places;  // besides the embedded shards
  std::vector<Rack> racks;    // not together with places that have others below them
  double element_bits = 32;   // of an element in the gradient; relates additions to bits
};

// Errors: kInvalidArgument for an invalid value, kUnreachable for a place without a link, kResourceExhausted beyond the
// limits above. The message names the part and says what to do.
Status check(const Topology& topology);

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_TOPOLOGY_H_
