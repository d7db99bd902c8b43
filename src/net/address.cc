#include "src/net/address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

namespace netsum {
namespace {

constexpr std::array<uint8_t, 12> kMappedPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

Status not_an_address(std::string_view text, std::string_view reason) {
  return Status(ErrorCode::kInvalidArgument, "address \"" + std::string(text) + "\": " + std::string(reason) +
                                                 "; expected host:port or [IPv6]:port");
}

template <typename Number>
bool parse_number(std::string_view text, Number* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

Address make_ipv4(const uint8_t* bytes, uint16_t port) {
  Address address;
  address.family = 4;
  address.port = port;
  std::copy_n(bytes, 4, address.ip.begin());
  return address;
}

// The IPv6 sockets of netsum are IPv6-only, so a mapped address is usable only as its IPv4 address.
Address make_ipv6(const uint8_t* bytes, uint32_t scope, uint16_t port) {
  if (std::equal(kMappedPrefix.begin(), kMappedPrefix.end(), bytes)) return make_ipv4(bytes + 12, port);
  Address address;
  address.family = 6;
  address.port = port;
  address.scope = scope;
  std::copy_n(bytes, 16, address.ip.begin());
  return address;
}

// "2" or "eth0"; 0 when there is no such interface.
uint32_t parse_scope(const std::string& text) {
  uint32_t scope = 0;
  if (parse_number(std::string_view(text), &scope)) return scope;
  return if_nametoindex(text.c_str());
}

}  // namespace

bool Address::is_loopback() const {
  if (family == 4) return ip[0] == 127;
  return family == 6 && std::all_of(ip.begin(), ip.end() - 1, [](uint8_t b) { return b == 0; }) &&
         ip[15] == 1;
}

bool Address::is_link_local() const {
  return family == 6 && ip[0] == 0xFE && (ip[1] & 0xC0) == 0x80;
}

bool Address::is_wildcard() const {
  return valid() && std::all_of(ip.begin(), ip.end(), [](uint8_t b) { return b == 0; });
}

std::string Address::to_string() const {
  if (!valid()) return "(no address)";
  char text[INET6_ADDRSTRLEN];
  inet_ntop(family == 4 ? AF_INET : AF_INET6, ip.data(), text, sizeof text);
  std::string host = text;
  if (scope != 0) host.append("%").append(std::to_string(scope));
  std::string address = family == 4 ? host : '[' + host + ']';
  return address.append(":").append(std::to_string(port));
}

Result<Address> Address::parse(std::string_view text) {
  const Result<HostPort> split = split_host_port(text);
  if (!split.ok()) return split.status();
  const HostPort& where = split.value();

  std::array<uint8_t, 16> bytes{};
  if (inet_pton(AF_INET, where.host.c_str(), bytes.data()) == 1) return make_ipv4(bytes.data(), where.port);

  const size_t percent = where.host.find('%');
  if (inet_pton(AF_INET6, where.host.substr(0, percent).c_str(), bytes.data()) != 1) {
    return not_an_address(text, "the host is not a numeric address");
  }
  uint32_t scope = 0;
  if (percent != std::string::npos) {
    scope = parse_scope(where.host.substr(percent + 1));
    if (scope == 0) return not_an_address(text, "there is no interface of the name after '%'");
  }
  return make_ipv6(bytes.data(), scope, where.port);
}

Result<Address> Address::resolve(std::string_view host_and_port) {
  const Result<HostPort> where = split_host_port(host_and_port);
  if (!where.ok()) return where.status();

  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(where.value().host.c_str(), std::to_string(where.value().port).c_str(), &hints, &found);
  if (error != 0) {
    return Status(ErrorCode::kUnreachable,
                  "cannot resolve \"" + where.value().host + "\": " + gai_strerror(error) +
                      "; check the spelling and the name service, or give a numeric address");
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);

  Address first;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    sockaddr_storage storage{};
    std::memcpy(&storage, entry->ai_addr, std::min<size_t>(entry->ai_addrlen, sizeof storage));
    const Address address = from_sockaddr(storage);
    if (address.family == 4) return address;
    if (!first.valid()) first = address;
  }
  if (first.valid()) return first;
  return Status(ErrorCode::kUnreachable,
                "\"" + where.value().host + "\" has neither an IPv4 nor an IPv6 address");
}

uint32_t Address::to_sockaddr(sockaddr_storage* out) const {
  if (family == 4) {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    std::memcpy(&v4.sin_addr, ip.data(), 4);
    std::memcpy(out, &v4, sizeof v4);
    return sizeof v4;
  }
  if (family == 6) {
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    v6.sin6_scope_id = scope;
    std::memcpy(&v6.sin6_addr, ip.data(), 16);
    std::memcpy(out, &v6, sizeof v6);
    return sizeof v6;
  }
  return 0;
}

Address Address::from_sockaddr(const sockaddr_storage& from) {
  if (from.ss_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, &from, sizeof v4);
    return make_ipv4(reinterpret_cast<const uint8_t*>(&v4.sin_addr), ntohs(v4.sin_port));
  }
  if (from.ss_family == AF_INET6) {
    sockaddr_in6 v6;
    std::memcpy(&v6, &from, sizeof v6);
    return make_ipv6(v6.sin6_addr.s6_addr, v6.sin6_scope_id, ntohs(v6.sin6_port));
  }
  return {};
}

Result<HostPort> split_host_port(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return not_an_address(text, "there is no port");
  std::string_view host = text.substr(0, colon);
  HostPort out;
  if (!parse_number(text.substr(colon + 1), &out.port)) {
    return not_an_address(text, "the port is not a number from 0 to 65535");
  }
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
    if (host.find(':') == std::string_view::npos)
      return not_an_address(text, "brackets are for IPv6 addresses");
  } else if (host.find(':') != std::string_view::npos) {
    return not_an_address(text, "an IPv6 address must stand in brackets");
  }
  if (host.empty()) return not_an_address(text, "there is no host");
  if (host.find_first_of("[] \t\n") != std::string_view::npos || host.find('\0') != std::string_view::npos) {
    return not_an_address(text, "the host has a character that no host has");
  }
  out.host = host;
  return out;
}

Result<Address> local_address_towards(const Address& remote) {
  if (!remote.valid())
    return Status(ErrorCode::kInvalidArgument, "local_address_towards: no remote address given");
  const int fd = socket(remote.family == 4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage name{};
  socklen_t size = remote.to_sockaddr(&name);
  // connect() on a UDP socket only looks up the route.
  int error = 0;
  if (fd < 0 || connect(fd, reinterpret_cast<const sockaddr*>(&name), size) != 0) error = errno;
  size = sizeof name;
  if (error == 0 && getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0) error = errno;
  if (fd >= 0) close(fd);
  if (error != 0) {
    return Status(ErrorCode::kUnreachable, "no route to " + remote.to_string() + ": " + std::strerror(error) +
                                               "; check the address and this host's routes");
  }
  Address local = Address::from_sockaddr(name);
  local.port = 0;
  return local;
}

}  // namespace netsum
