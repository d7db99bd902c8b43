// The layout of a rack from a topology file: the parts of RackPlan for graphs.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "tools/netsum/quantity.h"
#include "tools/netsum/rack_graph_trees.h"
#include "tools/netsum/rack_plan.h"

namespace netsum::tool {
using plan::VertexKind;

void RackPlan::add_graph_nodes() {
  routes_.emplace(options_.graph->graph);
  const plan::Graph& graph = routes_->graph();
  const auto add_kind = [&](VertexKind vertices, RackNode::Kind kind, const char* letters,
                            const char* address) {
    size_t number = 0;
    for (size_t i = 0; i < graph.vertices.size(); ++i) {
      if (graph.vertices[i].kind != vertices || !routes_->is_node(i)) continue;
      const std::string id = letters + std::to_string(number);
      nodes_.push_back({.kind = kind,
                        .id = id,
                        .network_namespace = "netsum-" + options_.name + "-" + id,
                        .address = kind == RackNode::Kind::kSpareHost
                                       ? fmt::format("10.77.{}.1", 100 + number)
                                       : fmt::format("{}{}", address, number + 1),
                        .name = graph.vertices[i].name,
                        .vertex = i});
      ++number;
    }
  };
  add_kind(VertexKind::kSwitch, RackNode::Kind::kSwitch, "sw", "10.77.1.");
  add_kind(VertexKind::kAggregator, RackNode::Kind::kSpareHost, "s", "");
  add_kind(VertexKind::kRank, RackNode::Kind::kWorker, "w", "10.77.0.");
}

const RackNode& RackPlan::node_at(size_t vertex) const {
  return *std::find_if(nodes_.begin(), nodes_.end(),
                       [&](const RackNode& node) { return node.vertex == routes_->node_of(vertex); });
}

// A node's interfaces are numbered in the order of the links.
std::string RackPlan::interface_to(size_t from, size_t to) const {
  size_t number = 0;
  for (const GraphLink& link : routes_->links()) {
    if (link.a != from && link.b != from) continue;
    if (link.a == to || link.b == to) break;
    ++number;
  }
  return "eth" + std::to_string(number);
}

std::vector<RackLink> RackPlan::graph_links() const {
  std::vector<RackLink> links;
  const auto add = [&](size_t from, size_t to, int64_t rate) {
    if (rate == 0) return;
    const RackNode &sender = node_at(from), &receiver = node_at(to);
    const std::string port = interface_to(to, from);
    links.push_back({.id = sender.name + ">" + receiver.name,
                     .node = sender.id,
                     .rate_bits = static_cast<uint64_t>(rate),
                     .lower_namespace = sender.network_namespace,
                     .shaped = {interface_to(from, to)},
                     .upper_namespace = receiver.network_namespace,
                     .port = port,
                     .opposite = port,
                     .receiver = receiver.id});
  };
  for (const GraphLink& link : routes_->links()) {
    add(link.a, link.b, link.a_to_b);
    add(link.b, link.a, link.b_to_a);
  }
  return links;
}

std::vector<RackBatch> RackPlan::graph_batches() const {
  const std::string mtu = " mtu " + std::to_string(options_.mtu);
  std::vector<RackBatch> batches = {{"ip", "", {}}}, settings;
  for (const RackNode& node : nodes_) {
    batches.front().lines.push_back("netns add " + node.network_namespace);
    RackBatch making{"ip", node.network_namespace, {}}, setting = making,
                                                        shaping{"tc", node.network_namespace, {}};
    setting.lines = {"link set dev lo up", "link add host type bridge",
                     "link set dev host" + without_ipv6() + " up",
                     "address add " + node.address + "/32 dev host"};
    for (const GraphLink& link : routes_->links()) {
      if (link.a != node.vertex && link.b != node.vertex) continue;
      const size_t other = link.a == node.vertex ? link.b : link.a;
      const std::string own = interface_to(node.vertex, other);
      const int64_t rate = link.a == node.vertex ? link.a_to_b : link.b_to_a;
      if (link.a == node.vertex) {
        making.lines.push_back(fmt::format("link add {}{} type veth peer name {}{} netns {}", own, mtu,
                                           interface_to(other, node.vertex), mtu,
                                           node_at(other).network_namespace));
      }
      setting.lines.push_back("link set dev " + own + without_ipv6() + " up");
      if (rate > 0) shaping.lines.push_back("qdisc add dev " + own + bucket(static_cast<uint64_t>(rate)));
    }
    for (const RackNode& to : nodes_) {
      const std::optional<size_t> arc = routes_->next(node.vertex, to.vertex);
      if (!arc) continue;
      const size_t next = routes_->graph().arcs[*arc].to;
      setting.lines.push_back(fmt::format("route add {}/32 via {} dev {} onlink src {}", to.address,
                                          node_at(next).address, interface_to(node.vertex, next),
                                          node.address));
    }
    if (!making.lines.empty()) batches.push_back(making);
    settings.push_back(setting);
    if (!shaping.lines.empty()) settings.push_back(shaping);
  }
  batches.insert(batches.end(), settings.begin(), settings.end());
  return batches;
}

// Of all links of a node, in the slower direction.
uint64_t RackPlan::graph_rate_of(size_t vertex) const {
  int64_t in = 0, out = 0;
  for (const GraphLink& link : routes_->links()) {
    if (link.a == vertex) out += link.a_to_b, in += link.b_to_a;
    if (link.b == vertex) out += link.b_to_a, in += link.a_to_b;
  }
  return static_cast<uint64_t>(std::min(in, out));
}

// The aggregators of the same namespace that come earlier in the graph.
size_t RackPlan::parts_before(size_t vertex) const {
  size_t count = 0;
  for (size_t i = 0; i < vertex; ++i)
    count += !routes_->is_node(i) && routes_->node_of(i) == routes_->node_of(vertex);
  return count;
}

// An aggregator inside a switch shares the address with the switch's others.
std::string RackPlan::service_address(size_t tree, size_t vertex) const {
  const size_t port = kRackControlPort + tree + plan::kMaxPlaces * parts_before(vertex);
  return fmt::format("{}:{}", node_at(vertex).address, port);
}

std::vector<RackService> RackPlan::graph_services() const {
  std::vector<RackService> services;
  const plan::Graph& graph = routes_->graph();
  for (size_t i = 0; i < graph.vertices.size() && options_.graph->trees.empty(); ++i) {
    if (graph.vertices[i].kind != VertexKind::kAggregator) continue;
    const RackNode& node = node_at(i);
    const size_t before = parts_before(i);
    RackService service{.id = before == 0 ? node.id : fmt::format("{}-{}", node.id, before),
                        .node = node.id,
                        .address = service_address(0, i),
                        .arguments = {}};
    service.arguments = {"aggregator", "--listen", service.address, "--mtu", std::to_string(options_.mtu),
                         "--cores",    "1"};
    if (!routes_->is_node(i)) {
      service.arguments.push_back("--in-switch");
    } else {
      service.arguments.insert(service.arguments.end(), {"--link-rate", format_rate(graph_rate_of(i))});
    }
    if (graph.vertices[i].sum_rate != plan::kUnlimited)
      service.arguments.insert(
          service.arguments.end(),
          {"--sum-rate", format_rate(static_cast<uint64_t>(graph.vertices[i].sum_rate))});
    services.push_back(service);
  }
  for (size_t tree = 0; tree < options_.graph->trees.size(); ++tree) {
    for (const size_t vertex : options_.graph->trees[tree].inner()) {
      if (options_.graph->relays && graph.vertices[vertex].kind == VertexKind::kRank) continue;
      services.push_back(tree_service(tree, vertex));
    }
  }
  return services;
}

RackService RackPlan::tree_service(size_t tree, size_t vertex) const {
  const auto address = [&](size_t at) { return service_address(tree, at); };
  const RackNode& node = node_at(vertex);
  RackService service{.id = fmt::format("{}-t{}", node.id, tree),
                      .node = node.id,
                      .address = address(vertex),
                      .arguments = options_.graph->trees[tree].arguments(vertex, address)};
  service.arguments.insert(service.arguments.end(), {"--mtu", std::to_string(options_.mtu)});
  return service;
}

std::string RackPlan::tree_aggregators_for(const RackNode& node) const {
  std::string list;
  for (size_t tree = 0; tree < options_.graph->trees.size(); ++tree) {
    const std::optional<size_t> at = options_.graph->trees[tree].joins_at(node.vertex);
    if (at) list += (list.empty() ? "" : ",") + service_address(tree, *at);
  }
  return list;
}

std::string RackPlan::relays() const {
  if (!options_.graph || !options_.graph->relays) return "";
  return to_text(relay_plan(routes_->graph(), options_.graph->trees, "rack:" + options_.name,
                            [this](size_t tree, size_t vertex) { return service_address(tree, vertex); }));
}

}  // namespace netsum::tool
