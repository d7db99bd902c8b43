#include "tools/netsum/rack_system.h"

#include <cap-ng.h>
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "tools/netsum/process.h"

namespace netsum::tool {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kCommandLimit{20'000};
constexpr milliseconds kTermPatience{2'000};
constexpr milliseconds kPoll{5};
constexpr char kNetnsFolder[] = "/run/netns/";

Status failed(const std::string& message) {
  return Status(ErrorCode::kInternal, message);
}

// Field 22 of /proc/PID/stat; 0 if there is no such process, or it has ended and was not waited for.
uint64_t start_ticks_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  std::getline(file, stat, '\0');
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(stat.substr(name_end + 2));
  std::string field;
  fields >> field;
  if (field == "Z" || field == "X") return 0;
  for (int i = 4; i <= 22; ++i) fields >> field;
  return std::strtoull(field.c_str(), nullptr, 10);
}

std::vector<ProcessMark> processes_in(const std::string& network_namespace) {
  std::vector<ProcessMark> marks;
  const auto listed = run_process({"ip", "netns", "pids", network_namespace}, "", kCommandLimit);
  if (!listed.ok()) return marks;
  std::istringstream numbers(listed->out);
  for (pid_t pid = 0; numbers >> pid;) marks.push_back({pid, start_ticks_of(pid)});
  return marks;
}

void delete_links(const std::string& network_namespace) {
  const InNetworkNamespace inside(network_namespace);
  if (!inside.status().ok()) return;
  std::string lines;
  struct if_nameindex* const all = if_nameindex();
  for (const struct if_nameindex* one = all; one != nullptr && one->if_index != 0; ++one) {
    if (std::strcmp(one->if_name, "lo") != 0) lines += std::string("link del ") + one->if_name + "\n";
  }
  if_freenameindex(all);
  // With a link its other end goes, too, so deleting that fails.
  static_cast<void>(run_process({"ip", "-force", "-batch", "-"}, lines, kCommandLimit));
}

Status set_offloads(const std::string& network_namespace, const std::string& interface,
                    std::vector<ethtool_value> values) {
  const InNetworkNamespace inside(network_namespace);
  if (!inside.status().ok()) return inside.status();
  const FileDescriptor any_socket(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  for (ethtool_value& value : values) {
    ifreq request{};
    interface.copy(request.ifr_name, sizeof(request.ifr_name) - 1);
    request.ifr_data = reinterpret_cast<char*>(&value);
    if (ioctl(any_socket.get(), SIOCETHTOOL, &request) == 0) continue;
    return failed("cannot change the offloads of " + interface + " in " + network_namespace + ": " +
                  std::strerror(errno));
  }
  return Status();
}

}  // namespace

std::string missing_privilege() {
  capng_get_caps_process();
  std::string missing;
  if (capng_have_capability(CAPNG_EFFECTIVE, CAP_NET_ADMIN) == 0) missing = "CAP_NET_ADMIN (to make links)";
  if (capng_have_capability(CAPNG_EFFECTIVE, CAP_SYS_ADMIN) == 0) {
    missing += std::string(missing.empty() ? "" : " and ") + "CAP_SYS_ADMIN (to make network namespaces)";
  }
  if (missing.empty()) return "";
  return "a virtual rack needs " + missing +
         ", which this process lacks: run it as root, e.g. with sudo. Without root, `netsum bench allreduce "
         "--workers 4` works over loopback";
}

Status run_batch(const RackBatch& batch) {
  std::vector<std::string> words = {batch.program};
  if (!batch.network_namespace.empty()) words.insert(words.end(), {"-n", batch.network_namespace});
  words.insert(words.end(), {"-batch", "-"});
  std::string input;
  for (const std::string& line : batch.lines) input += line + "\n";
  const Result<FinishedProcess> finished = run_process(words, input, kCommandLimit);
  if (!finished.ok()) return finished.status();
  // "Command failed -:3" names the line.
  const std::string& err = finished->err;
  const size_t mark = err.rfind("-:");
  const size_t number = mark == std::string::npos ? 0 : std::strtoul(err.c_str() + mark + 2, nullptr, 10);
  const std::string line =
      number >= 1 && number <= batch.lines.size() ? batch.lines[number - 1] : batch.lines.front();
  const std::string where = batch.network_namespace.empty() ? "" : " -n " + batch.network_namespace;
  return finished->status(batch.program + where + " " + line);
}

Status switch_gro_on(const std::string& network_namespace, const std::string& interface) {
  return set_offloads(network_namespace, interface, {{ETHTOOL_SGRO, 1}});
}

Status switch_send_offloads_off(const std::string& network_namespace, const std::string& interface) {
  return set_offloads(network_namespace, interface,
                      {{ETHTOOL_STXCSUM, 0}, {ETHTOOL_STSO, 0}, {ETHTOOL_SGSO, 0}});
}

Status set_network_parameter(const std::string& network_namespace, const std::string& name,
                             const std::string& value) {
  const InNetworkNamespace inside(network_namespace);
  if (!inside.status().ok()) return inside.status();
  const std::string path = "/proc/sys/net/" + name;
  std::ofstream file(path);
  file << value << std::flush;
  return file ? Status()
              : failed("cannot write " + path + " in " + network_namespace + ": " + std::strerror(errno));
}

std::vector<std::string> named_network_namespaces() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(kNetnsFolder, error))
    names.push_back(entry.path().filename());
  return names;
}

Status delete_network_namespace(const std::string& name) {
  if (!fs::exists(kNetnsFolder + name)) return Status();
  for (const ProcessMark& mark : processes_in(name)) end_process(mark);
  // The kernel deletes a namespace some time after its name; the links must be gone when this returns.
  delete_links(name);
  const auto deleted = run_process({"ip", "netns", "del", name}, "", kCommandLimit);
  if (!deleted.ok()) return deleted.status();
  return fs::exists(kNetnsFolder + name) ? deleted->status() : Status();
}

Status enter_network_namespace(const std::string& name) {
  const FileDescriptor there(open((kNetnsFolder + name).c_str(), O_RDONLY | O_CLOEXEC));
  if (!there.valid())
    return failed("there is no network namespace " + name + ": is the rack up? See `netsum rack status`");
  if (setns(there.get(), CLONE_NEWNET) == 0) return Status();
  return failed("cannot enter network namespace " + name + ": " + std::strerror(errno));
}

InNetworkNamespace::InNetworkNamespace(const std::string& name)
    : home_(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)), status_(enter_network_namespace(name)) {}

InNetworkNamespace::~InNetworkNamespace() {
  if (status_.ok()) static_cast<void>(setns(home_.get(), CLONE_NEWNET));
}

bool is_alive(const ProcessMark& mark) {
  return mark.pid > 0 && mark.start_ticks != 0 && start_ticks_of(mark.pid) == mark.start_ticks;
}

Result<ProcessMark> start_detached(const std::string& network_namespace,
                                   const std::vector<std::string>& command, const std::string& log) {
  const FileDescriptor nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const FileDescriptor out(open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!out.valid()) return failed("cannot write " + log + ": " + std::strerror(errno));
  const InNetworkNamespace inside(network_namespace);  // the child inherits it
  if (!inside.status().ok()) return inside.status();
  const Result<pid_t> pid = start_process(command, {nothing.get(), out.get(), out.get()}, true);
  if (!pid.ok()) return pid.status();
  return ProcessMark{*pid, start_ticks_of(*pid)};
}

void end_process(const ProcessMark& mark) {
  for (const int signal : {SIGTERM, SIGKILL}) {
    const auto deadline = Clock::now() + kTermPatience;
    if (is_alive(mark)) kill(mark.pid, signal);
    while (is_alive(mark) && Clock::now() < deadline) std::this_thread::sleep_for(kPoll);
  }
}

}  // namespace netsum::tool
