#include "tools/netsum/rack_topology.h"

#include <algorithm>

#include "tools/netsum/rack_set.h"

namespace netsum::tool {
namespace {

Status refused(const RackNote& note, const std::string& why) {
  return Status(ErrorCode::kInvalidArgument, "rack '" + note.options.name + "' " + why);
}

}  // namespace

Result<plan::Topology> rack_topology(const RackNote& note) {
  const RackPlan plan(note.options);
  if (note.options.racks > 1) return refused(note, "is a hierarchy, which plans do not cover");
  plan::Topology topology;
  if (note.options.switch_aggregator) {
    const auto stream = static_cast<double>(note.options.switch_rate_bits);
    topology.places.push_back({.name = plan.top().id,
                               .kind = plan::PlaceKind::kSwitch,
                               .ports = {},
                               .limits = {.stream_bps = stream},
                               .multicast = note.options.multicast});
  }
  for (const RackNode& node : plan.nodes()) {
    if (node.kind != RackNode::Kind::kWorker && node.kind != RackNode::Kind::kSpareHost) continue;
    std::vector<plan::Link> links;
    for (const RackLink& link : plan.links()) {
      if (link.node != node.id) continue;
      const auto rate = static_cast<double>(state_of(note, link).rate_bits);
      if (rate == 0) {
        return refused(note, "has a link without a rate, that of " + link.id + ": make it with --rate");
      }
      links.push_back({rate, rate});
    }
    if (node.kind == RackNode::Kind::kWorker) {
      topology.ranks.push_back({.name = node.id, .link = links.front(), .limits = {}});
    } else {
      topology.places.push_back({.name = node.id,
                                 .ports = links,
                                 .cores = links.size(),
                                 .limits = {},
                                 .multicast = note.options.multicast});
    }
  }
  if (const Status status = check(topology); !status.ok()) return status;
  return topology;
}

}  // namespace netsum::tool
