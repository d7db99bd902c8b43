// An IPv4 or IPv6 UDP endpoint as a plain value.
#ifndef NETSUM_SRC_NET_ADDRESS_H_
#define NETSUM_SRC_NET_ADDRESS_H_

#include <array>
#include <bit>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "netsum/status.h"

struct sockaddr_storage;

namespace netsum {

struct Address {
  std::array<uint8_t, 16> ip{};  // IPv4 in the first four bytes
  uint32_t scope = 0;            // IPv6 link-local scope
  uint16_t port = 0;             // host byte order
  uint8_t family = 0;            // 4, 6, or 0: none

  auto operator<=>(const Address&) const = default;
  bool operator==(
      const Address& other) const {  // without a call of memcmp: engines compare the address of each packet
    const auto ours = std::bit_cast<std::array<uint64_t, 2>>(ip);
    const auto theirs = std::bit_cast<std::array<uint64_t, 2>>(other.ip);
    return port == other.port && ours[0] == theirs[0] && ours[1] == theirs[1] && scope == other.scope &&
           family == other.family;
  }
  bool valid() const { return family != 0; }
  bool is_loopback() const;
  bool is_wildcard() const;
  bool is_link_local()
      const;  // IPv6. Its scope is a number of this host's interfaces, which other hosts number otherwise
  std::string to_string() const;  // "10.0.0.1:5151", "[fe80::1%2]:5151"

  // Numeric addresses only: "10.0.0.1:5151", "[::1]:5151". An IPv4-mapped IPv6 address becomes the IPv4 one.
  static Result<Address> parse(std::string_view text);
  // Also names, through getaddrinfo (blocks). A name with addresses of both kinds gives an IPv4 address, because an aggregator
  // listens on 0.0.0.0 by default. Errors: kInvalidArgument, kUnreachable (no such
  // name).
  static Result<Address> resolve(std::string_view host_and_port);

  // Returns the length written to `out`: 0 for an address that is not valid().
  uint32_t to_sockaddr(sockaddr_storage* out) const;
  // Not valid() unless `from` holds an IPv4 or IPv6 address.
  static Address from_sockaddr(const sockaddr_storage& from);
};

// Splits "host:port" or "[v6]:port". Error: kInvalidArgument, which quotes `text` and the expected form.
struct HostPort {
  std::string host;
  uint16_t port = 0;
};
Result<HostPort> split_host_port(std::string_view text);

// The local address, with port 0, from which this host would send to `remote` (by a routing lookup; nothing
// is sent). Errors: kInvalidArgument, kUnreachable (no route).
Result<Address> local_address_towards(const Address& remote);

}  // namespace netsum

#endif  // NETSUM_SRC_NET_ADDRESS_H_
