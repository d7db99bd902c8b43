#include "tools/netsum/rack_plan.h"

#include <spdlog/fmt/fmt.h>

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

template <typename T>
std::optional<T> optional_of(const nlohmann::ordered_json& json) {
  return json.is_null() ? std::nullopt : std::optional<T>(json.get<T>());
}

}  // namespace

std::string stretch_end(const std::string& port, char end) {
  return port + "-" + end;
}

RackPlan::RackPlan(const RackOptions& options) : options_(options) {
  if (options.graph) {
    add_graph_nodes();
    return;
  }
  const std::string prefix = "netsum-" + options.name + "-";
  const bool has_spine = options.racks > 1;
  RackNode spine{.kind = RackNode::Kind::kSpine,
                 .id = "spine",
                 .network_namespace = prefix + "spine",
                 .address = "10.77.2.1",
                 .rack = 0,
                 .ports = {}};
  std::vector<RackNode> switches, spares, workers;
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
  for (int s = 0; s < options.spare_hosts; ++s) {
    const std::string id = "s" + std::to_string(s);
    spares.push_back({.kind = RackNode::Kind::kSpareHost,
                      .id = id,
                      .network_namespace = prefix + id,
                      .address = "10.77." + std::to_string(100 + s) + ".1",
                      .rack = 0,
                      .ports = {}});
    for (int p = 0; p < options.spare_ports; ++p) spares.back().ports.push_back("eth" + std::to_string(p));
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
  nodes_.insert(nodes_.end(), spares.begin(), spares.end());
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

const RackNode* RackPlan::find_named(std::string_view name) const {
  for (const RackNode& node : nodes_) {
    if (node.name == name && !name.empty()) return &node;
  }
  return find(name);
}

const RackNode& RackPlan::top() const {
  return nodes_.front();  // the spine, or the only switch
}

const RackNode& RackPlan::switch_of(const RackNode& host) const {
  return *find(options_.racks > 1 ? "sw" + std::to_string(host.rack) : "sw");
}

std::string RackPlan::dataplane_of(const RackNode& node) const {
  if (node.kind == RackNode::Kind::kSpareHost) return "user";
  return node.kind == RackNode::Kind::kSpine ? options_.spine_dataplane : options_.dataplane;
}

std::string RackPlan::control_address(const RackNode& node) const {
  return is_p4() ? "10.78" + node.address.substr(std::string_view("10.77").size()) : node.address;
}

uint64_t RackPlan::rate_of(const RackNode& host) const {
  if (host.kind == RackNode::Kind::kSpareHost) return options_.spare_rate_bits.value_or(options_.rate_bits);
  if (host.kind != RackNode::Kind::kWorker) return options_.rate_bits;
  const auto own = options_.worker_rates.find(std::stoi(host.id.substr(1)));
  return own == options_.worker_rates.end() ? options_.rate_bits : own->second;
}

std::string RackPlan::port_id(const RackNode& spare, size_t port) const {
  return spare.ports.size() == 1 ? spare.id : spare.id + "-p" + std::to_string(port);
}

std::string RackPlan::port_address(const RackNode& spare, size_t port) const {
  return spare.address.substr(0, spare.address.rfind('.') + 1) + std::to_string(port + 1);
}

// Racks use IPv4 only. Below the least MTU of IPv6 an interface has no IPv6, and no mode of it can be set.
std::string RackPlan::without_ipv6() const {
  constexpr int kLeastMtuOfIpv6 = 1280;
  return options_.mtu < kLeastMtuOfIpv6 ? "" : " addrgenmode none";
}

// A token bucket on each way of an interface whose namespace is set up.
void RackPlan::shape_both_ways(const End& end, uint64_t rate_bits, std::vector<RackBatch>* batches) const {
  if (rate_bits == 0) return;
  const std::string inwards = "ifb-" + end.interface;
  batches->push_back({"ip",
                      end.node.network_namespace,
                      {"link add " + inwards + " mtu " + std::to_string(options_.mtu) + " type ifb",
                       "link set dev " + inwards + without_ipv6() + " up"}});
  batches->push_back(
      {"tc",
       end.node.network_namespace,
       {"qdisc add dev " + end.interface + bucket(rate_bits), "qdisc add dev " + inwards + bucket(rate_bits),
        "qdisc add dev " + end.interface + " handle ffff: ingress",
        "filter add dev " + end.interface +
            " parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev " + inwards}});
}

void RackPlan::add_bridge(const RackNode& node, std::vector<RackBatch>* batches) const {
  const std::string mtu = std::to_string(options_.mtu);
  RackBatch batch{"ip",
                  node.network_namespace,
                  {"link set dev lo up", "link add br0 type bridge",
                   "link set dev br0" + without_ipv6() + " mtu " + mtu}};
  if (!node.address.empty()) batch.lines.push_back("address add " + control_address(node) + "/16 dev br0");
  batch.lines.push_back("link set dev br0 up");
  batches->push_back(batch);
  if (node.kind != RackNode::Kind::kSwitch) return;
  shape_both_ways({node, "br0"}, options_.switch_rate_bits * static_cast<uint64_t>(options_.workers),
                  batches);
}

// Makes the link from a's namespace; b's end is a bridge's port. A lossy one has a stretch beside b.
void RackPlan::add_link(const End& a, const End& b, bool lossy, std::vector<RackBatch>* batches) const {
  const std::string mtu = " mtu " + std::to_string(options_.mtu);
  const std::string opposite = lossy ? stretch_end(b.interface, 'a') : b.interface;
  batches->push_back({"ip",
                      a.node.network_namespace,
                      {"link add " + a.interface + mtu + " type veth peer name " + opposite + mtu +
                           " netns " + b.node.network_namespace,
                       "link set dev " + a.interface + without_ipv6() + " down"}});
  RackBatch upper{"ip", b.node.network_namespace, {}};
  if (lossy) {
    const std::string beside = stretch_end(b.interface, 'b');
    upper.lines = {"link add " + b.interface + mtu + " type veth peer name " + beside + mtu,
                   "link set dev " + opposite + without_ipv6() + " up",
                   "link set dev " + beside + without_ipv6() + " up"};
  }
  const bool of_bmv2 = is_p4() && a.interface != control_interface();
  upper.lines.push_back("link set dev " + b.interface + without_ipv6() +
                        (of_bmv2 ? " promisc on" : " master br0") + " up");
  batches->push_back(upper);
}

// A bucket that is down has a queue with room for no packet.
std::string RackPlan::bucket(uint64_t rate_bits, bool up) {
  return " root tbf rate " + std::to_string(rate_bits) + "bit burst " +
         std::to_string(burst_bytes(rate_bits)) + " limit " + std::to_string(up ? queue_bytes(rate_bits) : 1);
}

std::vector<RackLink> RackPlan::links() const {
  if (options_.graph) return graph_links();
  std::vector<RackLink> links;
  const auto add = [&](const RackNode& node, const std::string& id, const std::vector<std::string>& shaped,
                       const RackNode& upper, const std::string& port) {
    links.push_back({.id = id,
                     .node = node.id,
                     .rate_bits = rate_of(node),
                     .lower_namespace = node.network_namespace,
                     .shaped = shaped,
                     .upper_namespace = upper.network_namespace,
                     .port = port,
                     .opposite = options_.loss ? stretch_end(port, 'a') : port});
  };
  for (const RackNode& node : nodes_) {
    if (node.kind == RackNode::Kind::kWorker) {
      add(node, node.id, {"eth0", "ifb-eth0"}, switch_of(node), node.id);
    } else if (node.kind == RackNode::Kind::kUplink) {
      add(node, node.id, node.ports, top(), "sw" + std::to_string(node.rack));
    } else if (node.kind == RackNode::Kind::kSpareHost) {
      for (size_t p = 0; p < node.ports.size(); ++p) {
        add(node, port_id(node, p), {node.ports[p], "ifb-" + node.ports[p]}, switch_of(node),
            port_id(node, p));
      }
    }
  }
  return links;
}

RackBatch RackPlan::rate_change(const RackLink& link, uint64_t rate_bits, bool up) const {
  RackBatch batch{"tc", link.lower_namespace, {}};
  for (const std::string& interface : link.shaped) {
    batch.lines.push_back("qdisc change dev " + interface + bucket(rate_bits, up));
  }
  return batch;
}

RackBatch RackPlan::up_or_down(const RackLink& link, bool up) const {
  return {"ip", link.upper_namespace, {"link set dev " + link.opposite + (up ? " up" : " down")}};
}

void RackPlan::add_worker_link(const RackNode& worker, std::vector<RackBatch>* batches) const {
  add_link({worker, "eth0"}, {switch_of(worker), worker.id}, options_.loss.has_value(), batches);
  batches->push_back(
      {"ip",
       worker.network_namespace,
       {"link set dev lo up", "address add " + worker.address + "/16 dev eth0", "link set dev eth0 up"}});
  shape_both_ways({worker, "eth0"}, rate_of(worker), batches);
  if (is_p4()) add_control_link(worker, batches);
}

void RackPlan::add_control_link(const RackNode& worker, std::vector<RackBatch>* batches) const {
  add_link({worker, "eth1"}, {switch_of(worker), "c" + worker.id.substr(1)}, false, batches);
  batches->push_back({"ip",
                      worker.network_namespace,
                      {"address add " + control_address(worker) + "/16 dev eth1", "link set dev eth1 up"}});
}

void RackPlan::add_spare_links(const RackNode& spare, std::vector<RackBatch>* batches) const {
  const RackNode& to = switch_of(spare);
  batches->push_back({"ip", spare.network_namespace, {"link set dev lo up"}});
  for (size_t p = 0; p < spare.ports.size(); ++p) {
    const std::string& port = spare.ports[p];
    const std::string address = port_address(spare, p), at_switch = port_id(spare, p);
    add_link({spare, port}, {to, at_switch}, options_.loss.has_value(), batches);
    // Packets leave by the port whose address they have.
    const std::string table = std::to_string(100 + p);
    batches->push_back({"ip",
                        spare.network_namespace,
                        {"address add " + address + "/16 dev " + port, "link set dev " + port + " up",
                         "rule add from " + address + " table " + table,
                         "route add 10.77.0.0/16 dev " + port + " table " + table}});
    shape_both_ways({spare, port}, rate_of(spare), batches);
    // Results are for workers. Bridges without a querier would flood them to every port.
    if (options_.multicast) {
      const std::string line = "link set dev " + at_switch + " type bridge_slave mcast_flood off";
      batches->push_back({"ip", to.network_namespace, {line}});
    }
  }
}

void RackPlan::add_uplink(const RackNode& uplink, std::vector<RackBatch>* batches) const {
  const RackNode& lower = *find("sw" + std::to_string(uplink.rack));
  add_bridge(uplink, batches);
  for (const auto& [port, end] : {std::pair<std::string, End>{"rack", {lower, "uplink"}},
                                  std::pair<std::string, End>{"spine", {top(), lower.id}}}) {
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

std::vector<RackParameter> RackPlan::parameters() const {
  std::vector<RackParameter> all;
  for (const RackNode& node : nodes_) {
    if (options_.graph) {
      // Packets may come in by another link than the one that leads back.
      for (const char* name : {"rp_filter", "arp_ignore"}) {
        for (const char* of : {"all", "default"})
          all.push_back({node.network_namespace, fmt::format("ipv4/conf/{}/{}", of, name), "0"});
      }
      all.push_back({node.network_namespace, "ipv4/ip_forward", "1"});
    } else if (node.kind == RackNode::Kind::kSpareHost && node.ports.size() > 1) {
      // A host answers at each port only for the address of that port.
      all.push_back({node.network_namespace, "ipv4/conf/all/arp_ignore", "1"});
    }
  }
  return all;
}

std::vector<RackBatch> RackPlan::batches() const {
  if (options_.graph) return graph_batches();
  std::vector<RackBatch> batches;
  RackBatch namespaces{"ip", "", {}};
  for (const RackNode& node : nodes_) namespaces.lines.push_back("netns add " + node.network_namespace);
  batches.push_back(namespaces);
  for (const RackNode& node : nodes_) {
    if (node.switches()) add_bridge(node, &batches);
  }
  for (const RackNode& node : nodes_) {
    if (node.kind == RackNode::Kind::kWorker) add_worker_link(node, &batches);
    if (node.kind == RackNode::Kind::kSpareHost) add_spare_links(node, &batches);
    if (node.kind == RackNode::Kind::kUplink) add_uplink(node, &batches);
  }
  return batches;
}

RackService RackPlan::service(const RackNode& node) const {
  const auto control = [this](const RackNode& at) {
    return control_address(at) + ":" + std::to_string(kRackControlPort);
  };
  const bool is_spare = node.kind == RackNode::Kind::kSpareHost;
  RackService service{.id = node.id, .node = node.id, .address = control(node), .arguments = {}};
  std::string listen = service.address;
  for (size_t port = 1; is_spare && port < node.ports.size(); ++port)
    listen.append(",").append(port_address(node, port));
  std::vector<std::string>& arguments = service.arguments;
  arguments = {"aggregator",
               "--listen",
               listen,
               "--mtu",
               std::to_string(options_.mtu),
               "--cores",
               std::to_string(is_spare                       ? node.ports.size()
                              : dataplane_of(node) == "user" ? static_cast<size_t>(options_.cores)
                                                             : 1)};
  if (node.kind == RackNode::Kind::kSwitch && options_.racks > 1) {
    arguments.insert(arguments.end(), {"--parent", control(top())});
  }
  if (dataplane_of(node) == "xdp") {
    std::string interfaces;
    for (const std::string& one : node.ports) interfaces += (interfaces.empty() ? "" : ",") + one;
    arguments.insert(arguments.end(), {"--dataplane", dataplane_of(node), "--interfaces", interfaces});
  }
  // What jobs plan their shares with: no interface knows how it is shaped.
  if (!is_spare) {
    arguments.push_back("--in-switch");
    if (options_.switch_rate_bits > 0)
      arguments.insert(arguments.end(), {"--sum-rate", format_rate(options_.switch_rate_bits)});
  }
  const bool has_uplink = node.kind == RackNode::Kind::kSwitch && options_.racks > 1;
  if ((is_spare || has_uplink) && rate_of(node) > 0)
    arguments.insert(arguments.end(), {"--link-rate", format_rate(rate_of(node))});
  if (node.kind != RackNode::Kind::kSpine && options_.multicast) {
    // Different for switches and spare hosts.
    const std::string prefix =
        is_spare ? "239.78." + node.id.substr(1) : "239.77." + std::to_string(node.rack);
    arguments.insert(arguments.end(), {"--multicast", prefix + ".0/24"});
  }
  return service;
}

std::vector<RackService> RackPlan::services() const {
  if (options_.graph) return graph_services();
  std::vector<RackService> services;
  for (const RackNode& node : nodes_) {
    if ((node.switches() && options_.switch_aggregator) || node.kind == RackNode::Kind::kSpareHost)
      services.push_back(service(node));
  }
  return services;
}

std::string RackPlan::aggregators_for(const RackNode& node) const {
  if (options_.graph && !options_.graph->trees.empty()) return tree_aggregators_for(node);
  if (options_.racks > 1) {
    return service(node.kind == RackNode::Kind::kWorker ? switch_of(node) : top()).address;
  }
  std::string list;
  for (const RackService& one : services()) list += (list.empty() ? "" : ",") + one.address;
  return list;
}

nlohmann::ordered_json to_json(const RackOptions& o) {
  return {{"name", o.name},
          {"workers", o.workers},
          {"racks", o.racks},
          {"rate_bits", o.rate_bits},
          {"worker_rates", o.worker_rates},
          {"spare_hosts", o.spare_hosts},
          {"spare_ports", o.spare_ports},
          {"spare_rate_bits", o.spare_rate_bits ? nlohmann::ordered_json(*o.spare_rate_bits) : nullptr},
          {"switch_aggregator", o.switch_aggregator},
          {"switch_rate_bits", o.switch_rate_bits},
          {"mtu", o.mtu},
          {"cores", o.cores},
          {"dataplane", o.dataplane},
          {"spine_dataplane", o.spine_dataplane},
          {"multicast", o.multicast},
          {"loss", o.loss ? nlohmann::ordered_json(*o.loss) : nlohmann::ordered_json()},
          {"graph", o.graph ? to_json(*o.graph) : nlohmann::ordered_json()}};
}

RackOptions rack_options_from_json(const nlohmann::ordered_json& json) {
  return {.name = json.at("name"),
          .workers = json.at("workers"),
          .racks = json.at("racks"),
          .rate_bits = json.at("rate_bits"),
          .worker_rates = json.at("worker_rates"),
          .spare_hosts = json.at("spare_hosts"),
          .spare_ports = json.at("spare_ports"),
          .spare_rate_bits = optional_of<uint64_t>(json.at("spare_rate_bits")),
          .switch_aggregator = json.at("switch_aggregator"),
          .switch_rate_bits = json.at("switch_rate_bits"),
          .mtu = json.at("mtu"),
          .cores = json.at("cores"),
          .dataplane = json.at("dataplane"),
          .spine_dataplane = json.at("spine_dataplane"),
          .multicast = json.at("multicast"),
          .loss = optional_of<double>(json.at("loss")),
          .graph = json.at("graph").is_null() ? std::nullopt
                                              : std::optional(rack_graph_from_json(json.at("graph")))};
}

std::string worker_rates_text(const std::map<int, uint64_t>& rates) {
  std::string text;
  for (auto first = rates.begin(); first != rates.end();) {
    auto last = first, next = std::next(first);
    while (next != rates.end() && next->first == last->first + 1 && next->second == first->second)
      last = next++;
    std::string to;
    if (last != first) to.append("-").append(std::to_string(last->first));
    if (!text.empty()) text += ',';
    text.append(std::to_string(first->first)).append(to).append("=").append(format_rate(first->second));
    first = next;
  }
  return text.empty() ? "none" : text;
}

std::string difference(const RackOptions& is, const RackOptions& wanted) {
  if ((is.graph || wanted.graph) && is.graph != wanted.graph) return "another topology";
  std::string text;
  const auto compare = [&](const char* what, const std::string& has, const std::string& wants) {
    if (has != wants) text += (text.empty() ? "" : "; ") + std::string(what) + " " + has + ", not " + wants;
  };
  compare("workers", std::to_string(is.workers), std::to_string(wanted.workers));
  compare("racks", std::to_string(is.racks), std::to_string(wanted.racks));
  compare("rate", format_rate(is.rate_bits), format_rate(wanted.rate_bits));
  compare("worker rates", worker_rates_text(is.worker_rates), worker_rates_text(wanted.worker_rates));
  compare("spare hosts", std::to_string(is.spare_hosts), std::to_string(wanted.spare_hosts));
  compare("ports of spare hosts", std::to_string(is.spare_ports), std::to_string(wanted.spare_ports));
  const auto spare_rate = [](const RackOptions& o) {
    return format_rate(o.spare_hosts > 0 ? o.spare_rate_bits.value_or(o.rate_bits) : 0);
  };
  compare("rate of spare hosts", spare_rate(is), spare_rate(wanted));
  const auto on = [](bool value) { return value ? "on" : "off"; };
  compare("switch's aggregator", on(is.switch_aggregator), on(wanted.switch_aggregator));
  compare("rate of the switch's aggregator", format_rate(is.switch_rate_bits),
          format_rate(wanted.switch_rate_bits));
  compare("mtu", std::to_string(is.mtu), std::to_string(wanted.mtu));
  compare("cores", std::to_string(is.cores), std::to_string(wanted.cores));
  compare("dataplane", is.dataplane, wanted.dataplane);
  compare("multicast", on(is.multicast), on(wanted.multicast));
  const auto loss = [](const RackOptions& o) { return o.loss ? format_percent(*o.loss) : "none"; };
  compare("loss", loss(is), loss(wanted));
  if (wanted.racks > 1) compare("spine's dataplane", is.spine_dataplane, wanted.spine_dataplane);
  return text;
}

}  // namespace netsum::tool
