#include "tools/netsum/trace_merge.h"

#include <cstdio>
#include <fstream>

namespace netsum::tool {

// The files are large, and have a line per event, so they are joined as text.
Status merge_traces(const std::vector<std::string>& parts, const std::string& path) {
  std::ofstream merged(path, std::ios::binary | std::ios::trunc);
  merged << "{\"traceEvents\":[\n";
  bool any = false;
  for (const std::string& part : parts) {
    std::ifstream file(part, std::ios::binary);
    std::string line;
    if (!std::getline(file, line)) continue;  // the head
    while (std::getline(file, line) && !line.starts_with(']')) {
      if (!line.empty() && line.back() == ',') line.pop_back();
      merged << (any ? ",\n" : "") << line;
      any = true;
    }
    std::remove(part.c_str());
  }
  merged << "\n],\"displayTimeUnit\":\"ms\"}\n";
  merged.close();
  if (merged.fail()) {
    return Status(ErrorCode::kInvalidArgument,
                  "cannot write the trace '" + path + "': give a path in a folder that exists, with room");
  }
  if (!any) return Status(ErrorCode::kInternal, "no rank has written a trace");
  return Status();
}

}  // namespace netsum::tool
