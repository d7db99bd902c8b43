#include "src/net/interface_rate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

namespace netsum::interface_rate_test {
namespace {

using testing::HasSubstr;

Address at(const char* text) {
  return Address::parse(text).value();
}

// Runs `commands` and then `body` in a network namespace that ends with the thread. Returns why it could not.
std::string in_namespace(const std::string& commands, const std::function<void()>& body) {
  std::string obstacle;
  std::thread thread([&] {
    if (unshare(CLONE_NEWNET) != 0) {
      obstacle = std::string("cannot make a network namespace: ") + std::strerror(errno);
    } else if (std::system(commands.c_str()) != 0) {
      obstacle = "cannot make an interface in a network namespace";
    } else {
      body();
    }
  });
  thread.join();
  return obstacle;
}

TEST(InterfaceRateTest, TheDriversRateOfTheInterfaceWithTheAddress) {
  const std::string obstacle = in_namespace(
      // A macvlan reports the rate of the interface below it. That of a tun can be set.
      "for i in 1 2; do ip tuntap add t$i mode tap && ethtool -s t$i speed ${i}500 duplex full &&"
      " ip link add m$i link t$i type macvlan && ip address add 10.7.$i.1/24 dev m$i &&"
      " ip address add fd07:$i::1/64 dev m$i || exit 1; done",
      [] {
        EXPECT_EQ(interface_with_address(at("10.7.2.1:99")).value(), "m2");
        EXPECT_EQ(interface_rate_bps(at("10.7.1.1:0")).value(), 1.5e9);
        EXPECT_EQ(interface_rate_bps(at("10.7.2.1:5151")).value(), 2.5e9);
        EXPECT_EQ(interface_rate_bps(at("[fd07:1::1]:5151")).value(), 1.5e9);
        EXPECT_EQ(interface_rate_bps(std::string("m2")).value(), 2.5e9);
      });
  if (!obstacle.empty()) GTEST_SKIP() << obstacle;
}

TEST(InterfaceRateTest, TheNominalRateOfAVirtualInterfaceIsNone) {
  const std::string obstacle = in_namespace(
      "ip link add v1 type veth peer name v2 && ip link set v1 up && ip link set v2 up &&"
      " ip tuntap add t1 mode tap && ethtool -s t1 speed 1500 duplex full && ip link add b1 type bridge &&"
      " ip link set v1 master b1 && ip link set b1 up",
      [] {
        for (const std::string interface : {"v1", "v2", "t1", "b1"}) {
          const Result<double> rate = interface_rate_bps(interface);
          ASSERT_FALSE(rate.ok()) << interface << " " << *rate;
          EXPECT_EQ(rate.status().code(), ErrorCode::kUnsupported);
          EXPECT_THAT(rate.status().message(), HasSubstr("it is virtual")) << interface;
        }
      });
  if (!obstacle.empty()) GTEST_SKIP() << obstacle;
}

TEST(InterfaceRateTest, LoopbackReportsNone) {
  const Result<double> rate = interface_rate_bps(at("127.0.0.1:0"));
  ASSERT_FALSE(rate.ok());
  EXPECT_EQ(rate.status().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(rate.status().message(), HasSubstr("'lo' reports no rate"));
  EXPECT_THAT(rate.status().message(), HasSubstr("declare"));
}

TEST(InterfaceRateTest, AnAddressOfNoInterfaceIsNamed) {
  EXPECT_EQ(interface_rate_bps(at("0.0.0.0:5151")).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(interface_rate_bps(Address{}).status().code(), ErrorCode::kInvalidArgument);
  const Status elsewhere = interface_rate_bps(at("203.0.113.77:5151")).status();
  EXPECT_EQ(elsewhere.code(), ErrorCode::kUnreachable);
  EXPECT_THAT(elsewhere.message(), HasSubstr("203.0.113.77"));
  EXPECT_EQ(interface_rate_bps(std::string("none-such")).status().code(), ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace netsum::interface_rate_test
