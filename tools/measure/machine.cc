#include "tools/measure/machine.h"

#include <hwy/targets.h>
#include <sched.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>

#include <fstream>

namespace netsum::tool {
namespace {

std::string cpu_model() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

}  // namespace

std::optional<std::string> read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

std::string cpu_simd() {
  // The lowest bit set is the best target; Highway's kernels choose the same way.
  const int64_t targets = hwy::SupportedTargets();
  return hwy::TargetName(targets & -targets);
}

Machine this_machine() {
  Machine machine;
  machine.cpu_model = cpu_model();
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0) machine.cores = CPU_COUNT(&cpus);
  utsname names{};
  if (uname(&names) == 0) machine.kernel = std::string(names.sysname) + " " + names.release;
  struct sysinfo info {};
  if (sysinfo(&info) == 0) machine.memory_bytes = static_cast<uint64_t>(info.totalram) * info.mem_unit;
  return machine;
}

}  // namespace netsum::tool
