#include "src/net/udp/local_addresses.h"

#include <cstring>
#include <iterator>

#include "src/base/assert.h"

namespace netsum {
namespace {

Address destination_of(const cmsghdr& control) {
  Address address;
  if (control.cmsg_level == IPPROTO_IP && control.cmsg_type == IP_PKTINFO) {
    in_pktinfo info;
    std::memcpy(&info, CMSG_DATA(&control), sizeof info);
    address.family = 4;
    std::memcpy(address.ip.data(), &info.ipi_spec_dst, sizeof info.ipi_spec_dst);
  } else if (control.cmsg_level == IPPROTO_IPV6 && control.cmsg_type == IPV6_PKTINFO) {
    in6_pktinfo info;
    std::memcpy(&info, CMSG_DATA(&control), sizeof info);
    address.family = 6;
    std::memcpy(address.ip.data(), &info.ipi6_addr, sizeof info.ipi6_addr);
    // Other addresses are the host's, whatever interface the datagram came in by.
    if (address.is_link_local()) address.scope = info.ipi6_ifindex;
  }
  return address;
}

template <typename Info>
size_t write_control(int level, int type, const Info& info, cmsghdr* control) {
  control->cmsg_level = level;
  control->cmsg_type = type;
  control->cmsg_len = CMSG_LEN(sizeof info);
  std::memcpy(CMSG_DATA(control), &info, sizeof info);
  return CMSG_SPACE(sizeof info);
}

}  // namespace

bool LocalAddresses::ask(int fd, int family) {
  const int on = 1;
  return family == 4 ? setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &on, sizeof on) == 0
                     : setsockopt(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, &on, sizeof on) == 0;
}

uint16_t LocalAddresses::number_of(msghdr* message) {
  Address address;
  for (cmsghdr* control = CMSG_FIRSTHDR(message); control != nullptr && !address.valid();
       control = CMSG_NXTHDR(message, control)) {
    address = destination_of(*control);
  }
  if (!address.valid()) return 0;
  if (address == last_) return last_number_;
  const auto found = numbers_.find(address);
  const uint16_t number = found != numbers_.end() ? found->second : new_number(address);
  if (number == 0) return 0;
  Entry& entry = entries_[number - 1];
  if (!entry.answered) unanswered_.splice(unanswered_.end(), unanswered_, entry.place);
  last_ = address;
  last_number_ = number;
  return number;
}

uint16_t LocalAddresses::new_number(const Address& address) {
  if (entries_.size() < kMost) {
    entries_.emplace_back();
    unanswered_.push_back(static_cast<uint16_t>(entries_.size()));
    entries_.back().place = std::prev(unanswered_.end());
  } else if (unanswered_.size() > kLeastUnanswered) {
    const uint16_t oldest = unanswered_.front();
    numbers_.erase(entries_[oldest - 1].address);
    unanswered_.splice(unanswered_.end(), unanswered_, unanswered_.begin());
  } else {
    return 0;
  }
  const uint16_t number = unanswered_.back();
  entries_[number - 1].address = address;
  numbers_.emplace(address, number);
  return number;
}

size_t LocalAddresses::write_source(uint16_t number, cmsghdr* control) {
  NETSUM_ASSERT(number > 0 && number <= entries_.size());
  Entry& entry = entries_[number - 1];
  if (!entry.answered) unanswered_.erase(entry.place);
  entry.answered = true;
  const Address& address = entry.address;
  if (address.family == 4) {
    in_pktinfo info{};
    std::memcpy(&info.ipi_spec_dst, address.ip.data(), sizeof info.ipi_spec_dst);
    return write_control(IPPROTO_IP, IP_PKTINFO, info, control);
  }
  in6_pktinfo info{};
  std::memcpy(&info.ipi6_addr, address.ip.data(), sizeof info.ipi6_addr);
  info.ipi6_ifindex = address.scope;
  return write_control(IPPROTO_IPV6, IPV6_PKTINFO, info, control);
}

}  // namespace netsum
