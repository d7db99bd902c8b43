// Facts about this machine, as reports and checks need them.
#ifndef NETSUM_TOOLS_MEASURE_MACHINE_H_
#define NETSUM_TOOLS_MEASURE_MACHINE_H_

#include <cstdint>
#include <optional>
#include <string>

namespace netsum::tool {

struct Machine {
  std::string cpu_model;
  int cores = 1;  // that this process may run on
  std::string kernel;
  uint64_t memory_bytes = 0;
};

Machine this_machine();

// First line of a small file such as those in /proc and /sys; nothing if it cannot be read.
std::optional<std::string> read_line(const std::string& path);

// Widest SIMD set that this CPU offers: "AVX-512", "AVX2", ...
std::string cpu_simd();

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_MEASURE_MACHINE_H_
