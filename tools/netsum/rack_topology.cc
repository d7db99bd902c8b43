#include "tools/netsum/rack_topology.h"

#include <algorithm>

#include "tools/netsum/rack_set.h"

namespace netsum::tool {
namespace {

Status refused(const RackNote& note, const std::string& why) {
  return Status(ErrorCode::kInvalidArgument, "rack '" + note.options.name + "' " + why);
}

// Of a switch's aggregator. Links are those of the members.
plan::Place switch_place(const RackNote& note, const std::string& name) {
  const auto stream = static_cast<double>(note.options.switch_rate_bits);
  return {.name = name,
          .kind = plan::PlaceKind::kSwitch,
          .ports = {},
          .limits = {.stream_bps = stream},
          .multicast = note.options.multicast};
}

// The links of a host, or the one of an uplink, at their present rates.
Result<std::vector<plan::Link>> links_of(const RackNote& note, const RackPlan& plan,
                                         const std::string& node) {
  std::vector<plan::Link> links;
  for (const RackLink& link : plan.links()) {
    if (link.node != node) continue;
    const auto rate = static_cast<double>(state_of(note, link).rate_bits);
    if (rate == 0)
      return refused(note, "has a link without a rate, that of " + link.id + ": make it with --rate");
    links.push_back({rate, rate});
  }
  return links;
}

// The aggregators of the switches below that of the spine.
Result<plan::Place> spine_place(const RackNote& note, const RackPlan& plan) {
  plan::Place spine = switch_place(note, plan.top().id);
  for (const RackNode& node : plan.nodes()) {
    if (node.kind != RackNode::Kind::kUplink) continue;
    const Result<std::vector<plan::Link>> uplink = links_of(note, plan, node.id);
    if (!uplink.ok()) return uplink.status();
    plan::Place below = switch_place(note, "sw" + std::to_string(node.rack));
    below.uplink = uplink->front();
    below.members = static_cast<size_t>(
        std::count_if(plan.nodes().begin(), plan.nodes().end(), [&](const RackNode& other) {
          return other.kind == RackNode::Kind::kWorker && other.rack == node.rack;
        }));
    spine.below.push_back(std::move(below));
  }
  spine.members = spine.below.size();
  return spine;
}

}  // namespace

Result<plan::Topology> rack_topology(const RackNote& note) {
  if (note.options.graph) return refused(note, "is of a topology file: plan that file instead");
  const RackPlan plan(note.options);
  const bool hierarchy = note.options.racks > 1;
  if (hierarchy && !note.options.switch_aggregator)
    return refused(note, "has several switches without aggregators, which this command does not cover");
  plan::Topology topology;
  if (hierarchy) {
    Result<plan::Place> spine = spine_place(note, plan);
    if (!spine.ok()) return spine.status();
    topology.places.push_back(std::move(spine).value());
  } else if (note.options.switch_aggregator) {
    topology.places.push_back(switch_place(note, plan.top().id));
  }
  for (const RackNode& node : plan.nodes()) {
    if (node.kind != RackNode::Kind::kWorker && node.kind != RackNode::Kind::kSpareHost) continue;
    const Result<std::vector<plan::Link>> links = links_of(note, plan, node.id);
    if (!links.ok()) return links.status();
    if (node.kind == RackNode::Kind::kWorker) {
      topology.ranks.push_back({.name = node.id, .link = links->front(), .shard = !hierarchy, .limits = {}});
    } else {
      topology.places.push_back({.name = node.id,
                                 .ports = *links,
                                 .cores = links->size(),
                                 .limits = {},
                                 .multicast = note.options.multicast});
    }
  }
  if (const Status status = check(topology); !status.ok()) return status;
  return topology;
}

}  // namespace netsum::tool
