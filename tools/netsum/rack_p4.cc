#include "tools/netsum/rack_p4.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "aggregator/p4/sizes.h"
#include "tools/netsum/process.h"
#include "tools/netsum/rack_make.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr char kCompiler[] = "p4c-bm2-ss";
constexpr char kSwitch[] = "simple_switch_grpc";
constexpr std::chrono::minutes kCompilePatience{10};  // fifteen seconds on an idle machine

std::string p4info_path(const RackOptions& options) {
  return rack_folder(options.name) + "/netsum.p4info.bin";
}
std::string config_path(const RackOptions& options) {
  return rack_folder(options.name) + "/netsum.json";
}
std::string socket_path(const RackOptions& options) {
  return rack_folder(options.name) + "/p4runtime";
}

bool is_on_path(const std::string& program) {
  const std::string path = environment("PATH");
  for (size_t at = 0; at <= path.size();) {
    const size_t end = std::min(path.find(':', at), path.size());
    if (access((path.substr(at, end - at) + "/" + program).c_str(), X_OK) == 0) return true;
    at = end + 1;
  }
  return false;
}

Status write_sources(const std::string& folder) {
  for (const P4Source& source : p4_sources()) {
    const fs::path path = fs::path(folder) / source.path;
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    std::ofstream file(path);
    file << source.text;
    file.close();
    if (!file) return {ErrorCode::kInternal, "cannot write " + path.string() + ": " + std::strerror(errno)};
  }
  return {};
}

Status compile(const RackOptions& options) {
  const std::string sources = rack_folder(options.name) + "/p4";
  if (Status status = write_sources(sources); !status.ok()) return status;
  const Result<FinishedProcess> compiled =
      run_process({kCompiler, "-I", sources, "--p4runtime-files", p4info_path(options), "-o",
                   config_path(options), sources + "/" + kP4Program},
                  "", kCompilePatience);
  return compiled.ok() ? compiled->status("p4c cannot compile the P4 program") : compiled.status();
}

bool takes_connections(const std::string& path) {
  const FileDescriptor any(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return connect(any.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

}  // namespace

Status check_p4_programs() {
  for (const char* program : {kCompiler, kSwitch}) {
    if (is_on_path(program)) continue;
    return {ErrorCode::kUnsupported, std::string("the dataplane 'p4' needs p4c and BMv2, and ") + program +
                                         " is not on the PATH: see docs/p4.md"};
  }
  return {};
}

std::string bmv2_log_path(const RackOptions& options) {
  return rack_folder(options.name) + "/bmv2.log";
}

std::vector<std::string> p4_arguments(const RackPlan& plan) {
  std::string numbers;
  for (size_t port = 0; port < plan.top().ports.size(); ++port)
    numbers += (port == 0 ? "" : ",") + std::to_string(port);
  return {"--dataplane",  "p4",
          "--p4runtime",  "unix:" + socket_path(plan.options()),
          "--p4info",     p4info_path(plan.options()),
          "--p4-config",  config_path(plan.options()),
          "--p4-address", plan.top().address,
          "--p4-ports",   numbers};
}

Status start_bmv2(RackNote* note, const RackPlan& plan) {
  const std::string socket = socket_path(note->options), log = bmv2_log_path(note->options);
  if (socket.size() >= sizeof(sockaddr_un::sun_path))
    return {ErrorCode::kInvalidArgument,
            "the path " + socket + " is too long for a socket: choose a shorter one with NETSUM_RACK_DIR"};
  if (Status status = compile(note->options); !status.ok()) return status;
  std::vector<std::string> command = {kSwitch, "--no-p4"};
  const RackNode& node = plan.top();
  for (size_t port = 0; port < node.ports.size(); ++port)
    command.insert(command.end(), {"-i", std::to_string(port) + "@" + node.ports[port]});
  command.insert(command.end(), {"--", "--grpc-server-addr", "unix:" + socket, "--cpu-port",
                                 std::to_string(NETSUM_P4_CONTROL_PORT)});
  const Result<ProcessMark> process = start_detached(node.network_namespace, command, log);
  if (!process.ok()) return process.status();
  note->bmv2 = *process;
  if (Status status = write_note(*note); !status.ok()) return status;
  const auto deadline = Clock::now() + kStartPatience;
  while (!takes_connections(socket)) {
    const bool alive = is_alive(note->bmv2);
    if (!alive || Clock::now() >= deadline)
      return {ErrorCode::kAggregatorLost, std::string("BMv2 ") +
                                              (alive ? "takes no connections" : "has ended") +
                                              "; the end of its log:" + tail_of_log(log)};
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return {};
}

}  // namespace netsum::tool
