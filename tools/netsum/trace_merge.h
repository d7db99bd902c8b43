// Makes one trace of the ranks' traces (src/telemetry/trace.h).
#ifndef NETSUM_TOOLS_NETSUM_TRACE_MERGE_H_
#define NETSUM_TOOLS_NETSUM_TRACE_MERGE_H_

#include <string>
#include <vector>

#include "netsum/status.h"

namespace netsum::tool {

// Writes `path` and removes `parts`. A part that is not there (its rank died) is left out; an error if none
// is.
Status merge_traces(const std::vector<std::string>& parts, const std::string& path);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_TRACE_MERGE_H_
