#include "tests/conformance/veth_network.h"

#include <fcntl.h>
#include <sched.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <thread>

#include "tests/conformance/ip_batch.h"

namespace netsum {
namespace {

constexpr int kSwitchNumber = 254;

Status failed(const std::string& what) {
  return Status(ErrorCode::kInternal, what);
}

Address address_of(int number, uint16_t port) {
  Address address = Address::parse("10.77.0.0:0").value();
  address.ip[3] = static_cast<uint8_t>(number);
  address.port = port;
  return address;
}

// A locally administered one, so that others can know it beforehand.
std::string mac_of(int host) {
  char text[18];
  std::snprintf(text, sizeof text, "02:00:00:00:00:%02x", host + 1);
  return text;
}

Result<FileDescriptor> new_namespace() {
  FileDescriptor fd;
  int error = 0;
  std::thread([&] {
    if (unshare(CLONE_NEWNET) != 0) {
      error = errno;
      return;
    }
    // Not closed on exec: `ip` finds the namespace as a descriptor of ours.
    fd = FileDescriptor(open("/proc/thread-self/ns/net", O_RDONLY));
    if (!fd.valid()) error = errno;
  }).join();
  if (error == EPERM) return Status(ErrorCode::kPermissionDenied, "making a network namespace needs root");
  if (error != 0) return failed(std::string("cannot make a network namespace: ") + std::strerror(error));
  return fd;
}

void run_in(int namespace_fd, const std::function<void()>& body) {
  std::thread([&] {
    if (setns(namespace_fd, CLONE_NEWNET) == 0) body();
  }).join();
}

Status ip_batch_in(int namespace_fd, const std::string& lines) {
  Status status(ErrorCode::kInternal, "cannot enter a network namespace");
  run_in(namespace_fd, [&] { status = ip_batch(lines); });
  return status;
}

}  // namespace

Result<std::unique_ptr<VethNetwork>> VethNetwork::make(int hosts, int mtu, bool known_neighbours) {
  std::unique_ptr<VethNetwork> network(new VethNetwork);
  Result<FileDescriptor> ethernet = new_namespace();
  if (!ethernet.ok()) return ethernet.status();
  network->switch_ = std::move(ethernet).value();

  const std::string with_mtu = " mtu " + std::to_string(mtu);
  std::string ports = "link add br0" + with_mtu + " type bridge forward_delay 0\naddress add 10.77.0." +
                      std::to_string(kSwitchNumber) + "/24 dev br0\nlink set br0 up\n";
  for (int host = 0; host < hosts; ++host) {
    Result<FileDescriptor> space = new_namespace();
    if (!space.ok()) return space.status();
    const std::string n = std::to_string(host);
    const std::string path = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(space->get());
    ports += "link add p" + n + with_mtu + " type veth peer name e" + n + with_mtu + " address " +
             mac_of(host) + " netns " + path + "\nlink set p" + n + " master br0 up\n";
    network->hosts_.push_back(std::move(space).value());
  }
  if (const Status status = ip_batch_in(network->switch_.get(), ports); !status.ok()) return status;

  for (int host = 0; host < hosts; ++host) {
    const std::string interface = "e" + std::to_string(host);
    std::string lines = "link set lo up\nlink set " + interface + " up\naddress add 10.77.0." +
                        std::to_string(host + 1) + "/24 dev " + interface + "\n";
    for (int other = 0; known_neighbours && other < hosts; ++other) {
      lines += "neighbour replace 10.77.0." + std::to_string(other + 1) + " lladdr " + mac_of(other) +
               " dev " + interface + " nud permanent\n";
    }
    if (const Status status = ip_batch_in(network->hosts_[host].get(), lines); !status.ok()) return status;
  }
  return network;
}

Address VethNetwork::address(int host, uint16_t port) const {
  return address_of(host + 1, port);
}

Address VethNetwork::switch_address(uint16_t port) const {
  return address_of(kSwitchNumber, port);
}

void VethNetwork::in_host(int host, const std::function<void()>& body) const {
  run_in(hosts_[host].get(), body);
}

void VethNetwork::in_switch(const std::function<void()>& body) const {
  run_in(switch_.get(), body);
}

Status VethNetwork::ip_in_host(int host, const std::string& command) const {
  return ip_batch_in(hosts_[host].get(), command + "\n");
}

}  // namespace netsum
