#include "tools/netsum/plan_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <initializer_list>
#include <map>
#include <sstream>

#include "netsum/settings.h"
#include "src/base/text.h"
#include "tools/netsum/flags.h"

namespace netsum::tool {
namespace {

constexpr size_t kMostFileBytes = 1 << 20;

std::string join(std::initializer_list<const char*> words) {
  std::string list;
  for (const char* word : words) list += (list.empty() ? "" : ", ") + std::string(word);
  return list;
}

class Parser {
 public:
  explicit Parser(std::string file) : file_(std::move(file)) {}

  plan::Topology parse(const std::string& text) {
    YAML::Node root;
    try {
      root = YAML::Load(text);
    } catch (const YAML::ParserException& error) {
      fail_at(error.mark.line + 1, "this is not YAML: " + error.msg);
    }
    if (!root.IsMap()) fail(root, "the file has no 'hosts:'; see examples/topology.yaml");
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
  [[noreturn]] void fail_at(int line, const std::string& message) const {
    throw UsageError(file_ + ":" + std::to_string(line) + ": " + printable(message));
  }
  [[noreturn]] void fail(const YAML::Node& node, const std::string& message) const {
    fail_at(std::max(0, node.Mark().line) + 1, message);
  }

  std::string scalar(const YAML::Node& node, const std::string& what) const {
    if (!node.IsScalar()) fail(node, "'" + what + "' takes one value");
    return node.Scalar();
  }

  void check_keys(const YAML::Node& node, const std::string& what,
                  std::initializer_list<const char*> known) const {
    if (!node.IsMap()) fail(node, what + " is a list of keys with values: " + join(known));
    std::map<std::string, int> seen;
    for (const auto& entry : node) {
      const std::string key = scalar(entry.first, "key");
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        fail(entry.first, "unknown key '" + key + "' of " + what + "; it has " + join(known));
      }
      const auto [at, fresh] = seen.emplace(key, entry.first.Mark().line + 1);
      if (!fresh) {
        fail(entry.first,
             "'" + key + "' is given twice, first in line " + std::to_string(at->second) + "; leave out one");
      }
    }
  }

  // The entries of a list that may be missing.
  std::vector<YAML::Node> list(const YAML::Node& parent, const std::string& key) const {
    std::vector<YAML::Node> entries;
    const YAML::Node node = parent[key];
    if (!node || node.IsNull()) return entries;
    if (!node.IsSequence()) fail(node, "'" + key + ":' takes a list: one '- name: ...' for each entry");
    for (const YAML::Node& entry : node) entries.push_back(entry);
    return entries;
  }

  double positive(const YAML::Node& node, const std::string& what) const {
    const std::string text = scalar(node, what);
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !(value > 0 && value < 1e18)) {
      fail(node, "'" + what + ": " + text + "' is no number above 0");
    }
    return value;
  }

  size_t whole(const YAML::Node& node, const std::string& what, size_t most) const {
    const double value = positive(node, what);
    if (value > static_cast<double>(most) || value != static_cast<double>(static_cast<size_t>(value))) {
      fail(node,
           "'" + what + ": " + node.Scalar() + "' is not a whole number from 1 to " + std::to_string(most));
    }
    return static_cast<size_t>(value);
  }

  bool yes_or_no(const YAML::Node& node, const std::string& what) const {
    const std::string text = scalar(node, what);
    if (text != "true" && text != "false") fail(node, "'" + what + ": " + text + "': use true or false");
    return text == "true";
  }

  double rate(const YAML::Node& node, const std::string& what) const {
    const Result<double> rate = parse_link_rate(scalar(node, what));
    if (!rate.ok()) fail(node, "'" + what + ":' " + rate.status().message());
    return *rate;
  }

  // "25G" for both directions, or {in: 25G, out: 10G}.
  plan::Link link(const YAML::Node& node, const std::string& what) const {
    if (!node.IsMap()) {
      const double both = rate(node, what);
      return {both, both};
    }
    check_keys(node, "a link", {"in", "out"});
    if (!node["in"] || !node["out"]) fail(node, "'" + what + "' needs the rates of both 'in' and 'out'");
    return {rate(node["in"], what + ".in"), rate(node["out"], what + ".out")};
  }

  std::string name(const YAML::Node& node) const {
    if (!node["name"]) fail(node, "'name:' is missing");
    const std::string text = scalar(node["name"], "name");
    const auto allowed = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
             c == '_' || c == '.';
    };
    if (text.empty() || text.size() > 64 || !std::all_of(text.begin(), text.end(), allowed)) {
      fail(node["name"], "'" + text + "' is no name: use up to 64 letters, digits, '-', '_' and '.'");
    }
    return text;
  }

  // The names of an entry: one, or with `count` as many as that, numbered from 0.
  std::vector<std::string> names(const YAML::Node& node, size_t most) {
    const std::string base = name(node);
    std::vector<std::string> all;
    if (!node["count"]) {
      all.push_back(base);
    } else {
      const size_t count = whole(node["count"], "count", most);
      for (size_t i = 0; i < count; ++i) all.push_back(base + std::to_string(i));
    }
    for (const std::string& each : all) claim(node, each);
    return all;
  }

  void claim(const YAML::Node& node, const std::string& each) {
    const auto [at, fresh] = lines_.emplace(each, node.Mark().line + 1);
    if (!fresh) {
      fail(node, "the name '" + each + "' is given twice, first in line " + std::to_string(at->second) +
                     "; rename one");
    }
  }

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

  plan::SumLimits limits(const YAML::Node& node) const {
    plan::SumLimits limits;
    if (node["stream"]) limits.stream_bps = rate(node["stream"], "stream");
    if (node["adds"]) limits.adds_per_second = positive(node["adds"], "adds");
    if (const YAML::Node slots = node["slots"]) {
      check_keys(slots, "slots", {"count", "bytes", "round_trip_us"});
      for (const char* key : {"count", "bytes", "round_trip_us"}) {
        if (!slots[key]) fail(slots, std::string("'slots:' needs '") + key + ":'");
      }
      limits.slots = positive(slots["count"], "count");
      limits.slot_bytes = positive(slots["bytes"], "bytes");
      limits.round_trip_s = positive(slots["round_trip_us"], "round_trip_us") * 1e-6;
    }
    return limits;
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

  const std::string file_;
  std::map<std::string, int> lines_;  // of names
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

plan::Topology parse_topology(const std::string& text, const std::string& file) {
  Parser parser(file);
  try {
    return parser.parse(text);
  } catch (const YAML::Exception& error) {
    throw UsageError(file + ":" + std::to_string(std::max(0, error.mark.line) + 1) + ": " +
                     printable(error.msg));
  }
}

plan::Topology load_topology(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string text(kMostFileBytes + 1, '\0');
  if (!stream) throw UsageError(file + ": cannot be opened; give the path of a topology file");
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad()) throw UsageError(file + ": cannot be read");
  text.resize(static_cast<size_t>(stream.gcount()));
  if (text.size() > kMostFileBytes)
    throw UsageError(file + ": is larger than 1 MiB; this is no topology file");
  return parse_topology(text, file);
}

}  // namespace netsum::tool
