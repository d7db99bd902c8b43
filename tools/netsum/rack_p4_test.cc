#include "tools/netsum/rack_p4.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>

namespace netsum::tool::rack_p4_test {
namespace {

// What p4c would look for: it finds all in the command's copy, so it can be compiled where there are no sources.
TEST(RackP4, TheCopyOfTheProgramHasAllThatItIncludes) {
  std::set<std::string> paths;
  for (const P4Source& source : p4_sources()) paths.insert(source.path);
  EXPECT_TRUE(paths.contains(kP4Program));
  const std::regex include("#include \"([^\"]+)\"");
  int included = 0;
  for (const P4Source& source : p4_sources()) {
    const std::string text = source.text;
    for (std::sregex_iterator at(text.begin(), text.end(), include), end; at != end; ++at, ++included)
      EXPECT_TRUE(paths.contains((*at)[1])) << source.path << " includes " << (*at)[1];
  }
  EXPECT_GE(included, 10);
}

TEST(RackP4, BMv2HasThePortsAndControlANetworkOfItsOwn) {
  const RackPlan plan({.name = "a", .workers = 2, .dataplane = "p4"});
  std::multiset<std::string> at_bridge, for_bmv2;
  for (const RackBatch& batch : plan.batches()) {
    if (batch.network_namespace != "netsum-a-sw") continue;
    for (const std::string& line : batch.lines) {
      const std::string device = line.substr(0, line.find(" addrgenmode")).substr(line.rfind("dev ") + 4);
      if (line.find("master br0") != std::string::npos) at_bridge.insert(device);
      if (line.find("promisc on") != std::string::npos) for_bmv2.insert(device);
    }
  }
  EXPECT_EQ(at_bridge, (std::multiset<std::string>{"c0", "c1"}));
  EXPECT_EQ(for_bmv2, (std::multiset<std::string>{"w0", "w1"}));
  EXPECT_EQ(plan.aggregators_for(plan.top()), "10.78.1.1:5151");
  EXPECT_EQ(plan.control_address(*plan.find("w1")), "10.78.0.2");
  const std::vector<std::string> flags = p4_arguments(plan);
  EXPECT_THAT(flags, testing::IsSupersetOf({"--p4-address", "10.77.1.1", "--p4-ports", "0,1"}));
  const RackPlan user({.name = "a"});
  EXPECT_EQ(user.control_address(*user.find("w1")), user.find("w1")->address);
}

}  // namespace
}  // namespace netsum::tool::rack_p4_test
