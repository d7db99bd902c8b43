// The topology file of netsum plan: YAML. docs/placement.md describes it.
#ifndef NETSUM_TOOLS_NETSUM_PLAN_FILE_H_
#define NETSUM_TOOLS_NETSUM_PLAN_FILE_H_

#include <string>
#include <string_view>

#include "src/plan/topology.h"

namespace netsum::tool {

// "100Mbit/s", "25G", "2.5gbit": bits per second. Error: kInvalidArgument.
Result<double> parse_link_rate(std::string_view text);

// The topology in `text`. Throws UsageError (flags.h), whose message starts with "file:line: ".
plan::Topology parse_topology(const std::string& text, const std::string& file);
// The same from a file.
plan::Topology load_topology(const std::string& file);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_PLAN_FILE_H_
