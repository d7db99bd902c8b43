#include "tools/netsum/rack_plan.h"

#include <gtest/gtest.h>

#include <set>

namespace netsum::tool::rack_plan_test {
namespace {

RackService service_of(const RackPlan& plan, const std::string& id) {
  for (const RackService& service : plan.services()) {
    if (service.id == id) return service;
  }
  return {};
}

TEST(RackPlan, LinksOfALossyRackHaveAStretch) {
  const RackPlan plan({.name = "a", .workers = 4, .racks = 2, .rate_bits = 1'000'000, .loss = 0.01});
  const std::vector<RackLink> links = plan.links();
  ASSERT_EQ(links.size(), 6u);
  EXPECT_EQ(links[0].id, "up0");
  EXPECT_EQ(links[0].upper_namespace, "netsum-a-spine");
  EXPECT_EQ(links[0].opposite, "sw0-a");
  EXPECT_EQ(links[5].id, "w3");
  EXPECT_EQ(links[5].upper_namespace, "netsum-a-sw1");
  EXPECT_EQ(plan.up_or_down(links[5], false).lines.front(), "link set dev w3-a down");
  int stretches = 0;
  for (const RackBatch& batch : plan.batches()) {
    for (const std::string& line : batch.lines)
      stretches += line.find("link add") == 0 && line.ends_with("-b mtu 1500");
  }
  EXPECT_EQ(stretches, 6);
  EXPECT_EQ(RackPlan({.name = "a", .workers = 1}).links()[0].opposite, "w0");
}

TEST(RackPlan, OneRack) {
  const RackPlan plan({.name = "a", .workers = 3});
  ASSERT_EQ(plan.nodes().size(), 4u);
  EXPECT_EQ(plan.top().id, "sw");
  EXPECT_EQ(plan.top().ports, (std::vector<std::string>{"w0", "w1", "w2"}));
  EXPECT_EQ(plan.aggregators_for(plan.top()), "10.77.1.1:5151");
  EXPECT_EQ(plan.find("2"), plan.find("w2"));
  EXPECT_EQ(plan.find("w2")->network_namespace, "netsum-a-w2");
  EXPECT_EQ(plan.find("w3"), nullptr);
  EXPECT_EQ(plan.find("spine"), nullptr);
  EXPECT_EQ(plan.find(""), nullptr);
}

TEST(RackPlan, SeveralRacksShareTheWorkersOut) {
  const RackPlan plan({.name = "a", .workers = 8, .racks = 3});
  EXPECT_EQ(plan.top().id, "spine");
  EXPECT_EQ(plan.top().ports, (std::vector<std::string>{"sw0", "sw1", "sw2"}));
  int workers[3] = {};
  int last = 0;
  for (int w = 0; w < 8; ++w) {
    const int rack = plan.find(std::to_string(w))->rack;
    EXPECT_GE(rack, last);
    last = rack;
    ++workers[rack];
  }
  for (const int n : workers) EXPECT_TRUE(n == 2 || n == 3);
  EXPECT_EQ(plan.find("sw2")->ports.back(), "uplink");
  EXPECT_EQ(plan.switch_of(*plan.find("w7")).id, "sw2");
  const std::vector<std::string> arguments = service_of(plan, "sw2").arguments;
  EXPECT_NE(std::find(arguments.begin(), arguments.end(), "--parent"), arguments.end());
}

TEST(RackPlan, AddressesAndNamespacesDiffer) {
  const RackPlan plan({.name = "a", .workers = kMaxRackWorkers, .racks = kMaxRacks});
  std::set<std::string> addresses, namespaces;
  for (const RackNode& node : plan.nodes()) {
    if (node.kind != RackNode::Kind::kUplink) addresses.insert(node.address);
    namespaces.insert(node.network_namespace);
  }
  EXPECT_EQ(addresses.size(), plan.nodes().size() - kMaxRacks);
  EXPECT_EQ(namespaces.size(), plan.nodes().size());
}

TEST(RackPlan, InterfaceNamesFitTheKernel) {
  const RackPlan plan({.name = std::string(32, 'x'),
                       .workers = kMaxRackWorkers,
                       .racks = kMaxRacks,
                       .rate_bits = 1'000'000,
                       .spare_hosts = kMaxSpareHosts,
                       .spare_ports = kMaxSparePorts,
                       .loss = 0});
  for (const RackBatch& batch : plan.batches()) {
    for (const std::string& line : batch.lines) {
      for (const std::string before : {"dev ", "link add ", "peer name "}) {
        const size_t at = line.find(before);
        if (at == std::string::npos) continue;
        const std::string rest = line.substr(at + before.size());
        EXPECT_LE(rest.substr(0, rest.find(' ')).size(), 15u) << line;
      }
    }
  }
}

TEST(RackPlan, OnlyShapedLinksHaveBuckets) {
  const auto buckets = [](uint64_t rate) {
    int count = 0;
    const RackPlan plan({.name = "a", .workers = 4, .racks = 2, .rate_bits = rate});
    for (const RackBatch& batch : plan.batches()) {
      for (const std::string& line : batch.lines) count += line.find(" tbf ") != std::string::npos;
    }
    return count;
  };
  EXPECT_EQ(buckets(0), 0);
  EXPECT_EQ(buckets(100'000'000), 2 * (4 + 2));  // both ways: four workers, two uplinks
}

TEST(RackPlan, SpareHostsHaveAnAggregatorAtAllPorts) {
  const RackPlan plan({.name = "a", .workers = 2, .spare_hosts = 2, .spare_ports = 2, .multicast = true});
  EXPECT_EQ(plan.aggregators_for(*plan.find("w1")), "10.77.1.1:5151,10.77.100.1:5151,10.77.101.1:5151");
  EXPECT_EQ(plan.find("s1")->ports, (std::vector<std::string>{"eth0", "eth1"}));
  std::set<std::string> prefixes;
  for (const RackService& service : plan.services()) {
    const auto flag = std::find(service.arguments.begin(), service.arguments.end(), "--multicast");
    ASSERT_NE(flag, service.arguments.end()) << service.id;
    prefixes.insert(*(flag + 1));
  }
  EXPECT_EQ(prefixes.size(), 3u);
  const std::vector<std::string> arguments = service_of(plan, "s1").arguments;
  EXPECT_EQ(*std::next(std::find(arguments.begin(), arguments.end(), "--listen")),
            "10.77.101.1:5151,10.77.101.2");

  const RackPlan alone({.name = "a", .workers = 2, .spare_hosts = 1, .switch_aggregator = false});
  EXPECT_EQ(alone.aggregators_for(alone.top()), "10.77.100.1:5151");
  EXPECT_EQ(alone.services().size(), 1u);
  EXPECT_EQ(alone.links()[0].id, "s0");
  EXPECT_EQ(RackPlan({.name = "a", .switch_aggregator = false}).aggregators_for(alone.top()), "");
}

TEST(RackPlan, EachLinkHasItsRate) {
  const RackPlan plan({.name = "a",
                       .workers = 3,
                       .rate_bits = 100,
                       .worker_rates = {{1, 50}},
                       .spare_hosts = 1,
                       .spare_ports = 2,
                       .spare_rate_bits = 400,
                       .switch_rate_bits = 70});
  std::map<std::string, uint64_t> rates;
  for (const RackLink& link : plan.links()) rates[link.id] = link.rate_bits;
  EXPECT_EQ(rates, (std::map<std::string, uint64_t>{
                       {"s0-p0", 400}, {"s0-p1", 400}, {"w0", 100}, {"w1", 50}, {"w2", 100}}));
  std::multiset<std::string> shaped;
  for (const RackBatch& batch : plan.batches()) {
    for (const std::string& line : batch.lines) {
      const size_t at = line.find(" root tbf rate ");
      if (at == std::string::npos) continue;
      const std::string device = line.substr(0, at).substr(line.find(" dev ") + 5);
      const std::string rate = line.substr(at + 15);
      shaped.insert(batch.network_namespace.substr(9) + " " + device + " " +
                    rate.substr(0, rate.find("bit")));
    }
  }
  EXPECT_EQ(shaped,
            (std::multiset<std::string>{"s0 eth0 400", "s0 eth1 400", "s0 ifb-eth0 400", "s0 ifb-eth1 400",
                                        "sw br0 210", "sw ifb-br0 210", "w0 eth0 100", "w0 ifb-eth0 100",
                                        "w1 eth0 50", "w1 ifb-eth0 50", "w2 eth0 100", "w2 ifb-eth0 100"}));
  EXPECT_EQ(worker_rates_text({{1, 50}, {4, 1000}, {5, 1000}, {6, 2000}}), "1=50bit,4-5=1kbit,6=2kbit");
}

TEST(RackPlan, MulticastStaysWithinItsRack) {
  const RackPlan plan({.name = "a", .workers = 4, .racks = 2, .multicast = true});
  const auto range_of = [&](const char* node) -> std::string {
    const std::vector<std::string> arguments = service_of(plan, node).arguments;
    const auto flag = std::find(arguments.begin(), arguments.end(), "--multicast");
    return flag == arguments.end() ? "" : *(flag + 1);
  };
  EXPECT_EQ(range_of("sw0"), "239.77.0.0/24");
  EXPECT_EQ(range_of("sw1"), "239.77.1.0/24");
  EXPECT_EQ(range_of("spine"), "");
  int filters = 0;
  for (const RackBatch& batch : plan.batches()) {
    for (const std::string& line : batch.lines) filters += line.find("mcast_flood off") != std::string::npos;
  }
  EXPECT_EQ(filters, 2);
}

TEST(RackPlan, OptionsSurviveTheNote) {
  const RackOptions options{.name = "big",
                            .workers = 16,
                            .racks = 4,
                            .rate_bits = 2'500'000'000,
                            .worker_rates = {{4, 1'000'000}, {5, 1'000'000}},
                            .spare_hosts = 3,
                            .spare_ports = 2,
                            .spare_rate_bits = 10'000'000'000,
                            .switch_aggregator = false,
                            .switch_rate_bits = 1'000'000,
                            .mtu = 9000,
                            .cores = 4,
                            .dataplane = "xdp",
                            .spine_dataplane = "user",
                            .multicast = true,
                            .loss = 0.001};
  EXPECT_EQ(rack_options_from_json(to_json(options)), options);
  EXPECT_ANY_THROW(rack_options_from_json(nlohmann::ordered_json::object()));
  EXPECT_EQ(difference(options, options), "");
  EXPECT_EQ(
      difference(options, {.name = "big"}),
      "workers 16, not 4; racks 4, not 1; rate 2.5gbit, not none; worker rates "
      "4-5=1mbit, not none; spare hosts 3, not 0; ports of spare hosts 2, not 1; rate of spare hosts 10gbit, "
      "not none; switch's aggregator off, not on; rate of the switch's aggregator 1mbit, not none; mtu 9000, "
      "not 1500; cores 4, not 1; dataplane xdp, "
      "not user; multicast on, not off; loss 0.1 %, not none");
}

TEST(RackPlan, AnOlderTopologyIsNamed) {
  const RackOptions now{.name = "g", .graph = RackGraph{.graph = {.vertices = {{.name = "a"}}}}};
  RackOptions older = now;
  EXPECT_EQ(difference(now, older), "");
  older.graph->graph.vertices.push_back({.name = "b"});
  EXPECT_EQ(difference(now, older), "another topology");
  EXPECT_EQ(difference(now, {.name = "g"}), "another topology");
  older = now;
  older.graph->trees.push_back({});
  EXPECT_EQ(difference(now, older), "another topology") << "other trees";
}

}  // namespace
}  // namespace netsum::tool::rack_plan_test
