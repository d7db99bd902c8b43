#include "tools/netsum/plan_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "netsum/settings.h"
#include "src/base/text.h"
#include "tools/netsum/graph_file.h"
#include "tools/netsum/plan_yaml.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {
namespace {

constexpr size_t kMostTopologyBytes = 1 << 20;

class Parser : PlanYaml {
 public:
  explicit Parser(const std::string& file) : PlanYaml(file) {}

  plan::Topology parse(const YAML::Node& root) {
    // `netsum doctor --rates` adds what it has measured, which is not part of the topology.
    check_keys(root, "a topology file", {"hosts", "places", "racks", "element_bits", "measured"});
    plan::Topology topology;
    if (root["element_bits"]) topology.element_bits = positive(root["element_bits"], "element_bits");
    add_racks(root, topology);
    if (!root["hosts"]) fail(root, "'hosts:' is missing: list the hosts where the ranks run");
    for (const YAML::Node& node : list(root, "hosts")) add_hosts(node, topology);
    for (const YAML::Node& node : list(root, "places")) add_places(node, topology);
    if (const Status status = check(topology); !status.ok()) {
      throw UsageError(file_ + ": " + printable(status.message()));
    }
    return topology;
  }

 private:
  int rack(const YAML::Node& node, const char* key) const {
    if (!node[key]) return plan::kNoRack;
    const std::string text = scalar(node[key], key);
    const auto found = racks_.find(text);
    if (found != racks_.end()) return found->second;
    fail(node[key], "there is no rack '" + text + "'; add it under 'racks:'");
  }

  void add_racks(const YAML::Node& root, plan::Topology& topology) {
    const std::vector<YAML::Node> entries = list(root, "racks");
    for (const YAML::Node& node : entries) {
      check_keys(node, "a rack", {"name", "uplink", "inside"});
      const std::string own = name(node);
      claim(node, own);
      racks_[own] = static_cast<int>(topology.racks.size());
      if (!node["uplink"]) fail(node, "rack '" + own + "' has no 'uplink:'; give its rate, such as 40G");
      topology.racks.push_back({own, link(node["uplink"], "uplink"), plan::kNoRack});
    }
    for (size_t i = 0; i < entries.size(); ++i) topology.racks[i].parent = rack(entries[i], "inside");
    for (size_t i = 0; i < entries.size(); ++i) {
      int up = topology.racks[i].parent;
      for (size_t steps = 0; up != plan::kNoRack; ++steps) {
        if (steps == entries.size()) {
          fail(entries[i], "rack '" + topology.racks[i].name +
                               "' is inside itself, or inside racks that are; leave out one 'inside:'");
        }
        up = topology.racks[static_cast<size_t>(up)].parent;
      }
    }
  }

  void add_hosts(const YAML::Node& node, plan::Topology& topology) {
    check_keys(node, "a host", {"name", "count", "link", "rack", "shard", "stream", "adds"});
    for (const std::string& own : names(node, plan::kMaxRanks)) {
      plan::Rank host;
      host.name = own;
      if (!node["link"])
        fail(node, "host '" + own + "' has no 'link:'; give its rate, such as 100Mbit/s or 25G");
      host.link = link(node["link"], "link");
      host.rack = rack(node, "rack");
      if (node["shard"]) host.shard = yes_or_no(node["shard"], "shard");
      host.limits = limits(node);
      topology.ranks.push_back(host);
    }
  }

  void add_places(const YAML::Node& node, plan::Topology& topology) {
    check_keys(node, "a place",
               {"name", "kind", "count", "link", "links", "ports", "cores", "rack", "multicast", "stream",
                "adds", "slots"});
    plan::Place place;
    const std::string kind = node["kind"] ? scalar(node["kind"], "kind") : "spare";
    if (kind != "spare" && kind != "switch") fail(node["kind"], "'kind: " + kind + "': use spare or switch");
    if (kind == "switch") place.kind = plan::PlaceKind::kSwitch;
    add_ports(node, kind, place);
    place.cores = node["cores"] ? whole(node["cores"], "cores", plan::kMaxPorts)
                                : std::max<size_t>(1, place.ports.size());
    place.rack = rack(node, "rack");
    if (node["multicast"]) place.multicast = yes_or_no(node["multicast"], "multicast");
    place.limits = limits(node);
    for (const std::string& own : names(node, plan::kMaxPlaces)) {
      place.name = own;
      topology.places.push_back(place);
    }
  }

  // `link` with `ports` for equal ones, or `links`.
  void add_ports(const YAML::Node& node, const std::string& kind, plan::Place& place) const {
    const bool links = static_cast<bool>(node["links"]);
    if (kind == "switch") {
      for (const char* key : {"link", "links", "ports"}) {
        if (node[key])
          fail(node[key], std::string("a switch has no '") + key + ":' of its own; leave it out");
      }
      return;
    }
    if (links && (node["link"] || node["ports"]))
      fail(node["links"], "use 'links:', or 'link:' with 'ports:', not both");
    if (!links && !node["link"]) {
      fail(node, "place '" + name(node) +
                     "' has no 'link:', so no rank can reach it; give its rate, or 'kind: switch'");
    }
    if (links) {
      const std::vector<YAML::Node> entries = list(node, "links");
      if (entries.empty()) fail(node["links"], "'links:' is empty; give a rate for each port");
      for (const YAML::Node& entry : entries) place.ports.push_back(link(entry, "links"));
    } else {
      const size_t ports = node["ports"] ? whole(node["ports"], "ports", plan::kMaxPorts) : 1;
      place.ports.assign(ports, link(node["link"], "link"));
    }
  }

  std::map<std::string, int> racks_;
};

}  // namespace

Result<double> parse_link_rate(std::string_view text) {
  SettingValues values;
  if (set_value("link_rate_bps", std::string(text), &values).ok()) return values.options.link_rate_bps;
  return Status(ErrorCode::kInvalidArgument,
                "'" + std::string(text) + "' is no rate from 1 kbit/s to 100 Tbit/s; use e.g. 100Mbit/s, " +
                    "2.5Gbit/s or 25G, in bits per second");
}

PlanInput parse_plan_input(const std::string& text, const std::string& file) {
  return with_yaml(text, file, [&](const YAML::Node& root) -> PlanInput {
    if (!root.IsMap()) {
      throw UsageError(file + ":" + std::to_string(std::max(0, root.Mark().line) + 1) +
                       ": the file has no 'hosts:'; see examples/topology.yaml");
    }
    if (root["links"] || root["switches"]) return {{}, parse_graph(root, file)};
    return {Parser(file).parse(root), {}};
  });
}

PlanInput load_plan_input(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string text(kMostTopologyBytes + 1, '\0');
  if (!stream) throw UsageError(file + ": cannot be opened; give the path of a topology file");
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad()) throw UsageError(file + ": cannot be read");
  text.resize(static_cast<size_t>(stream.gcount()));
  if (text.size() > kMostTopologyBytes)
    throw UsageError(file + ": is larger than 1 MiB; this is no topology file");
  return parse_plan_input(text, file);
}

plan::Graph load_graph(const std::string& file) {
  PlanInput input = load_plan_input(file);
  if (input.graph) return std::move(*input.graph);
  Result<plan::Graph> graph = graph_of(*input.topology);
  if (!graph.ok()) throw UsageError(file + ": " + printable(graph.status().message()));
  return std::move(graph).value();
}

}  // namespace netsum::tool
