#include "src/host/placement.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <thread>

#include "src/host/host_identity.h"
#include "src/host/segment.h"

namespace netsum::placement_test {
namespace {

TEST(Placement, ThisHostHasAName) {
  EXPECT_FALSE(this_host().empty());
  EXPECT_EQ(this_host(), this_host());
}

TEST(Placement, MachinesWithOneBootIdAreTwoHosts) {
  const HostIdentity one{
      .boot_id = "8f0c", .network_namespace = 4026531840, .ethernet = "525400000001", .user = 0};
  HostIdentity copy = one;
  EXPECT_EQ(copy.name(), one.name());
  copy.ethernet = "525400000002";
  EXPECT_NE(copy.name(), one.name());
  const std::vector<std::string> names = {one.name(), copy.name(), one.name()};
  EXPECT_EQ(place(names, 0).hosts, (std::vector<std::vector<int>>{{0, 2}, {1}}));
}

// In a network namespace of its own, with such an interface, and on this machine's kernel.
TEST(Placement, ThisHostIsNamedByItsFirstInterface) {
  std::thread([] {
    if (unshare(CLONE_NEWNET) != 0) {
      EXPECT_EQ(errno, EPERM);
      return;
    }
    const std::string without = this_host();
    ASSERT_EQ(std::system("ip link add first address 52:54:00:00:00:01 type bridge && "
                          "ip link add second address 52:54:00:00:00:02 type bridge"),
              0);
    const std::string with = this_host();
    EXPECT_NE(with, without);
    EXPECT_NE(with.find("525400000001"), std::string::npos) << with;
    ASSERT_EQ(std::system("ip link del second && ip link add third type bridge && ip link set first up"), 0);
    EXPECT_EQ(this_host(), with);
  }).join();
}

TEST(Placement, RanksOfEqualNamesShareAHost) {
  const std::vector<std::string> names = {"a", "b", "a", "b", "a"};
  const Placement placement = place(names, 3);
  EXPECT_EQ(placement.hosts, (std::vector<std::vector<int>>{{0, 2, 4}, {1, 3}}));
  EXPECT_EQ(placement.host, 1u);
  EXPECT_EQ(placement.local, 1u);
  EXPECT_EQ(placement.owners, 2u);  // the smaller host's
  EXPECT_TRUE(placement.shares_memory());
  EXPECT_TRUE(placement.is_owner());
  EXPECT_EQ(placement.counterparts(), (std::vector<int>{2, 3}));
  EXPECT_FALSE(place(names, 4).is_owner());
}

// Every owner's part takes slots of its own at the aggregators.
TEST(Placement, FewRanksOfALargeHostSpeakInTheNetwork) {
  std::vector<std::string> names(40, "a");
  EXPECT_EQ(place(names, 0).owners, 40u);  // nothing enters the network
  for (size_t rank = 1; rank < 40; rank += 2) names[rank] = "b";
  EXPECT_EQ(place(names, 0).owners, 8u);
  EXPECT_TRUE(place(names, 15).is_owner());
  EXPECT_FALSE(place(names, 16).is_owner());
  EXPECT_EQ(place(names, 39).host_block_bytes(), place(names, 0).host_block_bytes());
}

TEST(Placement, RanksWithoutANameShareWithNobody) {
  const std::vector<std::string> names = {"", "", "a"};
  EXPECT_FALSE(place(names, 0).shares_memory());
  EXPECT_EQ(place(names, 1).hosts.size(), 3u);
}

// All ranks of a job must cut tensors into the same blocks, however few of them are on a host.
TEST(Placement, BlocksAreAsLargeOnEveryHost) {
  const std::vector<std::vector<size_t>> spreads = {{1},         {2},        {10, 1}, {1, 10},
                                                    {11, 10, 9}, {64},       {5, 5},  {65, 2},
                                                    {1, 511},    {256, 256}, {512},   {1, 1, 1, 1, 40}};
  for (const std::vector<size_t>& spread : spreads) {
    std::vector<std::string> names;
    for (size_t host = 0; host < spread.size(); ++host)
      names.insert(names.end(), spread[host], "host" + std::to_string(host));
    const size_t host_block_bytes = place(names, 0).host_block_bytes();
    for (size_t rank = 1; rank < names.size(); ++rank)
      ASSERT_EQ(place(names, static_cast<int>(rank)).host_block_bytes(), host_block_bytes) << "rank " << rank;
    EXPECT_EQ(host_block_bytes % 4096, 0u);
    EXPECT_GE(host_block_bytes, size_t{32} << 10);
    EXPECT_LE(host_block_bytes, size_t{2} << 20);
    const size_t most = *std::max_element(spread.begin(), spread.end());
    EXPECT_LE(Segment::kSlots * (most + 1) * host_block_bytes, size_t{64} << 20) << most << " ranks";
  }
}

}  // namespace
}  // namespace netsum::placement_test
