#include "src/plan/job_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "src/base/text.h"
#include "src/plan/planner.h"
#include "src/plan/ports.h"

namespace netsum::plan {
namespace {

// Assumed for all links if no rate is known; then only their ratio matters.
constexpr double kNominalBps = 10e9;
constexpr size_t kMaxAddressBytes = 128;

std::string formatted(const char* format, double value) {
  char text[48];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// Replaces unknown rates by an assumed one, and counts how often.
class Rates {
 public:
  explicit Rates(const JobTopology& job) {
    double slowest = std::numeric_limits<double>::infinity();
    for (const LinkRate& link : job.links) slowest = std::min(slowest, known(link));
    known_ = std::isfinite(slowest);
    for (const PlaceInfo& place : job.places) {
      if (!known_) slowest = std::min(slowest, slowest_port(place));
    }
    assumed_ = std::isfinite(slowest) ? slowest : kNominalBps;
    any_known_ = std::isfinite(slowest);
  }

  Link of(const LinkRate& link) {
    assumptions_ += link.in_bps() == 0 || link.out_bps() == 0 ? 1 : 0;
    return {link.in_bps() == 0 ? assumed_ : link.in_bps(), link.out_bps() == 0 ? assumed_ : link.out_bps()};
  }

  // "" if all are known.
  std::string note() const {
    if (assumptions_ == 0) return "";
    if (!any_known_) return "; no rate is known, all links are taken as equal";
    return "; " + std::to_string(assumptions_) + (assumptions_ == 1 ? " link is" : " links are") +
           " taken as " + formatted("%.4g Mbit/s", assumed_ / 1e6);
  }

 private:
  static double known(const LinkRate& link) {
    double rate = std::numeric_limits<double>::infinity();
    for (const double bps : {link.in_bps(), link.out_bps()}) {
      if (bps != 0) rate = std::min(rate, bps);
    }
    return rate;
  }

  static double slowest_port(const PlaceInfo& place) {
    double slowest = std::numeric_limits<double>::infinity();
    for (const PlacePort& port : place.ports()) slowest = std::min(slowest, known(port.link()));
    for (const PlaceInfo& lower : place.below()) slowest = std::min(slowest, slowest_port(lower));
    return slowest;
  }

  double assumed_ = kNominalBps;
  bool known_ = false, any_known_ = false;
  size_t assumptions_ = 0;
};

Status check_stripes(const plan::Place& place, const PlaceInfo& said) {
  std::vector<double> rates;
  for (const Link& port : place.ports) rates.push_back(std::min(port.in_bps, port.out_bps));
  if (rates.empty()) rates.push_back(1);
  const size_t expected = assign_cores(rates, place.cores).size();
  if (expected == said.stripes()) return {};
  return {ErrorCode::kInvalidArgument,
          place.name + " has " + std::to_string(said.stripes()) + " stripes, but its " +
              std::to_string(rates.size()) + " ports and " + std::to_string(place.cores) + " cores make " +
              std::to_string(expected) + ": install the same release of netsum on all hosts"};
}

bool is_hierarchy(const PlaceInfo& place) {
  return !place.below().empty();
}

Result<plan::Place> to_place(const PlaceInfo& said, const std::string& name, Rates* rates);

Status add_below(const PlaceInfo& said, Rates* rates, plan::Place* place) {
  for (const PlaceInfo& lower_said : said.below()) {
    Result<plan::Place> lower = to_place(lower_said, "aggregator " + lower_said.address(), rates);
    if (!lower.ok()) return lower.status();
    const LinkRate& uplink = lower_said.uplink();
    if (uplink.in_bps() != 0 && uplink.out_bps() != 0)
      lower->uplink = Link{uplink.in_bps(), uplink.out_bps()};
    place->below.push_back(std::move(lower).value());
  }
  return {};
}

Result<plan::Place> to_place(const PlaceInfo& said, const std::string& name, Rates* rates) {
  plan::Place place;
  place.name = name;
  place.cores = said.cores();
  place.limits.adds_per_second = said.adds_per_second();
  place.limits.stream_bps = said.stream_bps();
  place.multicast = said.multicast();
  place.members = said.ranks() + static_cast<size_t>(said.below_size());
  if (said.kind() == PlaceInfo::SWITCH) {
    place.kind = PlaceKind::kSwitch;
  } else {
    for (const PlacePort& port : said.ports()) place.ports.push_back(rates->of(port.link()));
    if (place.ports.empty()) place.ports.push_back(rates->of({}));
  }
  if (place.cores == 0 || place.cores > kMaxPorts || place.ports.size() > kMaxPorts) return place;  // check()
  if (Status status = check_stripes(place, said); !status.ok()) return status;
  if (!is_hierarchy(said)) return place;
  if (Status status = add_below(said, rates, &place); !status.ok()) return status;
  return place;
}

}  // namespace

Result<Topology> topology_of(const JobTopology& job, bool with_shards, std::string* note) {
  if (job.links.size() > kMaxRanks || job.places.size() > kMaxPlaces)
    return Status(ErrorCode::kResourceExhausted,
                  std::to_string(job.links.size()) + " ranks and " + std::to_string(job.places.size()) +
                      " aggregators; a plan has at most " + std::to_string(kMaxRanks) + " and " +
                      std::to_string(kMaxPlaces));
  Rates rates(job);
  Topology topology;
  for (size_t rank = 0; rank < job.links.size(); ++rank) {
    topology.ranks.push_back({.name = "rank " + std::to_string(rank),
                              .link = rates.of(job.links[rank]),
                              .shard = with_shards,
                              .limits = {}});
  }
  for (size_t i = 0; i < job.places.size(); ++i) {
    const PlaceInfo& said = job.places[i];
    const std::string name = "aggregator " + (said.address().empty() ? std::to_string(i) : said.address());
    for (size_t other = 0; other < i; ++other) {
      if (said.id() == 0 || job.places[other].id() != said.id()) continue;
      return Status(ErrorCode::kInvalidArgument,
                    topology.places[other].name + " and " + name + " are the same aggregator: name it once");
    }
    Result<plan::Place> place = to_place(said, name, &rates);
    if (!place.ok()) return place.status();
    topology.places.push_back(std::move(place).value());
  }
  if (note != nullptr) *note = rates.note();
  return topology;
}

namespace {

std::string percent(double share) {
  return formatted("%.3g %%", share * 100);
}

// "aggregator 10.0.0.9:5151 (and 2 below it)"
std::string describe_place(const Place& place) {
  const auto count = [](const auto& self, const Place& top) -> size_t {
    size_t below = top.below.size();
    for (const Place& lower : top.below) below += self(self, lower);
    return below;
  };
  const size_t below = count(count, place);
  return below == 0 ? place.name : place.name + " (and " + std::to_string(below) + " below it)";
}

// "10.0.0.9:5151 12.5 %, 8 embedded shards 10.9 % each"
std::string describe_shares(const Topology& topology, const Plan& plan) {
  std::vector<double> of_places(topology.places.size());
  double least = 1, most = 0;
  size_t shards = 0;
  for (const StripePlan& stripe : plan.stripes) {
    const double share = static_cast<double>(stripe.weight) / plan.period;
    if (stripe.place != StripePlan::kNone) {
      of_places[stripe.place] += share;
    } else if (stripe.weight > 0) {
      ++shards;
      least = std::min(least, share);
      most = std::max(most, share);
    }
  }
  std::string text;
  for (size_t i = 0; i < of_places.size(); ++i) {
    text += (text.empty() ? "" : ", ") + describe_place(topology.places[i]) + " " + percent(of_places[i]);
  }
  if (shards == 0) return text;
  text += (text.empty() ? "" : ", ") + std::to_string(shards) +
          (shards == 1 ? " embedded shard " : " embedded shards ") + percent(least);
  if (most > least) text += " to " + percent(most);
  return text + (shards == 1 ? "" : " each");
}

// What to do if a ring would be faster; "" if shards are missing for another reason.
const char* advice(const Topology& topology, Shares shares) {
  if (shares == Shares::kOff) return ": let netsum plan the shares (NETSUM_SHARES=auto)";
  const bool hierarchy = std::any_of(topology.places.begin(), topology.places.end(),
                                     [](const Place& place) { return !place.below.empty(); });
  return hierarchy  // whose uplinks are not known here
             ? ", unless links between switches limit it: put the aggregators of this hierarchy into "
               "switches, give them faster links, or name the "
               "topmost one on all ranks, so that these sum in shards, too"
             : "";
}

SharePlan summarise(const Topology& topology, const Plan& plan, Shares shares, const std::string& rates) {
  SharePlan summary;
  summary.set_s_per_byte(plan.s_per_byte);
  summary.set_ring_s_per_byte(plan.ring_s_per_byte);
  if (!plan.links.empty()) summary.set_bottleneck(plan.links[plan.bottleneck].name);
  std::string text = (shares != Shares::kOff ? "planned shares: " : "equal shares: ") +
                     describe_shares(topology, plan) + "; bottleneck: " + summary.bottleneck();
  if (plan.bottlenecks > 1) text += " (and " + std::to_string(plan.bottlenecks - 1) + " more)";
  if (plan.ring_s_per_byte > 0)
    text += "; expected " + formatted("%.2f", plan.speed_up) + " times as fast as a ring";
  text += rates;
  const std::string what_to_do = plan.slower_than_ring() ? advice(topology, shares) : "";
  if (!what_to_do.empty()) text += std::string("; WARNING: a ring would be faster") + what_to_do;
  summary.set_text(std::move(text));
  return summary;
}

}  // namespace

Result<JobPlan> plan_job(const JobTopology& job, Shares shares) {
  // A single rank needs no shards beside an aggregator.
  const bool with_shards =
      job.shards && (job.places.empty() || (shares != Shares::kOff && job.links.size() > 1));
  std::string note;
  Result<Topology> topology = topology_of(job, with_shards, &note);
  if (!topology.ok()) return topology.status();
  Result<Plan> plan = make_plan(*topology);
  if (plan.ok() && shares == Shares::kOff)
    plan = evaluate(*topology, std::vector<uint32_t>(plan->stripes.size(), 1));
  if (!plan.ok()) {
    return Status(plan.status().code(), "the shares cannot be planned: " + plan.status().message());
  }
  JobPlan made;
  std::set<std::tuple<size_t, size_t, size_t>> places;
  made.of_shards.resize(job.links.size());
  for (const StripePlan& stripe : plan->stripes) {
    if (stripe.weight > 0) places.emplace(stripe.place, stripe.rank, stripe.port);
    if (stripe.place != StripePlan::kNone) {
      made.of_places.push_back(stripe.weight);
    } else {
      made.of_shards[stripe.rank] = stripe.weight;
    }
  }
  made.places = places.size();
  made.summary = summarise(*topology, *plan, shares, note);
  return made;
}

namespace {

Status check_declared_link(const LinkRate& link, const std::string& what) {
  if (Status status = check_declared_rate(link.in_bps(), (what + ", in,").c_str()); !status.ok())
    return status;
  return check_declared_rate(link.out_bps(), (what + ", out,").c_str());
}

Status check_declared_count(size_t count, size_t most, const std::string& what) {
  if (count <= most) return {};
  return {ErrorCode::kResourceExhausted, what + ": " + std::to_string(count) + " are declared, and at most " +
                                             std::to_string(most) + " are possible"};
}

// Without those below it.
Status check_declared_place(const PlaceInfo& place, const std::string& who) {
  const std::string what = who + ": aggregator '" + place.address() + "'";
  const double adds = place.adds_per_second();
  if (!(adds == 0 || (adds >= kMinAddsPerSecond && adds <= kMaxAddsPerSecond)))  // true for NaN
    return {ErrorCode::kInvalidArgument, what + ": additions per second are " + formatted("%.6g", adds) +
                                             "; give 1 to 1e18, or 0 for no limit"};
  if (Status status = check_declared_rate(place.stream_bps(), (what + ": the rate of sums").c_str());
      !status.ok())
    return status;
  if (Status status = check_declared_link(place.uplink(), what + ": the uplink"); !status.ok()) return status;
  if (Status status =
          check_declared_count(static_cast<size_t>(place.ports_size()), kMaxPorts, what + ", ports");
      !status.ok())
    return status;
  for (const PlacePort& port : place.ports()) {
    if (Status status = check_text(what + ": the address of a port", port.address(), kMaxAddressBytes);
        !status.ok())
      return status;
    if (Status status = check_declared_link(port.link(), what + ": the link of a port"); !status.ok())
      return status;
  }
  if (Status status = check_declared_count(place.cores(), kMaxCoresDeclared, what + ", cores"); !status.ok())
    return status;
  if (Status status = check_declared_count(place.ranks(), kMaxRanks, what + ", ranks"); !status.ok())
    return status;
  return check_declared_count(place.stripes(), kMaxCoresDeclared, what + ", stripes");
}

}  // namespace

Status check_declared(const LinkRate& link, const std::vector<const PlaceInfo*>& paths,
                      const std::string& who) {
  for (const double bps : {link.in_bps(), link.out_bps()}) {
    if (Status status = check_declared_rate(bps, (who + "'s link rate").c_str()); !status.ok()) return status;
  }
  // The aggregator that was asked, and the further ones.
  if (Status status = check_declared_count(paths.size(), kMaxPlaces + 1, who + ", aggregators"); !status.ok())
    return status;
  size_t ports = 0;
  for (const PlaceInfo* path : paths) {
    size_t levels = 0;
    for (const PlaceInfo* place = path; place != nullptr;
         place = place->below().empty() ? nullptr : &place->below(0)) {
      if (Status status = check_declared_count(++levels, kMaxLevels, who + ", aggregators below each other");
          !status.ok())
        return status;
      if (Status status = check_declared_place(*place, who); !status.ok()) return status;
      ports += static_cast<size_t>(place->ports_size());
    }
  }
  return check_declared_count(ports, kMaxPortsDeclared, who + ", ports");
}

Status check_declared_rate(double bps, const char* what) {
  if (bps == 0 || (bps >= kMinRateBps && bps <= kMaxRateBps)) return {};  // false for NaN
  return {ErrorCode::kInvalidArgument,
          std::string(what) + " is " + formatted("%.6g", bps) +
              " bit/s; give a rate from 1 kbit/s to 100 Tbit/s, or none if it is not known"};
}

}  // namespace netsum::plan
