#include "tools/netsum/rack_status.h"

#include <spdlog/fmt/fmt.h>

#include "src/base/text.h"
#include "tools/netsum/quantity.h"
#include "tools/netsum/rack_loss.h"
#include "tools/netsum/rack_make.h"
#include "tools/netsum/rack_p4.h"
#include "tools/netsum/rack_set.h"

namespace netsum::tool {
namespace {

using Json = nlohmann::ordered_json;

Json describe_links(const RackNote& note) {
  Json links = Json::array();
  for (const RackLink& link : RackPlan(note.options).links()) {
    const RackLinkState state = state_of(note, link);
    Json one = {{"id", link.id}, {"rate", format_rate(state.rate_bits)}, {"up", state.up}};
    if (note.options.loss) {
      one["loss"] = state.loss;
      // What cannot be counted (without privilege, or in a rack that is not whole) is left out.
      if (const auto counts = link_loss_counts(link.upper_namespace, link.port); counts.ok()) {
        one["packets_passed"] = counts->passed;
        one["packets_lost"] = counts->lost;
      }
    }
    links.push_back(one);
  }
  return links;
}

Json describe(const RackNote& note) {
  const RackPlan plan(note.options);
  Json json = to_json(note.options);
  json["rate"] = format_rate(note.options.rate_bits);
  json["whole"] = is_whole(note);
  // In a hierarchy each worker has its own.
  const bool trees = note.options.graph && !note.options.graph->trees.empty();
  if (note.options.racks == 1 && !trees) json["aggregator"] = plan.aggregators_for(plan.top());
  json["nodes"] = Json::array();
  for (const RackNode& node : plan.nodes()) {
    Json one = {{"id", node.id},
                {"namespace", node.network_namespace},
                {"address", node.address},
                {"rack", node.rack}};
    if (!node.name.empty()) one["name"] = node.name;
    if (node.kind == RackNode::Kind::kWorker) {
      one["NETSUM_AGGREGATOR"] = aggregator_setting(plan, note.options.name, node);
    }
    json["nodes"].push_back(one);
  }
  json["aggregators"] = Json::array();
  for (const RackService& service : plan.services()) {
    for (const RackAggregator& one : note.aggregators) {
      if (one.id != service.id) continue;
      json["aggregators"].push_back({{"id", one.id},
                                     {"node", service.node},
                                     {"address", service.address},
                                     {"pid", one.process.pid},
                                     {"serves", is_alive(one.process)},
                                     {"log", log_path(note.options, one.id)}});
    }
  }
  if (plan.is_p4()) {
    json["bmv2"] = {
        {"pid", note.bmv2.pid}, {"serves", is_alive(note.bmv2)}, {"log", bmv2_log_path(note.options)}};
  }
  json["links"] = describe_links(note);
  return json;
}

std::string as_string(const Json& value) {
  return value.get<std::string>();
}

std::string link_text(const Json& link) {
  std::string line =
      fmt::format("  link {}: rate {}", printable(as_string(link["id"])), as_string(link["rate"]));
  if (link.contains("loss")) line += ", loses " + format_percent(link["loss"]);
  if (link.contains("packets_lost")) {
    line += fmt::format(" ({} packets so far, {} passed)", link["packets_lost"].get<uint64_t>(),
                        link["packets_passed"].get<uint64_t>());
  }
  return line + (link["up"].get<bool>() ? "\n" : ", DOWN\n");
}

std::string node_text(const Json& node) {
  return fmt::format("  {:<6} {:<13} {}{}\n", as_string(node["id"]), as_string(node["address"]),
                     as_string(node["namespace"]),
                     node.contains("name") ? ", " + printable(as_string(node["name"])) : "");
}

std::string aggregator_text(const Json& aggregator) {
  return fmt::format("  aggregator {} at {} {}, log {}\n", as_string(aggregator["id"]),
                     as_string(aggregator["address"]),
                     aggregator["serves"].get<bool>() ? "serves" : "HAS ENDED", as_string(aggregator["log"]));
}

}  // namespace

Json describe_racks() {
  Json racks = Json::array();
  for (const std::string& name : noted_racks()) {
    if (const std::optional<RackNote> note = read_note(name)) racks.push_back(describe(*note));
  }
  return racks;
}

std::string rack_text(const Json& rack) {
  const bool graph = !rack["graph"].is_null();
  std::string text = fmt::format("rack '{}': {} workers, {}, MTU {}, dataplane {}{}\n",
                                 as_string(rack["name"]), rack["workers"].get<int>(),
                                 graph ? "links of a topology" : "link rate " + as_string(rack["rate"]),
                                 rack["mtu"].get<int>(), as_string(rack["dataplane"]),
                                 rack["whole"].get<bool>() ? "" : "; NOT WHOLE: take it down, or up again");
  if (rack.contains("aggregator") && as_string(rack["aggregator"]).empty()) {
    text += "  no aggregator: workers embed shards\n";
  } else if (rack.contains("aggregator")) {
    text += fmt::format("  workers sum at NETSUM_AGGREGATOR={}\n", as_string(rack["aggregator"]));
  } else if (graph) {
    const size_t count = rack["graph"]["trees"].size();
    text += fmt::format("  workers sum along {} of aggregators\n",
                        count == 1 ? "a tree" : fmt::format("{} trees", count));
  } else {
    text +=
        fmt::format("  workers sum at their switch's aggregator, the switches' sums at the spine's ({})\n",
                    as_string(rack["spine_dataplane"]));
  }
  for (const Json& node : rack["nodes"]) text += node_text(node);
  for (const Json& aggregator : rack["aggregators"]) text += aggregator_text(aggregator);
  if (rack.contains("bmv2")) {
    text += fmt::format("  BMv2 {}, log {}\n", rack["bmv2"]["serves"].get<bool>() ? "runs" : "HAS ENDED",
                        as_string(rack["bmv2"]["log"]));
  }
  for (const Json& link : rack["links"]) text += link_text(link);
  return text;
}

}  // namespace netsum::tool
