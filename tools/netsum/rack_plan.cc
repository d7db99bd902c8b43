#include "tools/netsum/rack_plan.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace netsum::tool {
namespace {

struct Unit {
  std::string_view name;
  double bits;
};
constexpr Unit kUnits[] = {{"gbit", 1e9}, {"mbit", 1e6}, {"kbit", 1e3}};
constexpr double kMinRate = 1e6, kMaxRate = 400e9;

// Of a token bucket. 64 KiB lets a segmented send of the largest size through at once; at high rates it must
// also cover what passes between two ticks of the timer.
uint64_t burst_bytes(uint64_t rate_bits) {
  return std::max<uint64_t>(64 << 10, rate_bits / 8 / 1000);
}
// What may wait for the link: 50 ms of it, at least 1 MB, so that the windows of a few dozen workers fit.
uint64_t queue_bytes(uint64_t rate_bits) {
  return std::max<uint64_t>(1'000'000, rate_bits / 8 / 20);
}

}  // namespace

Result<uint64_t> parse_rate(std::string_view text) {
  if (text == "none") return uint64_t{0};
  for (const Unit& unit : kUnits) {
    if (text.size() <= unit.name.size() || !text.ends_with(unit.name)) continue;
    const std::string number(text.substr(0, text.size() - unit.name.size()));
    double value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error != std::errc() || end != number.data() + number.size()) break;
    const double bits = value * unit.bits;
    if (!(bits >= kMinRate && bits <= kMaxRate)) {
      return Status(ErrorCode::kInvalidArgument,
                    "rate '" + std::string(text) + "' is not within 1mbit to 400gbit");
    }
    return static_cast<uint64_t>(std::llround(bits));
  }
  return Status(ErrorCode::kInvalidArgument,
                "'" + std::string(text) + "' is no rate: use e.g. 100mbit, 1gbit, 2.5gbit, or none");
}

std::string format_rate(uint64_t bits_per_second) {
  if (bits_per_second == 0) return "none";
  for (const Unit& unit : kUnits) {
    const double value = static_cast<double>(bits_per_second) / unit.bits;
    if (value < 1) continue;
    char text[32];
    std::snprintf(text, sizeof text, "%.10g", value);
    return std::string(text) + std::string(unit.name);
  }
  return std::to_string(bits_per_second) + "bit";
}

RackPlan::RackPlan(const RackOptions& options) : options_(options) {
  const std::string prefix = "netsum-" + options.name + "-";
  const bool has_spine = options.racks > 1;
  RackNode spine{.kind = RackNode::Kind::kSpine,
                 .id = "spine",
                 .network_namespace = prefix + "spine",
                 .address = "10.77.2.1",
                 .rack = 0,
                 .ports = {}};
  std::vector<RackNode> switches, workers;
  for (int r = 0; r < options.racks; ++r) {
    const std::string id = has_spine ? "sw" + std::to_string(r) : "sw";
    switches.push_back({.kind = RackNode::Kind::kSwitch,
                        .id = id,
                        .network_namespace = prefix + id,
                        .address = "10.77.1." + std::to_string(r + 1),
                        .rack = r,
                        .ports = {}});
    if (has_spine) spine.ports.push_back(id);
  }
  for (int w = 0; w < options.workers; ++w) {
    const std::string id = "w" + std::to_string(w);
    const int rack = w * options.racks / options.workers;  // neighbours share a rack
    workers.push_back({.kind = RackNode::Kind::kWorker,
                       .id = id,
                       .network_namespace = prefix + id,
                       .address = "10.77.0." + std::to_string(w + 1),
                       .rack = rack,
                       .ports = {}});
    switches[static_cast<size_t>(rack)].ports.push_back(id);
  }
  if (has_spine) nodes_.push_back(spine);
  for (RackNode& node : switches) {
    if (has_spine) node.ports.push_back("uplink");
    nodes_.push_back(node);
  }
  nodes_.insert(nodes_.end(), workers.begin(), workers.end());
}

const RackNode* RackPlan::find(std::string_view id) const {
  const bool is_number =
      !id.empty() && std::all_of(id.begin(), id.end(), [](char c) { return c >= '0' && c <= '9'; });
  std::string wanted(is_number ? "w" : "");
  wanted += id;
  for (const RackNode& node : nodes_) {
    if (node.id == wanted) return &node;
  }
  return nullptr;
}

const RackNode& RackPlan::aggregator() const {
  return nodes_.front();  // the spine, or the only switch
}

std::string RackPlan::control_address(const RackNode& node) const {
  return node.address + ":" + std::to_string(kRackControlPort);
}

RackBatch RackPlan::bridge(const RackNode& node) const {
  const std::string mtu = std::to_string(options_.mtu);
  return {"ip",
          node.network_namespace,
          {"link set dev lo up", "link add br0 type bridge", "link set dev br0 addrgenmode none mtu " + mtu,
           "address add " + node.address + "/16 dev br0", "link set dev br0 up"}};
}

void RackPlan::add_link(const RackNode& lower, const std::string& lower_name, const RackNode& upper,
                        const std::string& upper_name, std::vector<RackBatch>* batches) const {
  const std::string mtu = std::to_string(options_.mtu);
  RackBatch ends{"ip", lower.network_namespace, {}};
  ends.lines.push_back("link add " + lower_name + " mtu " + mtu + " type veth peer name " + upper_name +
                       " mtu " + mtu + " netns " + upper.network_namespace);
  ends.lines.push_back("link set dev " + lower_name + " addrgenmode none");
  if (lower.kind == RackNode::Kind::kWorker) {
    ends.lines.push_back("link set dev lo up");
    ends.lines.push_back("address add " + lower.address + "/16 dev " + lower_name);
  } else {
    ends.lines.push_back("link set dev " + lower_name + " master br0");
  }
  ends.lines.push_back("link set dev " + lower_name + " up");
  if (options_.rate_bits != 0) {
    ends.lines.push_back("link add ifb-" + lower_name + " mtu " + mtu + " type ifb");
    ends.lines.push_back("link set dev ifb-" + lower_name + " addrgenmode none up");
  }
  batches->push_back(ends);
  batches->push_back(
      {"ip", upper.network_namespace, {"link set dev " + upper_name + " addrgenmode none master br0 up"}});
  if (options_.rate_bits == 0) return;
  const std::string bucket = " root tbf rate " + std::to_string(options_.rate_bits) + "bit burst " +
                             std::to_string(burst_bytes(options_.rate_bits)) + " limit " +
                             std::to_string(queue_bytes(options_.rate_bits));
  batches->push_back(
      {"tc",
       lower.network_namespace,
       {"qdisc add dev " + lower_name + bucket, "qdisc add dev ifb-" + lower_name + bucket,
        "qdisc add dev " + lower_name + " handle ffff: ingress",
        "filter add dev " + lower_name +
            " parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev ifb-" +
            lower_name}});
}

std::vector<RackBatch> RackPlan::batches() const {
  std::vector<RackBatch> batches;
  RackBatch namespaces{"ip", "", {}};
  for (const RackNode& node : nodes_) namespaces.lines.push_back("netns add " + node.network_namespace);
  batches.push_back(namespaces);
  for (const RackNode& node : nodes_) {
    if (node.kind != RackNode::Kind::kWorker) batches.push_back(bridge(node));
  }
  for (const RackNode& node : nodes_) {
    if (node.kind == RackNode::Kind::kWorker) {
      const std::string id = options_.racks > 1 ? "sw" + std::to_string(node.rack) : "sw";
      add_link(node, "eth0", *find(id), node.id, &batches);
    } else if (node.kind == RackNode::Kind::kSwitch && options_.racks > 1) {
      add_link(node, "uplink", *find("spine"), node.id, &batches);
    }
  }
  return batches;
}

std::vector<std::string> RackPlan::aggregator_arguments(const RackNode& node) const {
  std::vector<std::string> arguments = {
      "aggregator", "--listen", control_address(node), "--mtu", std::to_string(options_.mtu), "--cores", "1"};
  if (options_.dataplane != "user") {
    std::string interfaces;
    for (const std::string& port : node.ports) interfaces += (interfaces.empty() ? "" : ",") + port;
    arguments.insert(arguments.end(), {"--dataplane", options_.dataplane, "--interfaces", interfaces});
  }
  return arguments;
}

nlohmann::ordered_json to_json(const RackOptions& o) {
  return {{"name", o.name},           {"workers", o.workers}, {"racks", o.racks},
          {"rate_bits", o.rate_bits}, {"mtu", o.mtu},         {"dataplane", o.dataplane}};
}

RackOptions rack_options_from_json(const nlohmann::ordered_json& json) {
  return {.name = json.at("name"),
          .workers = json.at("workers"),
          .racks = json.at("racks"),
          .rate_bits = json.at("rate_bits"),
          .mtu = json.at("mtu"),
          .dataplane = json.at("dataplane")};
}

std::string difference(const RackOptions& is, const RackOptions& wanted) {
  std::string text;
  const auto compare = [&](const char* what, const std::string& has, const std::string& wants) {
    if (has != wants) text += (text.empty() ? "" : "; ") + std::string(what) + " " + has + ", not " + wants;
  };
  compare("workers", std::to_string(is.workers), std::to_string(wanted.workers));
  compare("racks", std::to_string(is.racks), std::to_string(wanted.racks));
  compare("rate", format_rate(is.rate_bits), format_rate(wanted.rate_bits));
  compare("mtu", std::to_string(is.mtu), std::to_string(wanted.mtu));
  compare("dataplane", is.dataplane, wanted.dataplane);
  return text;
}

}  // namespace netsum::tool
