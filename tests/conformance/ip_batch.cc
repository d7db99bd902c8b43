#include "tests/conformance/ip_batch.h"

#include <cstdio>

namespace netsum {

Status ip_batch(const std::string& lines) {
  FILE* ip = popen("ip -batch -", "w");
  if (ip == nullptr) return Status(ErrorCode::kUnsupported, "cannot run ip (iproute2)");
  std::fputs(lines.c_str(), ip);
  return pclose(ip) == 0 ? Status() : Status(ErrorCode::kUnsupported, "ip failed on one of:\n" + lines);
}

}  // namespace netsum
