#include "nccl/device.h"

#include <climits>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>

namespace netsum::nccl {
namespace {

Device describe(const InterfaceAddress& interface) {
  Device device;
  device.name = interface.interface;
  device.address = interface.address;
  device.id = std::hash<std::string>{}(interface.address);
  const std::string folder = "/sys/class/net/" + interface.interface + "/";
  int speed = 0;
  // A virtual interface has no speed, or -1.
  if (std::ifstream(folder + "speed") >> speed && speed > 0) device.speed_mbps = speed;
  const std::unique_ptr<char, decltype(&std::free)> path(realpath((folder + "device").c_str(), nullptr),
                                                         &std::free);
  if (path != nullptr) device.pci = path.get();
  return device;
}

Device choose() {
  const std::string list = process_environment("NCCL_SOCKET_IFNAME");
  for (const InterfaceAddress& each : interface_addresses()) {
    if (selects(list, each.interface)) return describe(each);
  }
  return describe({"lo", "127.0.0.1"});
}

}  // namespace

bool selects(const std::string& list, const std::string& interface) {
  if (list.empty()) return !interface.starts_with("docker");
  const bool others = list[0] == '^';
  std::string rest = list.substr(others ? 1 : 0);
  const bool equal = !rest.empty() && rest[0] == '=';
  if (equal) rest.erase(0, 1);
  bool listed = false;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(','), rest.size());
    const std::string word = rest.substr(0, end);
    rest.erase(0, std::min(end + 1, rest.size()));
    listed = listed || (!word.empty() && (equal ? interface == word : interface.starts_with(word)));
  }
  return listed != others;
}

const Device& device() {
  static const Device chosen = choose();
  return chosen;
}

}  // namespace netsum::nccl
