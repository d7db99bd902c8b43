#include "src/plan/topology.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

namespace netsum::plan {
namespace {

Status invalid(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

Status check_rate(double bps, const std::string& what) {
  if (bps >= kMinRateBps && bps <= kMaxRateBps) return {};  // false for NaN
  return invalid(what + " has a rate of " + number(bps) +
                 " bit/s; give the link's rate, from 1 kbit/s to 100 Tbit/s, " +
                 "or leave out what is not connected");
}

Status check_link(const Link& link, const std::string& what) {
  if (Status s = check_rate(link.in_bps, what + ", in,"); !s.ok()) return s;
  return check_rate(link.out_bps, what + ", out,");
}

Status check_limits(const SumLimits& limits, const std::string& what) {
  const struct {
    const char* name;
    double value, least, most;
  } all[] = {{"stream rate", limits.stream_bps, kMinRateBps, kMaxRateBps},
             {"additions per second", limits.adds_per_second, kMinAddsPerSecond, kMaxAddsPerSecond},
             {"slots", limits.slots, kMinSlots, kMaxSlots},
             {"bytes per slot", limits.slot_bytes, kMinSlots, kMaxSlots},
             {"round trip", limits.round_trip_s, kMinRoundTripS, kMaxRoundTripS}};
  for (const auto& [name, value, least, most] : all) {
    if (value == 0 || (value >= least && value <= most)) continue;  // false for NaN
    return invalid(what + ": " + name + " is " + number(value) + "; give " + number(least) + " to " +
                   number(most) + ", or 0 for no limit");
  }
  const bool any = limits.slots > 0 || limits.slot_bytes > 0 || limits.round_trip_s > 0;
  const bool every = limits.slots > 0 && limits.slot_bytes > 0 && limits.round_trip_s > 0;
  if (any && !every) {
    return invalid(what +
                   ": slots limit the rate only together with the bytes per slot and the round trip; " +
                   "give all three or none");
  }
  return {};
}

Status check_rack(int rack, const Topology& topology, const std::string& what) {
  if (rack == kNoRack || (rack >= 0 && static_cast<size_t>(rack) < topology.racks.size())) return {};
  return invalid(what + " is in rack number " + std::to_string(rack) + ", but there are " +
                 std::to_string(topology.racks.size()) + " racks; use one of them, or none");
}

Status check_racks(const Topology& topology) {
  for (const Rack& rack : topology.racks) {
    const std::string what = "the uplink of rack '" + rack.name + "'";
    if (Status s = check_link(rack.uplink, what); !s.ok()) return s;
    if (Status s = check_rack(rack.parent, topology, "rack '" + rack.name + "'"); !s.ok()) return s;
  }
  for (const Rack& rack : topology.racks) {
    int up = rack.parent;
    for (size_t steps = 0; up != kNoRack; ++steps) {
      if (steps == topology.racks.size()) {
        return invalid("rack '" + rack.name + "' is inside itself, or inside racks that are; " +
                       "leave out one of the enclosing racks");
      }
      up = topology.racks[static_cast<size_t>(up)].parent;
    }
  }
  return {};
}

Status check_place(const Place& place, const Topology& topology, size_t level);

Status check_below(const Place& place, const Topology& topology, size_t level) {
  if (level == kMaxLevels && !place.below.empty()) {
    return {ErrorCode::kResourceExhausted, "place '" + place.name + "' is on level " + std::to_string(level) +
                                               ", the lowest that is possible, and has others below it"};
  }
  if (!place.below.empty() && !topology.racks.empty()) {
    return invalid("place '" + place.name +
                   "' has others below it, whose load on the uplinks of racks is not " +
                   "covered; leave out the racks, and give these places uplinks");
  }
  for (const Place& lower : place.below) {
    if (lower.members == 0) {
      return invalid("place '" + lower.name + "' is below '" + place.name +
                     "' and no rank sends to it; leave it out, or put ranks below it");
    }
    if (Status s = check_place(lower, topology, level + 1); !s.ok()) return s;
    if (!lower.uplink) continue;
    if (Status s = check_link(*lower.uplink, "the uplink of place '" + lower.name + "'"); !s.ok()) return s;
  }
  return {};
}

Status check_place(const Place& place, const Topology& topology, size_t level) {
  const std::string what = "place '" + place.name + "'";
  if (place.kind == PlaceKind::kSpareHost && place.ports.empty()) {
    return {ErrorCode::kUnreachable,
            what + " has no link, so no rank can reach it; give its link, or leave the place out"};
  }
  if (place.kind == PlaceKind::kSwitch && !place.ports.empty()) {
    return invalid(what + " is in the switch, where only the ranks' links count; leave out its own " +
                   "links, or make it a spare host");
  }
  if (place.ports.size() > kMaxPorts || place.cores > kMaxPorts || place.cores == 0) {
    return invalid(what + " has " + std::to_string(place.ports.size()) + " ports and " +
                   std::to_string(place.cores) + " cores; give at least one core, and at most " +
                   std::to_string(kMaxPorts) + " of each");
  }
  for (size_t port = 0; port < place.ports.size(); ++port) {
    const std::string link = "port " + std::to_string(port) + " of " + what;
    if (Status s = check_link(place.ports[port], link); !s.ok()) return s;
  }
  if (Status s = check_limits(place.limits, what); !s.ok()) return s;
  if (Status s = check_below(place, topology, level); !s.ok()) return s;
  return check_rack(place.rack, topology, what);
}

Status check_count(size_t count, size_t most, const char* what) {
  if (count <= most) return {};
  return {ErrorCode::kResourceExhausted,
          std::to_string(count) + " " + what + " are more than the limit of " + std::to_string(most)};
}

size_t count_with_those_below(const std::vector<Place>& places) {
  size_t count = places.size();
  for (const Place& place : places) count += count_with_those_below(place.below);
  return count;
}

Status check_names(const Topology& topology) {
  std::set<std::string> names;
  const auto add = [&](const std::string& name) -> Status {
    if (!name.empty() && names.insert(name).second) return {};
    return invalid("the name '" + name +
                   "' is empty or given twice; name each host, place and rack differently");
  };
  for (const Rank& rank : topology.ranks) {
    if (Status s = add(rank.name); !s.ok()) return s;
  }
  for (const Place& place : topology.places) {
    if (Status s = add(place.name); !s.ok()) return s;
  }
  for (const Rack& rack : topology.racks) {
    if (Status s = add(rack.name); !s.ok()) return s;
  }
  return {};
}

}  // namespace

double stream_rate(const SumLimits& limits, double members, double element_bits) {
  constexpr double kBitsPerByte = 8;
  double rate = INFINITY;
  if (limits.stream_bps > 0) rate = limits.stream_bps;
  if (limits.adds_per_second > 0) {
    rate = std::min(rate, limits.adds_per_second * element_bits / members);
  }
  if (limits.slots > 0) {
    rate = std::min(rate, limits.slots * limits.slot_bytes * kBitsPerByte / limits.round_trip_s);
  }
  return rate;
}

Status check(const Topology& topology) {
  if (topology.ranks.empty()) return invalid("there is no rank; give the hosts of the job");
  if (Status s = check_count(topology.ranks.size(), kMaxRanks, "ranks"); !s.ok()) return s;
  if (Status s = check_count(topology.places.size(), kMaxPlaces, "places"); !s.ok()) return s;
  if (Status s = check_count(topology.racks.size(), kMaxRacks, "racks"); !s.ok()) return s;
  if (Status s = check_count(count_with_those_below(topology.places), kMaxAggregators,
                             "places with those below them");
      !s.ok())
    return s;
  if (!(topology.element_bits >= 1 && topology.element_bits <= 64)) {
    return invalid("an element of " + number(topology.element_bits) + " bits; give 1 to 64");
  }
  if (Status s = check_names(topology); !s.ok()) return s;
  if (Status s = check_racks(topology); !s.ok()) return s;
  bool some_place = false;
  for (const Rank& rank : topology.ranks) {
    const std::string what = "rank '" + rank.name + "'";
    if (Status s = check_link(rank.link, "the link of " + what); !s.ok()) return s;
    if (Status s = check_limits(rank.limits, what); !s.ok()) return s;
    if (Status s = check_rack(rank.rack, topology, what); !s.ok()) return s;
    some_place |= rank.shard;
  }
  for (const Place& place : topology.places) {
    if (Status s = check_place(place, topology, 1); !s.ok()) return s;
    some_place = true;
  }
  if (!some_place) {
    return invalid("no place can sum: there is no switch, no spare host, and no rank may embed a shard; " +
                   std::string("add a place, or allow shards"));
  }
  return {};
}

}  // namespace netsum::plan
