#include "api/aggregator_ports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace netsum::aggregator_ports_test {
namespace {

using testing::HasSubstr;

const Address kListen = Address::parse("127.0.0.1:5151").value();

AggregatorOptions with_ports(std::vector<AggregatorPort> ports) {
  AggregatorOptions options;
  options.ports = std::move(ports);
  return options;
}

void expect_refused(const AggregatorOptions& options, ErrorCode code, const char* words) {
  const auto ports = ports_of(options, kListen);
  ASSERT_FALSE(ports.ok());
  EXPECT_EQ(ports.status().code(), code);
  EXPECT_THAT(ports.status().message(), HasSubstr(words));
}

TEST(AggregatorPortsTest, WithoutAnyThePortIsTheListeningAddress) {
  const auto ports = ports_of(AggregatorOptions(), kListen);
  ASSERT_TRUE(ports.ok());
  ASSERT_EQ(ports->size(), 1u);
  EXPECT_EQ(ports->front().address, kListen);
  EXPECT_EQ(ports->front().rate_bps, 0) << "loopback reports none";
}

TEST(AggregatorPortsTest, DeclaredRatesAreTaken) {
  AggregatorOptions one;
  one.link_rate_bps = 40e9;
  EXPECT_EQ(ports_of(one, kListen)->front().rate_bps, 40e9);
  const auto ports = ports_of(with_ports({{"127.0.0.1", 25e9}, {"127.0.0.2", 10e9}}), kListen);
  ASSERT_TRUE(ports.ok()) << ports.status().to_string();
  ASSERT_EQ(ports->size(), 2u);
  EXPECT_EQ((*ports)[0].rate_bps, 25e9);
  EXPECT_EQ((*ports)[1].rate_bps, 10e9);
  EXPECT_EQ((*ports)[1].address.to_string(), "127.0.0.2:0");
  EXPECT_EQ(ports_of(with_ports({{"::1", 25e9}}), kListen)->front().address.to_string(), "[::1]:0");
}

TEST(AggregatorPortsTest, CoresGoToThePortsWithMoreToDo) {
  const std::vector<UdpPort> ports = {{kListen, 10e9}, {kListen, 30e9}};
  std::vector<size_t> count(2);
  std::vector<UdpStripe> stripes = stripes_of(ports, 4);
  ASSERT_EQ(stripes.size(), 4u);
  for (size_t i = 0; i < stripes.size(); ++i) {
    EXPECT_EQ(stripes[i].core, i);
    ++count[stripes[i].port];
  }
  EXPECT_EQ(count[0], 1u);
  EXPECT_EQ(count[1], 3u);
}

TEST(AggregatorPortsTest, WithFewerCoresThanPortsTheLongestIsPlacedFirst) {
  const std::vector<UdpPort> ports = {{kListen, 10e9}, {kListen, 25e9}, {kListen, 10e9}};
  const std::vector<UdpStripe> stripes = stripes_of(ports, 2);
  ASSERT_EQ(stripes.size(), 3u);
  for (size_t i = 0; i < stripes.size(); ++i) EXPECT_EQ(stripes[i].port, i);
  EXPECT_EQ(stripes[0].core, stripes[2].core);
  EXPECT_NE(stripes[0].core, stripes[1].core);
}

TEST(AggregatorPortsTest, WhatCannotBeIsNamed) {
  expect_refused(with_ports({{"127.0.0.1", 25e9}, {"127.0.0.2", 0}}), ErrorCode::kInvalidArgument,
                 "1 of 2 ports: give all of them, or none");
  expect_refused(with_ports({{"127.0.0.1", 25}}), ErrorCode::kInvalidArgument, "port 127.0.0.1 is 25 bit/s");
  expect_refused(with_ports({{"127.0.0.1", -1e9}}), ErrorCode::kInvalidArgument,
                 "port 127.0.0.1 is -1e+09 bit/s");
  expect_refused(with_ports({{"127.0.0.1:99", 25e9}}), ErrorCode::kUnreachable, "127.0.0.1:99");
  expect_refused(with_ports(std::vector<AggregatorPort>(65, {"127.0.0.1", 1e9})), ErrorCode::kInvalidArgument,
                 "at most 64 ports, not 65");
  AggregatorOptions xdp = with_ports({{"127.0.0.1", 25e9}});
  xdp.dataplane = DataplaneKind::kXdp;
  expect_refused(xdp, ErrorCode::kUnsupported, "name the interfaces");
}

}  // namespace
}  // namespace netsum::aggregator_ports_test
