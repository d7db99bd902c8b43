// Files of programs: any text. What is accepted reads the same when it is written and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>

#include "src/program/json_lines.h"

namespace {

std::string written(const netsum::program::Program& program) {
  std::ostringstream out;
  if (!netsum::program::write_program(out, program).ok()) std::abort();
  return out.str();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::istringstream in(std::string(reinterpret_cast<const char*>(data), size));
  const auto program = netsum::program::read_program(in, "input");
  if (!program.ok()) {
    if (program.status().message().empty()) std::abort();
    return 0;
  }
  const std::string text = written(*program);
  std::istringstream again_in(text);
  const auto again = netsum::program::read_program(again_in, "input");
  if (!again.ok() || written(*again) != text) std::abort();
  return 0;
}
