// Packed files of programs: any bytes as a file, and as a step behind a header that is right. What is accepted reads the same
// when it is written and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>

#include "src/program/packed.h"

namespace {

std::string written(const netsum::program::Program& program) {
  std::ostringstream out;
  if (!netsum::program::write_packed(out, program).ok()) std::abort();
  return out.str();
}

void check(const std::string& bytes) {
  std::istringstream in(bytes);
  const auto program = netsum::program::read_packed(in, "input");
  if (!program.ok()) {
    if (program.status().message().empty()) std::abort();
    return;
  }
  const std::string once = written(*program);
  std::istringstream again_in(once);
  const auto again = netsum::program::read_packed(again_in, "input");
  if (!again.ok() || written(*again) != once) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  const std::string magic(netsum::program::kPackedMagic);
  check(input);
  check(magic + netsum::program::packed_block(input));
  // Four ranks without names or groups, and one step.
  const std::string header("\4\0\0\0\0\0\0\1", 8);
  check(magic + netsum::program::packed_block(header) + netsum::program::packed_block(input));
  return 0;
}
