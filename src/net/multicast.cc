#include "src/net/multicast.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <charconv>
#include <cstring>
#include <string>

namespace netsum {
namespace {

constexpr uint32_t kLocalControlEnd = 0xE0000100;  // 224.0.0.0/24 ends before this

Status not_a_range(std::string_view text, const std::string& reason) {
  return Status(ErrorCode::kInvalidArgument, "multicast range '" + std::string(text) + "': " + reason +
                                                 "; expected an IPv4 multicast prefix, e.g. 239.1.2.0/24");
}

}  // namespace

Result<MulticastRange> MulticastRange::parse(std::string_view text) {
  const size_t slash = text.find('/');
  const std::string host(text.substr(0, slash));
  in_addr address{};
  if (inet_pton(AF_INET, host.c_str(), &address) != 1) {
    if (host.find(':') != std::string::npos) {
      return not_a_range(text, "results are sent by IPv4 multicast only");
    }
    return not_a_range(text, "'" + host + "' is no IPv4 address");
  }
  uint32_t bits = 32;
  if (slash != std::string_view::npos) {
    const std::string_view number = text.substr(slash + 1);
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), bits);
    if (error != std::errc() || end != number.data() + number.size() || number.empty() || bits > 32) {
      return not_a_range(text, "what follows '/' is not 4 to 32");
    }
  }
  MulticastRange range;
  range.first_ = ntohl(address.s_addr);
  // Class D is 224.0.0.0/4: a shorter prefix reaches beyond it.
  if (range.first_ >> 28 != 0xE || bits < 4) return not_a_range(text, "this is not multicast (224.0.0.0/4)");
  range.size_ = uint32_t{1} << (32 - bits);
  if ((range.first_ & (range.size_ - 1)) != 0) {
    return not_a_range(text, "the address has bits after the first " + std::to_string(bits));
  }
  if (range.first_ < kLocalControlEnd) {
    return not_a_range(text, "224.0.0.0/24 belongs to the protocols of the local network");
  }
  return range;
}

Address MulticastRange::at(uint32_t index) const {
  Address address;
  address.family = 4;
  const uint32_t ip = htonl(first_ + index);
  std::memcpy(address.ip.data(), &ip, sizeof ip);
  return address;
}

}  // namespace netsum
