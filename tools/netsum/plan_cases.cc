#include "tools/netsum/plan_cases.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "src/base/assert.h"

namespace netsum::tool {
namespace {

bool same_links(const std::vector<plan::Link>& a, const std::vector<plan::Link>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const plan::Link& x, const plan::Link& y) {
    return x.in_bps == y.in_bps && x.out_bps == y.out_bps;
  });
}

bool same_limits(const plan::SumLimits& a, const plan::SumLimits& b) {
  return a.stream_bps == b.stream_bps && a.adds_per_second == b.adds_per_second && a.slots == b.slots &&
         a.slot_bytes == b.slot_bytes && a.round_trip_s == b.round_trip_s;
}

bool same_uplinks(const plan::Place& a, const plan::Place& b) {
  const auto links = [](const plan::Place& place) {
    return place.uplink ? std::vector<plan::Link>{*place.uplink} : std::vector<plan::Link>();
  };
  return same_links(links(a), links(b));
}

// Apart from their names.
bool same(const plan::Place& a, const plan::Place& b) {
  return a.kind == b.kind && same_links(a.ports, b.ports) && a.cores == b.cores &&
         same_limits(a.limits, b.limits) && a.multicast == b.multicast && a.rack == b.rack &&
         a.members == b.members && same_uplinks(a, b) &&
         std::equal(a.below.begin(), a.below.end(), b.below.begin(), b.below.end(), same);
}

class Cases {
 public:
  explicit Cases(const plan::Topology& whole) : whole_(whole) {
    for (const plan::Rank& rank : whole.ranks) shards_ |= rank.shard;
    for (size_t i = 0; i < whole.places.size(); ++i) {
      (whole.places[i].kind == plan::PlaceKind::kSwitch ? switches_ : spares_).push_back(i);
    }
  }

  std::vector<PlanCase> all() {
    if (shards_) add("embedded shards", {}, true);
    for (size_t i = 0; i < whole_.places.size(); ++i) {
      const auto equals_it = [&](const plan::Place& place) { return same(place, whole_.places[i]); };
      const auto end = whole_.places.begin() + static_cast<std::ptrdiff_t>(i);
      if (std::none_of(whole_.places.begin(), end, equals_it))
        add(whole_.places[i].name + " alone", {i}, false);
    }
    if (spares_.size() > 1) add(fmt::format("{} spare hosts alone", spares_.size()), spares_, false);
    if (shards_) with_shards();
    std::vector<size_t> everything(whole_.places.size());
    for (size_t i = 0; i < everything.size(); ++i) everything[i] = i;
    add("best mix", everything, true);
    return std::move(cases_);
  }

 private:
  // Spare hosts by powers of two, and all; then the switches.
  void with_shards() {
    for (size_t count = 1; count < 2 * spares_.size(); count *= 2) {
      const size_t used = std::min(count, spares_.size());
      add(fmt::format("{} spare host{} and shards", used, used == 1 ? "" : "s"),
          {spares_.begin(), spares_.begin() + static_cast<std::ptrdiff_t>(used)}, true);
    }
    if (!switches_.empty() && !spares_.empty()) add("switch and shards", switches_, true);
  }

  void add(const std::string& name, const std::vector<size_t>& places, bool shards) {
    PlanCase added{name, whole_, {}};
    added.topology.places.clear();
    for (const size_t place : places) added.topology.places.push_back(whole_.places[place]);
    if (!shards) {
      for (plan::Rank& rank : added.topology.ranks) rank.shard = false;
    }
    Result<plan::Plan> made = make_plan(added.topology);
    NETSUM_ASSERT(made.ok());  // a part of a valid topology that can sum
    added.plan = std::move(made).value();
    cases_.push_back(std::move(added));
  }

  const plan::Topology& whole_;
  bool shards_ = false;
  std::vector<size_t> switches_;
  std::vector<size_t> spares_;
  std::vector<PlanCase> cases_;
};

std::string stripe_name(const plan::StripePlan& stripe, const plan::Topology& topology) {
  if (stripe.rank != plan::StripePlan::kNone) return topology.ranks[stripe.rank].name + " (shard)";
  const plan::Place& place = topology.places[stripe.place];
  std::string name = place.name;
  if (place.ports.size() > 1) name += fmt::format(" port {}", stripe.port);
  if (place.cores > 1) name += fmt::format(" core {}", stripe.core);
  return name;
}

}  // namespace

std::vector<PlanCase> plan_cases(const plan::Topology& topology) {
  return Cases(topology).all();
}

std::string bottleneck_text(const plan::Plan& plan) {
  if (plan.s_per_byte == 0) return "-";
  const std::string& name = plan.links[plan.bottleneck].name;
  return plan.bottlenecks == 1 ? name : fmt::format("{} (and {} more)", name, plan.bottlenecks - 1);
}

std::string plan_warning(const PlanCase& best) {
  if (!best.plan.slower_than_ring()) return "";
  const std::string& name = best.plan.links[best.plan.bottleneck].name;
  const auto& places = best.topology.places;
  if (std::any_of(places.begin(), places.end(),
                  [](const plan::Place& place) { return !place.below.empty(); })) {
    return "a ring would be faster, because of " + name +
           "; make it faster, put its aggregator into a switch, or let all ranks name the topmost aggregator";
  }
  if (name.starts_with("uplink")) {
    return "a ring would be faster, because of the " + name +
           "; run an aggregator in each rack with a parent (netsum aggregator --parent)";
  }
  return "a ring would be faster, because of " + name + "; allow shards on all hosts, or add a place";
}

nlohmann::json plan_json(const std::vector<PlanCase>& cases) {
  nlohmann::json report;
  report["ring_s_per_gigabyte"] = cases.back().plan.ring_s_per_byte * kGigabyte;
  report["warning"] = plan_warning(cases.back());
  for (const PlanCase& each : cases) {
    nlohmann::json entry = {{"name", each.name},
                            {"s_per_gigabyte", each.plan.s_per_byte * kGigabyte},
                            {"optimum_s_per_gigabyte", each.plan.optimum_s_per_byte * kGigabyte},
                            {"speed_up", each.plan.speed_up},
                            {"bottleneck", bottleneck_text(each.plan)},
                            {"period", each.plan.period}};
    for (const plan::LinkLoad& link : each.plan.links) {
      entry["links"].push_back(
          {{"name", link.name},
           {"rate_bps", link.rate_bps},
           {"bytes_per_gigabyte", link.load * kGigabyte},
           {"use", each.plan.s_per_byte > 0 ? link.s_per_byte / each.plan.s_per_byte : 0}});
    }
    for (const plan::StripePlan& stripe : each.plan.stripes) {
      entry["weights"].push_back({{"stripe", stripe_name(stripe, each.topology)}, {"weight", stripe.weight}});
    }
    report["cases"].push_back(entry);
  }
  return report;
}

std::string plan_text(const std::vector<PlanCase>& cases) {
  size_t width = 16;
  for (const PlanCase& each : cases) width = std::max(width, each.name.size());
  std::string text =
      fmt::format("{:<{}}  {:>9}  {:>9}  {}\n", "PLACEMENT", width, "S PER GB", "SPEED-UP", "BOTTLENECK");
  const plan::Plan& best = cases.back().plan;
  text += fmt::format("{:<{}}  {:>9.4g}  {:>9.2f}  {}\n", "ring", width, best.ring_s_per_byte * kGigabyte,
                      1.0, "(not netsum; for comparison)");
  for (const PlanCase& each : cases) {
    text += fmt::format("{:<{}}  {:>9.4g}  {:>9.2f}  {}\n", each.name, width,
                        each.plan.s_per_byte * kGigabyte, each.plan.speed_up, bottleneck_text(each.plan));
  }
  text += fmt::format("\nBest mix: shares, of {} chunks\n", best.period);
  for (const plan::StripePlan& stripe : best.stripes) {
    text += fmt::format("  {:<{}}  {:>5}  {:>6.2f} %\n", stripe_name(stripe, cases.back().topology), width,
                        stripe.weight, 100.0 * stripe.weight / best.period);
  }
  text += fmt::format("  {:.2g} % of its time is lost because shares are whole chunks\n",
                      100 * std::max(0.0, best.rounding_loss()));
  text += "\nBest mix: bytes per link and gigabyte of gradient\n";
  for (const plan::LinkLoad& link : best.links) {
    text += fmt::format("  {:<{}}  {:>12.4g}  {:>5.1f} % busy\n", link.name, width, link.load * kGigabyte,
                        best.s_per_byte > 0 ? 100 * link.s_per_byte / best.s_per_byte : 0.0);
  }
  if (const std::string warning = plan_warning(cases.back()); !warning.empty())
    text += "\nwarning: " + warning + "\n";
  return text;
}

}  // namespace netsum::tool
