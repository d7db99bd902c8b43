#include "src/net/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace netsum::address_test {
namespace {

using testing::HasSubstr;

TEST(AddressTest, ParsesAndPrintsTheSameText) {
  for (const char* text : {"10.0.0.1:5151", "0.0.0.0:0", "255.255.255.255:65535", "[::1]:5151", "[::]:0",
                           "[2001:db8::7]:65535", "[fe80::1%2]:5151"}) {
    const Result<Address> address = Address::parse(text);
    ASSERT_TRUE(address.ok()) << address.status().to_string();
    EXPECT_EQ(address.value().to_string(), text);
  }
}

TEST(AddressTest, ScopeMayBeAnInterfaceName) {
  const Result<Address> address = Address::parse("[fe80::1%lo]:1");
  ASSERT_TRUE(address.ok()) << address.status().to_string();
  EXPECT_NE(address.value().scope, 0u);
}

TEST(AddressTest, MappedAddressBecomesIpv4) {
  const Result<Address> address = Address::parse("[::ffff:10.0.0.1]:7");
  ASSERT_TRUE(address.ok()) << address.status().to_string();
  EXPECT_EQ(address.value().to_string(), "10.0.0.1:7");
}

struct BadText {
  std::string text;
  const char* reason;
};

TEST(AddressTest, RefusesBadTextAndSaysWhy) {
  const BadText cases[] = {
      {"", "no port"},
      {"10.0.0.1", "no port"},
      {"10.0.0.1:", "port is not a number"},
      {"10.0.0.1:65536", "port is not a number"},
      {"10.0.0.1:-1", "port is not a number"},
      {"10.0.0.1:+1", "port is not a number"},
      {"10.0.0.1:12x", "port is not a number"},
      {":5151", "no host"},
      {"::1:5151", "must stand in brackets"},
      {"[::1]", "port is not a number"},
      {"[::1]5151", "port is not a number"},
      {"[10.0.0.1]:1", "brackets are for IPv6"},
      {"[::1:1", "must stand in brackets"},
      {"10.0.0:1", "not a numeric address"},
      {"10.0.0.1.2:1", "not a numeric address"},
      {"node7:1", "not a numeric address"},
      {"[::1::2]:1", "not a numeric address"},
      {"[fe80::1%]:1", "no interface"},
      {"[fe80::1%no-such-interface]:1", "no interface"},
      {"a b:1", "character that no host has"},
      {std::string("10.0.0.1\0:1", 11), "character that no host has"},
  };
  for (const BadText& bad : cases) {
    const Result<Address> address = Address::parse(bad.text);
    ASSERT_FALSE(address.ok()) << bad.text;
    EXPECT_EQ(address.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(address.status().message(), HasSubstr(bad.reason)) << bad.text;
    EXPECT_THAT(address.status().message(), HasSubstr("\"" + bad.text + "\""));
  }
}

TEST(AddressTest, SurvivesTheSocketForm) {
  for (const char* text : {"10.0.0.1:5151", "[2001:db8::7]:65535", "[fe80::1%2]:5151"}) {
    const Address address = Address::parse(text).value();
    sockaddr_storage storage{};
    EXPECT_EQ(address.to_sockaddr(&storage),
              address.family == 4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    EXPECT_EQ(Address::from_sockaddr(storage), address);
  }
  sockaddr_storage storage{};
  EXPECT_EQ(Address().to_sockaddr(&storage), 0u);
  EXPECT_FALSE(Address::from_sockaddr(storage).valid());
}

TEST(AddressTest, KnowsLoopbackAndWildcard) {
  EXPECT_TRUE(Address::parse("127.3.2.1:1").value().is_loopback());
  EXPECT_TRUE(Address::parse("[::1]:1").value().is_loopback());
  EXPECT_FALSE(Address::parse("10.0.0.1:1").value().is_loopback());
  EXPECT_FALSE(Address::parse("[::2]:1").value().is_loopback());
  EXPECT_TRUE(Address::parse("0.0.0.0:1").value().is_wildcard());
  EXPECT_TRUE(Address::parse("[::]:1").value().is_wildcard());
  EXPECT_FALSE(Address::parse("127.0.0.1:1").value().is_wildcard());
  EXPECT_FALSE(Address().is_wildcard());
}

TEST(AddressTest, ResolvesNumbersAndLocalhost) {
  EXPECT_EQ(Address::resolve("10.0.0.1:7").value().to_string(), "10.0.0.1:7");
  EXPECT_EQ(Address::resolve("[2001:db8::7]:7").value().to_string(), "[2001:db8::7]:7");
  const Result<Address> local = Address::resolve("localhost:7");
  ASSERT_TRUE(local.ok()) << local.status().to_string();
  EXPECT_TRUE(local.value().is_loopback());
  EXPECT_EQ(local.value().port, 7);
}

TEST(AddressTest, NamesTheHostThatDoesNotResolve) {
  // A label of over 63 characters is never sent to a name server.
  const std::string host(70, 'x');
  const Result<Address> address = Address::resolve(host + ":7");
  ASSERT_FALSE(address.ok());
  EXPECT_EQ(address.status().code(), ErrorCode::kUnreachable);
  EXPECT_THAT(address.status().message(), HasSubstr(host));
}

TEST(AddressTest, LoopbackIsReachedFromLoopback) {
  const Result<Address> local = local_address_towards(Address::parse("127.0.0.1:5151").value());
  ASSERT_TRUE(local.ok()) << local.status().to_string();
  EXPECT_TRUE(local.value().is_loopback());
  EXPECT_EQ(local.value().port, 0);
  EXPECT_EQ(local_address_towards(Address()).status().code(), ErrorCode::kInvalidArgument);
}

TEST(AddressTest, SaysThatThereIsNoRoute) {
  // Link-local addresses have no route without a scope, and this interface does not exist.
  const Result<Address> local = local_address_towards(Address::parse("[fe80::1%2000000000]:1").value());
  ASSERT_FALSE(local.ok());
  EXPECT_EQ(local.status().code(), ErrorCode::kUnreachable);
  EXPECT_THAT(local.status().message(), HasSubstr("fe80::1"));
}

}  // namespace
}  // namespace netsum::address_test
