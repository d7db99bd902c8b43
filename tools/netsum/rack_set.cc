#include "tools/netsum/rack_set.h"

#include <map>
#include <vector>

#include "tools/netsum/quantity.h"
#include "tools/netsum/rack_loss.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {
namespace {

// Both ends of a lossy link.
Status prepare_end(const std::string& network_namespace, const std::string& interface) {
  const Status status = switch_send_offloads_off(network_namespace, interface);
  return status.ok() ? switch_gro_on(network_namespace, interface) : status;
}

}  // namespace

Status make_links_lossy(const RackOptions& options) {
  const RackPlan plan(options);
  std::map<std::string, std::vector<std::string>> ports;  // by namespace
  for (const RackLink& link : plan.links()) {
    // The lower end is the one that faces the stretch: ethN, or an uplink's "spine".
    const std::string& lower =
        link.shaped.front().starts_with("eth") ? link.shaped.front() : link.shaped.back();
    if (const Status status = prepare_end(link.lower_namespace, lower); !status.ok()) return status;
    if (const Status status = prepare_end(link.upper_namespace, link.port); !status.ok()) return status;
    ports[link.upper_namespace].push_back(link.port);
  }
  for (const auto& [network_namespace, names] : ports) {
    if (const Status status = attach_lossy_links(network_namespace, names); !status.ok()) return status;
    for (const std::string& port : names) {
      if (const Status status = set_link_loss(network_namespace, port, *options.loss); !status.ok())
        return status;
    }
  }
  return Status();
}

RackLinkState state_of(const RackNote& note, const RackLink& link) {
  const auto changed = note.links.find(link.id);
  if (changed != note.links.end()) return changed->second;
  return {.rate_bits = link.rate_bits, .loss = note.options.loss.value_or(0), .up = true};
}

std::vector<std::string> outdated_declarations(const RackNote& note) {
  const RackPlan plan(note.options);
  std::vector<std::string> texts;
  for (const RackLink& link : plan.links()) {
    const RackNode& node = *plan.find(link.node);
    if (note.options.graph && !note.options.graph->trees.empty()) break;
    const bool is_uplink = node.kind == RackNode::Kind::kUplink && note.options.switch_aggregator;
    if (node.kind != RackNode::Kind::kSpareHost && !is_uplink) continue;
    if (state_of(note, link).rate_bits == link.rate_bits) continue;
    const std::string who = is_uplink ? "sw" + std::to_string(node.rack) : link.id;
    texts.push_back(who + " still declares " + format_rate(link.rate_bits));
  }
  return texts;
}

Status change_links(RackNote* note, const std::string& where, const RackLinkChange& change) {
  const std::string name = "rack '" + note->options.name + "'";
  if (change.loss && !note->options.loss) {
    return invalid(
        name +
        " was made without --loss, so its links cannot lose packets: `netsum rack up --loss 0` makes "
        "links that can");
  }
  const RackPlan plan(note->options);
  const RackNode* node = plan.find_named(where);
  const auto is_of = [&](const RackLink& link) { return link.node == node->id || link.receiver == node->id; };
  std::string known;
  bool found = false;
  for (const RackLink& link : plan.links()) {
    known += ", " + link.id;
    if (where != "all" && where != link.id && (node == nullptr || !is_of(link))) continue;
    found = true;
    if (change.rate_bits && (link.rate_bits == 0 || *change.rate_bits == 0)) {
      return invalid("the link of " + link.id + " in " + name +
                     (link.rate_bits == 0 ? " was made without a rate, so it cannot be given one"
                                          : " has a rate, which cannot be taken off it"));
    }
    RackLinkState state = state_of(*note, link);
    Status status;
    if (change.rate_bits) {
      state.rate_bits = *change.rate_bits;
      status = run_batch(plan.rate_change(link, state.rate_bits, state.up || !note->options.graph));
    }
    if (change.loss && status.ok()) {
      state.loss = *change.loss;
      status = set_link_loss(link.upper_namespace, link.port, state.loss);
    }
    if (change.up && status.ok()) {
      state.up = *change.up;
      status = run_batch(note->options.graph ? plan.rate_change(link, state.rate_bits, state.up)
                                             : plan.up_or_down(link, state.up));
    }
    if (!status.ok()) return status;
    note->links[link.id] = state;
  }
  if (!found) return invalid("'" + where + "' has no link in " + name + ", which has all" + known);
  return write_note(*note);
}

}  // namespace netsum::tool
