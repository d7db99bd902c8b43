// What a virtual rack is made of: names, addresses, and the iproute2 commands that make it. Pure.
//
//   worker w: namespace netsum-NAME-wW, eth0, 10.77.0.(W+1) --- switch port wW
//   switch r: namespace netsum-NAME-swR, bridge br0, 10.77.1.(R+1)
//   spare host s: namespace netsum-NAME-sS, its port p: ethP, 10.77.(100+S).(P+1) --- switch port sS, or
//     sS-pP if it has several
//   with several racks: the switch's port uplink --- namespace netsum-NAME-upR, bridge of rack and
//     spine --- spine's port swR. The cable has a namespace of its own, because XDP at its ends bypasses
//     their token buckets.
//   spine (with several racks): namespace netsum-NAME-spine, bridge br0, 10.77.2.1
//
// A rack from a topology file has another layout: see rack_graph.h.
//
// With the dataplane p4 the switch is BMv2 instead of a bridge: 10.77.1.1 is an address that its program answers for. What
// controls it has a network of its own, so that the load of one does not break the other's connections: worker w's eth1,
// 10.78.0.(W+1), and 10.78.1.1 at the bridge br0 of the switch, with the ports cW.
//
// Otherwise everything is one /16 on bridges, so each address reaches every other. Other racks may have the same
// addresses: no link leads out of a rack.
//
// A host's link is shaped at the host in both directions: a token bucket on the way out, and one on an ifb
// device that all that comes in is led through. A bucket on the switch's port would not see what an XDP
// program sends. What the switch's own aggregator sends and receives can be shaped at br0 in the same way,
// except for XDP.
#ifndef NETSUM_TOOLS_NETSUM_RACK_PLAN_H_
#define NETSUM_TOOLS_NETSUM_RACK_PLAN_H_

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "netsum/status.h"
#include "tools/netsum/rack_graph.h"

namespace netsum::tool {

inline constexpr int kMaxRackWorkers = 200;
inline constexpr int kMaxRacks = 16;
inline constexpr int kMaxSpareHosts = 64;
inline constexpr int kMaxSparePorts = 16;
inline constexpr int kMaxRackCores = 64;
inline constexpr int kRackControlPort = 5151;

struct RackOptions {
  std::string name = "rack";
  int workers = 4;
  int racks = 1;
  uint64_t rate_bits = 0;                     // per second, of every link; 0: as fast as the machine
  std::map<int, uint64_t> worker_rates = {};  // of the workers whose links have another rate
  int spare_hosts = 0;
  int spare_ports = 1;                                     // of each spare host
  std::optional<uint64_t> spare_rate_bits = std::nullopt;  // of each of these; otherwise rate_bits
  bool switch_aggregator = true;
  uint64_t switch_rate_bits = 0;  // between the switch's aggregator and each worker; 0: no limit
  int mtu = 1500;
  int cores = 1;  // threads of the aggregator in each switch, if it is a daemon
  std::string dataplane = "user";
  std::string spine_dataplane = "user";  // with several racks
  bool multicast = false;                // from aggregators to workers
  // Probability that a link loses a packet, either way; with none, links are not made to lose any at all.
  std::optional<double> loss = std::nullopt;
  // Instead of switches and spare hosts; `workers` is the number of its ranks.
  std::optional<RackGraph> graph = std::nullopt;
  bool operator==(const RackOptions&) const = default;
};

struct RackNode {
  enum class Kind { kWorker, kSwitch, kUplink, kSpine, kSpareHost };
  Kind kind = Kind::kWorker;
  std::string id;  // "w3", "sw", "sw1", "up1", "spine", "s0": what `rack exec` takes ("3" is short for "w3")
  std::string network_namespace;
  std::string address;  // of a spare host's first port
  int rack = 0;
  std::string name = {};  // in the topology file
  size_t vertex = 0;      // in its graph
  // Switches and spare hosts: the interfaces by which packets to the aggregator come in.
  std::vector<std::string> ports = {};

  bool switches() const { return kind == Kind::kSwitch || kind == Kind::kSpine; }  // is a bridge
};

// An aggregator that runs in a node: one in each switch, one on each spare host, at all its ports; in a graph, also one for
// each tree of which the node is an inner vertex.
struct RackService {
  std::string id;       // of the node: "sw", "spine", "s0"; of a tree's: "w3-t0"
  std::string node;     // RackNode::id
  std::string address;  // of its control service
  std::vector<std::string> arguments;
};

// A lossy link has a stretch beside the switch's interface `port`: two interfaces, 'a' towards the other host
// and 'b' towards the port. See rack_loss.h.
std::string stretch_end(const std::string& port, char end);

// What `rack set` can change: a host's link to its switch, or a switch's to the spine; in a graph, one direction of a link.
struct RackLink {
  std::string id;          // "w3", "up0", "s0", "s0-p1", "gpu0>leaf0"
  std::string node;        // the one at its lower end; in a graph, the sender
  uint64_t rate_bits = 0;  // when it is made
  std::string lower_namespace;
  std::vector<std::string> shaped;  // interfaces there that have a token bucket each, if there is a rate
  std::string upper_namespace;
  std::string port;      // the upper end: the switch's, or the spine's interface
  std::string opposite;  // the interface there that the lower end is connected to: the port, or a stretch's
  std::string receiver = {};  // in a graph: the node at the upper end
};

// Commands of one `ip -batch` or `tc -batch` run.
struct RackBatch {
  std::string program;  // "ip" or "tc"
  std::string network_namespace;
  std::vector<std::string> lines;
};

// A kernel's setting: a file below /proc/sys/net.
struct RackParameter {
  std::string network_namespace;
  std::string name;
  std::string value;
};

class RackPlan {
 public:
  explicit RackPlan(const RackOptions& options);

  const RackOptions& options() const { return options_; }
  const std::vector<RackNode>& nodes() const {
    return nodes_;
  }  // spine, switches, uplinks, spare hosts, workers
  const RackNode* find(std::string_view id) const;
  // As people name a node: as in the topology file, by a worker's number, or by its id.
  const RackNode* find_named(std::string_view name) const;
  // The switch above all others: the only one, or the spine.
  const RackNode& top() const;
  const RackNode& switch_of(const RackNode& host) const;
  // In order; namespaces must exist before the rest.
  std::vector<RackBatch> batches() const;
  // To be set when the namespaces exist, before links do.
  std::vector<RackParameter> parameters() const;
  // All aggregators, in the order in which they start.
  std::vector<RackService> services() const;
  // Those that the node should use, as NETSUM_AGGREGATOR has it; empty if there is none.
  std::string aggregators_for(const RackNode& node) const;
  // The text of the plan for ranks that sum themselves; "" if they do not.
  std::string relays() const;
  bool is_p4() const { return options_.dataplane == "p4"; }
  // Of a worker or switch, for connections that are no gradients; with p4 that in the network for control.
  std::string control_address(const RackNode& node) const;
  // The interface of that network on workers.
  const char* control_interface() const { return is_p4() ? "eth1" : options_.graph ? "host" : "eth0"; }

  std::vector<RackLink> links() const;
  // Of a link that is up, or of a graph.
  RackBatch rate_change(const RackLink& link, uint64_t rate_bits, bool up = true) const;
  // Not of a graph: a link there that is down is one whose bucket takes no packet.
  RackBatch up_or_down(const RackLink& link, bool up) const;

 private:
  struct End {
    const RackNode& node;
    std::string interface;
  };
  void add_link(const End& a, const End& b, bool lossy, std::vector<RackBatch>* batches) const;
  static std::string bucket(uint64_t rate_bits, bool up = true);
  std::string without_ipv6() const;
  void shape_both_ways(const End& end, uint64_t rate_bits, std::vector<RackBatch>* batches) const;
  void add_worker_link(const RackNode& worker, std::vector<RackBatch>* batches) const;
  void add_control_link(const RackNode& worker, std::vector<RackBatch>* batches) const;
  void add_spare_links(const RackNode& spare, std::vector<RackBatch>* batches) const;
  void add_uplink(const RackNode& uplink, std::vector<RackBatch>* batches) const;
  void add_bridge(const RackNode& node, std::vector<RackBatch>* batches) const;
  std::string dataplane_of(const RackNode& node) const;
  uint64_t rate_of(const RackNode& host) const;
  std::string port_id(const RackNode& spare, size_t port) const;
  std::string port_address(const RackNode& spare, size_t port) const;
  RackService service(const RackNode& node) const;

  // Of a graph.
  void add_graph_nodes();
  const RackNode& node_at(size_t vertex) const;
  std::string interface_to(size_t from, size_t to) const;
  std::vector<RackLink> graph_links() const;
  std::vector<RackBatch> graph_batches() const;
  uint64_t graph_rate_of(size_t vertex) const;
  std::vector<RackService> graph_services() const;
  size_t parts_before(size_t vertex) const;
  std::string service_address(size_t tree, size_t vertex) const;
  RackService tree_service(size_t tree, size_t vertex) const;
  std::string tree_aggregators_for(const RackNode& node) const;

  RackOptions options_;
  std::optional<GraphRoutes> routes_ = std::nullopt;
  std::vector<RackNode> nodes_;
};

nlohmann::ordered_json to_json(const RackOptions& options);
RackOptions rack_options_from_json(const nlohmann::ordered_json& json);  // throws if malformed
// "4-7=50mbit", or "none".
std::string worker_rates_text(const std::map<int, uint64_t>& rates);
// "workers 4, not 8; mtu 1500, not 9000": what `is` differs in from `wanted`; empty if in nothing.
std::string difference(const RackOptions& is, const RackOptions& wanted);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_RACK_PLAN_H_
