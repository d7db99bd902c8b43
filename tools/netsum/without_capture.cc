// Where libpcap is missing.
#include "tools/netsum/burst_log.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {

BurstLog load_capture(const std::string& file, const CaptureOptions&) {
  throw UsageError(file + ": this netsum was built without captures: building them needs libpcap-dev");
}

}  // namespace netsum::tool
