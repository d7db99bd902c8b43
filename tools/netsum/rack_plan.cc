#include "tools/netsum/rack_plan.h"

#include <algorithm>

#include "tools/netsum/quantity.h"

namespace netsum::tool {
namespace {

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

std::string stretch_end(const std::string& port, char end) {
  return port + "-" + end;
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
  for (int r = 0; has_spine && r < options.racks; ++r) {
    const std::string id = "up" + std::to_string(r);
    nodes_.push_back({.kind = RackNode::Kind::kUplink,
                      .id = id,
                      .network_namespace = prefix + id,
                      .address = "",
                      .rack = r,
                      .ports = {"rack", "spine"}});
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

const RackNode& RackPlan::aggregator_of(const RackNode& worker) const {
  return *find(options_.racks > 1 ? "sw" + std::to_string(worker.rack) : "sw");
}

const std::string& RackPlan::dataplane_of(const RackNode& node) const {
  return node.kind == RackNode::Kind::kSpine ? options_.spine_dataplane : options_.dataplane;
}

std::string RackPlan::control_address(const RackNode& node) const {
  return node.address + ":" + std::to_string(kRackControlPort);
}

RackBatch RackPlan::bridge(const RackNode& node) const {
  const std::string mtu = std::to_string(options_.mtu);
  RackBatch batch{
      "ip",
      node.network_namespace,
      {"link set dev lo up", "link add br0 type bridge", "link set dev br0 addrgenmode none mtu " + mtu}};
  if (!node.address.empty()) batch.lines.push_back("address add " + node.address + "/16 dev br0");
  batch.lines.push_back("link set dev br0 up");
  return batch;
}

// Makes the link from a's namespace; b's end is a bridge's port. A lossy one has a stretch beside b.
void RackPlan::add_link(const End& a, const End& b, bool lossy, std::vector<RackBatch>* batches) const {
  const std::string mtu = " mtu " + std::to_string(options_.mtu);
  const std::string opposite = lossy ? stretch_end(b.interface, 'a') : b.interface;
  batches->push_back({"ip",
                      a.node.network_namespace,
                      {"link add " + a.interface + mtu + " type veth peer name " + opposite + mtu +
                           " netns " + b.node.network_namespace,
                       "link set dev " + a.interface + " addrgenmode none"}});
  RackBatch upper{"ip", b.node.network_namespace, {}};
  if (lossy) {
    const std::string beside = stretch_end(b.interface, 'b');
    upper.lines = {"link add " + b.interface + mtu + " type veth peer name " + beside + mtu,
                   "link set dev " + opposite + " addrgenmode none up",
                   "link set dev " + beside + " addrgenmode none up"};
  }
  upper.lines.push_back("link set dev " + b.interface + " addrgenmode none master br0 up");
  batches->push_back(upper);
}

std::string RackPlan::bucket(uint64_t rate_bits) {
  return " root tbf rate " + std::to_string(rate_bits) + "bit burst " +
         std::to_string(burst_bytes(rate_bits)) + " limit " + std::to_string(queue_bytes(rate_bits));
}

std::vector<RackLink> RackPlan::links() const {
  std::vector<RackLink> links;
  for (const RackNode& node : nodes_) {
    if (node.serves()) continue;
    const bool is_worker = node.kind == RackNode::Kind::kWorker;
    const std::string port = is_worker ? node.id : "sw" + std::to_string(node.rack);
    links.push_back({.id = node.id,
                     .lower_namespace = node.network_namespace,
                     .shaped = is_worker ? std::vector<std::string>{"eth0", "ifb-eth0"} : node.ports,
                     .upper_namespace = (is_worker ? aggregator_of(node) : aggregator()).network_namespace,
                     .port = port,
                     .opposite = options_.loss ? stretch_end(port, 'a') : port});
  }
  return links;
}

RackBatch RackPlan::rate_change(const RackLink& link, uint64_t rate_bits) const {
  RackBatch batch{"tc", link.lower_namespace, {}};
  for (const std::string& interface : link.shaped) {
    batch.lines.push_back("qdisc change dev " + interface + bucket(rate_bits));
  }
  return batch;
}

RackBatch RackPlan::up_or_down(const RackLink& link, bool up) const {
  return {"ip", link.upper_namespace, {"link set dev " + link.opposite + (up ? " up" : " down")}};
}

void RackPlan::add_worker_link(const RackNode& worker, std::vector<RackBatch>* batches) const {
  const RackNode& to = aggregator_of(worker);
  add_link({worker, "eth0"}, {to, worker.id}, options_.loss.has_value(), batches);
  RackBatch end{
      "ip",
      worker.network_namespace,
      {"link set dev lo up", "address add " + worker.address + "/16 dev eth0", "link set dev eth0 up"}};
  if (options_.rate_bits != 0) {
    end.lines.push_back("link add ifb-eth0 mtu " + std::to_string(options_.mtu) + " type ifb");
    end.lines.push_back("link set dev ifb-eth0 addrgenmode none up");
  }
  batches->push_back(end);
  if (options_.rate_bits == 0) return;
  batches->push_back(
      {"tc",
       worker.network_namespace,
       {"qdisc add dev eth0" + bucket(options_.rate_bits),
        "qdisc add dev ifb-eth0" + bucket(options_.rate_bits), "qdisc add dev eth0 handle ffff: ingress",
        "filter add dev eth0 parent ffff: protocol all u32 match u32 0 0 action mirred egress "
        "redirect dev ifb-eth0"}});
}

void RackPlan::add_uplink(const RackNode& uplink, std::vector<RackBatch>* batches) const {
  const RackNode& lower = *find("sw" + std::to_string(uplink.rack));
  batches->push_back(bridge(uplink));
  for (const auto& [port, end] : {std::pair<std::string, End>{"rack", {lower, "uplink"}},
                                  std::pair<std::string, End>{"spine", {aggregator(), lower.id}}}) {
    // One stretch for the whole way between switch and spine.
    add_link({uplink, port}, end, options_.loss && port == "spine", batches);
    RackBatch batch{"ip", uplink.network_namespace, {"link set dev " + port + " master br0 up"}};
    // A rack's results are for its own workers. Bridges without a querier would flood them to every port.
    if (options_.multicast && port == "spine") {
      batch.lines.push_back("link set dev spine type bridge_slave mcast_flood off");
    }
    batches->push_back(batch);
  }
  if (options_.rate_bits == 0) return;
  batches->push_back({"tc",
                      uplink.network_namespace,
                      {"qdisc add dev rack" + bucket(options_.rate_bits),
                       "qdisc add dev spine" + bucket(options_.rate_bits)}});
}

std::vector<RackBatch> RackPlan::batches() const {
  std::vector<RackBatch> batches;
  RackBatch namespaces{"ip", "", {}};
  for (const RackNode& node : nodes_) namespaces.lines.push_back("netns add " + node.network_namespace);
  batches.push_back(namespaces);
  for (const RackNode& node : nodes_) {
    if (node.serves()) batches.push_back(bridge(node));
  }
  for (const RackNode& node : nodes_) {
    if (node.kind == RackNode::Kind::kWorker) add_worker_link(node, &batches);
    if (node.kind == RackNode::Kind::kUplink) add_uplink(node, &batches);
  }
  return batches;
}

std::vector<std::string> RackPlan::aggregator_arguments(const RackNode& node) const {
  std::vector<std::string> arguments = {
      "aggregator", "--listen", control_address(node), "--mtu", std::to_string(options_.mtu), "--cores", "1"};
  if (node.kind == RackNode::Kind::kSwitch && options_.racks > 1) {
    arguments.insert(arguments.end(), {"--parent", control_address(aggregator())});
  }
  if (dataplane_of(node) != "user") {
    std::string interfaces;
    for (const std::string& port : node.ports) interfaces += (interfaces.empty() ? "" : ",") + port;
    arguments.insert(arguments.end(), {"--dataplane", dataplane_of(node), "--interfaces", interfaces});
  }
  if (node.kind == RackNode::Kind::kSwitch && options_.multicast) {
    arguments.insert(arguments.end(), {"--multicast", "239.77." + std::to_string(node.rack) + ".0/24"});
  }
  return arguments;
}

nlohmann::ordered_json to_json(const RackOptions& o) {
  return {{"name", o.name},
          {"workers", o.workers},
          {"racks", o.racks},
          {"rate_bits", o.rate_bits},
          {"mtu", o.mtu},
          {"dataplane", o.dataplane},
          {"spine_dataplane", o.spine_dataplane},
          {"multicast", o.multicast},
          {"loss", o.loss ? nlohmann::ordered_json(*o.loss) : nlohmann::ordered_json()}};
}

RackOptions rack_options_from_json(const nlohmann::ordered_json& json) {
  return {.name = json.at("name"),
          .workers = json.at("workers"),
          .racks = json.at("racks"),
          .rate_bits = json.at("rate_bits"),
          .mtu = json.at("mtu"),
          .dataplane = json.at("dataplane"),
          .spine_dataplane = json.at("spine_dataplane"),
          .multicast = json.at("multicast"),
          .loss = json.at("loss").is_null() ? std::nullopt : std::optional<double>(json.at("loss"))};
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
  compare("multicast", is.multicast ? "on" : "off", wanted.multicast ? "on" : "off");
  const auto loss = [](const RackOptions& o) { return o.loss ? format_percent(*o.loss) : "none"; };
  compare("loss", loss(is), loss(wanted));
  if (wanted.racks > 1) compare("spine's dataplane", is.spine_dataplane, wanted.spine_dataplane);
  return text;
}

}  // namespace netsum::tool
