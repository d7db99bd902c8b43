#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timex.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <set>

#include "src/net/af_xdp/af_xdp_io.h"
#include "src/net/interface_rate.h"
#include "tools/measure/machine.h"
#include "tools/netsum/doctor_checks.h"
#include "tools/netsum/quantity.h"

namespace netsum::tool {
namespace {

constexpr int64_t kWantedSocketBuffer = 8 << 20;  // what src/net/udp asks for
constexpr int kWantedKernel = 5;                  // UDP GSO is in 4.18, GRO in 5.0
constexpr rlim_t kWantedFiles = 1024;

Finding check_kernel(const Machine& machine) {
  const size_t space = machine.kernel.find(' ');
  int major = 0;
  if (space != std::string::npos) {
    const char* from = machine.kernel.data() + space + 1;
    std::from_chars(from, machine.kernel.data() + machine.kernel.size(), major);
  }
  Finding finding{Grade::kOk, "kernel", machine.kernel, ""};
  if (major < kWantedKernel) {
    finding.grade = Grade::kWarn;
    finding.advice = "Linux 5.0 or later has UDP GRO, which saves CPU time per packet; consider an upgrade";
  }
  return finding;
}

// Tries the socket option, as the kernel's version says little about what is compiled in.
Finding check_udp_option(const char* name, int option) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const int value = 1;
  const bool works = fd >= 0 && setsockopt(fd, SOL_UDP, option, &value, sizeof(value)) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (works) return {Grade::kOk, name, "available", ""};
  return {Grade::kWarn, name, std::string("not available: ") + std::strerror(error),
          "netsum works without it at more CPU time per packet; a newer kernel has it"};
}

// Not to have it is nothing to warn of: workers use UDP unless they are told otherwise.
Finding check_af_xdp() {
  const Status status = probe_af_xdp();
  return {Grade::kOk, "AF_XDP",
          status.ok() ? "available (--packet-io af_xdp)" : "not available: " + status.message(), ""};
}

Finding check_socket_limit(const char* name) {
  const std::string key = std::string("net.core.") + name;
  const std::optional<std::string> line = read_line(std::string("/proc/sys/net/core/") + name);
  // In a network namespace of its own a container does not see the limit.
  if (!line)
    return {Grade::kOk, key, "not visible here (container); set it on the host if packets are lost", ""};
  int64_t limit = 0;
  std::from_chars(line->data(), line->data() + line->size(), limit);
  Finding finding{Grade::kOk, key, *line + " bytes", ""};
  if (limit < kWantedSocketBuffer) {
    finding.grade = Grade::kWarn;
    finding.advice = "bursts may overflow socket buffers and be resent; as root: sysctl -w " + key + "=" +
                     std::to_string(kWantedSocketBuffer);
  }
  return finding;
}

Finding check_cpu(const Machine& machine) {
  return {Grade::kOk, "CPU", machine.cpu_model + ", SIMD " + cpu_simd(), ""};
}

Finding check_cores(const Machine& machine) {
  Finding finding{Grade::kOk, "cores", std::to_string(machine.cores), ""};
  if (machine.cores < 2) {
    finding.grade = Grade::kWarn;
    finding.advice =
        "with one core the engine's thread competes with the program; give the process two or more";
  }
  return finding;
}

Finding check_clock_source() {
  const std::optional<std::string> source =
      read_line("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  if (!source) return {Grade::kOk, "clock source", "not visible here", ""};
  Finding finding{Grade::kOk, "clock source", *source, ""};
  static const std::set<std::string> kSlow = {"hpet", "acpi_pm", "jiffies", "refined-jiffies"};
  if (kSlow.contains(*source)) {
    finding.grade = Grade::kWarn;
    finding.advice =
        "reading this clock is slow or coarse; see "
        "/sys/devices/system/clocksource/clocksource0/available_clocksource for a better one (tsc)";
  }
  return finding;
}

Finding check_clock_sync() {
  timex state{};
  if (adjtimex(&state) < 0) {
    return {Grade::kWarn, "clock synchronisation", std::string("cannot be read: ") + std::strerror(errno),
            ""};
  }
  if ((state.status & STA_UNSYNC) == 0) return {Grade::kOk, "clock synchronisation", "synchronised", ""};
  return {Grade::kWarn, "clock synchronisation", "the kernel says the clock is not synchronised",
          "sums do not depend on it, but logs of several machines will not line up; run chrony or "
          "systemd-timesyncd (a virtual machine may be kept in time by its host)"};
}

Finding check_interface(const std::string& name, bool up, bool loopback) {
  const std::string mtu = read_line("/sys/class/net/" + name + "/mtu").value_or("unknown");
  const Result<double> rate = interface_rate_bps(name);
  const std::string reports = rate.ok() ? ", " + format_rate(static_cast<uint64_t>(*rate)) : "";
  Finding finding{Grade::kOk, "interface " + name, (up ? "up, MTU " : "down, MTU ") + mtu + reports, ""};
  int value = 0;
  std::from_chars(mtu.data(), mtu.data() + mtu.size(), value);
  if (up && !loopback && value > 0 && value < 1500) {
    finding.grade = Grade::kWarn;
    finding.advice = "below 1500: start with --mtu " + mtu + " on all ranks, or raise it: ip link set " +
                     name + " mtu 1500";
  }
  return finding;
}

std::vector<Finding> check_interfaces() {
  std::vector<Finding> findings;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return findings;
  std::set<std::string> seen;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (!seen.insert(entry->ifa_name).second) continue;
    findings.push_back(check_interface(entry->ifa_name, (entry->ifa_flags & IFF_UP) != 0,
                                       (entry->ifa_flags & IFF_LOOPBACK) != 0));
  }
  freeifaddrs(list);
  return findings;
}

Finding check_open_files() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  Finding finding{Grade::kOk, "open files", "limit " + std::to_string(limit.rlim_cur), ""};
  if (limit.rlim_cur < kWantedFiles) {
    finding.grade = Grade::kWarn;
    finding.advice =
        "an aggregator holds one connection per member; raise it: ulimit -n " + std::to_string(kWantedFiles);
  }
  return finding;
}

// Drivers of accelerators may pin memory beyond it, so it is nothing to warn of.
Finding check_locked_memory() {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  const std::string found =
      limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur >> 10) + " KiB";
  return {Grade::kOk, "locked memory", "limit " + found, ""};
}

}  // namespace

std::vector<Finding> check_machine() {
  const Machine machine = this_machine();
  std::vector<Finding> findings = {check_kernel(machine),
                                   check_udp_option("UDP GSO (UDP_SEGMENT)", UDP_SEGMENT),
                                   check_udp_option("UDP GRO", UDP_GRO),
                                   check_af_xdp(),
                                   check_socket_limit("rmem_max"),
                                   check_socket_limit("wmem_max"),
                                   check_cpu(machine),
                                   check_cores(machine),
                                   check_clock_source(),
                                   check_clock_sync()};
  for (Finding& finding : check_interfaces()) findings.push_back(std::move(finding));
  findings.push_back(check_open_files());
  findings.push_back(check_locked_memory());
  return findings;
}

}  // namespace netsum::tool
