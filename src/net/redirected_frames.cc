#include "src/net/redirected_frames.h"

#include <linux/ethtool.h>
#include <linux/if_link.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "src/base/file_descriptor.h"
#include "src/net/ask_driver.h"

namespace netsum {
namespace {

constexpr int kMostLayers = 8;

bool is_veth(const std::string& interface) {
  ethtool_drvinfo info{};
  info.cmd = ETHTOOL_GDRVINFO;
  return ask_driver(interface, &info) == 0 && std::string_view(info.driver) == "veth";
}

bool has_gro(const std::string& interface) {
  ethtool_value value{.cmd = ETHTOOL_GGRO, .data = 0};
  return ask_driver(interface, &value) != 0 || value.data != 0;
}

// The attribute of that type among those that `first` begins, or nullptr.
const rtattr* find(const rtattr* first, int bytes, unsigned short type) {
  for (const rtattr* one = first; RTA_OK(one, bytes); one = RTA_NEXT(one, bytes)) {
    if ((one->rta_type & NLA_TYPE_MASK) == type) return one;
  }
  return nullptr;
}

bool has_xdp_program(const std::string& interface) {
  const FileDescriptor netlink(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  struct {
    nlmsghdr header;
    ifinfomsg link;
  } request{};
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = RTM_GETLINK;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.link.ifi_index = static_cast<int>(if_nametoindex(interface.c_str()));
  alignas(nlmsghdr) std::array<uint8_t, 32 << 10> reply;
  if (send(netlink.get(), &request, sizeof request, 0) != sizeof request) return false;
  const ssize_t size = recv(netlink.get(), reply.data(), reply.size(), 0);
  const auto* header = reinterpret_cast<const nlmsghdr*>(reply.data());
  if (size < static_cast<ssize_t>(NLMSG_LENGTH(sizeof(ifinfomsg))) || header->nlmsg_type != RTM_NEWLINK ||
      !NLMSG_OK(header, static_cast<size_t>(size)))
    return false;
  const auto* link = static_cast<const ifinfomsg*>(NLMSG_DATA(header));
  const rtattr* xdp = find(IFLA_RTA(link), static_cast<int>(IFLA_PAYLOAD(header)), IFLA_XDP);
  if (xdp == nullptr) return false;
  const rtattr* attached =
      find(static_cast<const rtattr*>(RTA_DATA(xdp)), static_cast<int>(RTA_PAYLOAD(xdp)), IFLA_XDP_ATTACHED);
  return attached != nullptr && *static_cast<const uint8_t*>(RTA_DATA(attached)) != XDP_ATTACHED_NONE;
}

// The interface that this one lies on, as a VLAN or a bridge does; itself if there is none, or several.
std::string lower_of(const std::string& interface) {
  constexpr std::string_view kPrefix = "lower_";
  std::string lower;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/net/" + interface, error)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kPrefix)) continue;
    if (!lower.empty()) return interface;
    lower = name.substr(kPrefix.size());
  }
  return lower.empty() ? interface : lower;
}

}  // namespace

Status takes_redirected_frames(const std::string& interface) {
  std::string lowest = interface;
  for (int layer = 0; layer < kMostLayers && !is_veth(lowest); ++layer) lowest = lower_of(lowest);
  if (!is_veth(lowest) || has_gro(lowest) || has_xdp_program(lowest)) return Status();
  return Status(
      ErrorCode::kUnsupported,
      "interface " + lowest +
          " is a veth without GRO, and the kernel drops what the XDP program redirects to it: turn it "
          "on here with `ethtool -K " +
          lowest + " gro on`");
}

}  // namespace netsum
