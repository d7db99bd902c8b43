#include "tools/netsum/usage.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "tools/netsum/exit_codes.h"

namespace netsum::tool {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int write_file(const std::string& path, const std::string& text) {
  std::ofstream stream(path, std::ios::binary);
  stream << text;
  stream.close();
  if (stream) return kExitOk;
  std::fprintf(stderr, "netsum: %s: cannot be written; check the folder and its permissions\n", path.c_str());
  return kExitFailed;
}

}  // namespace netsum::tool
