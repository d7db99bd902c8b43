// The switch of a rack with the dataplane p4: BMv2 with this release's P4 program, which the command has in itself.
#ifndef NETSUM_TOOLS_NETSUM_RACK_P4_H_
#define NETSUM_TOOLS_NETSUM_RACK_P4_H_

#include <span>
#include <string>
#include <vector>

#include "netsum/status.h"
#include "tools/netsum/rack_note.h"
#include "tools/netsum/rack_plan.h"

namespace netsum::tool {

struct P4Source {
  const char* path;  // from the repository's root, as #include has it
  const char* text;
};
// The program and all that it includes, but p4c's own files. From CMake's copy of the sources.
std::span<const P4Source> p4_sources();
inline constexpr char kP4Program[] = "aggregator/p4/v1model/netsum.p4";

// Error: kUnsupported, with the program that is not on the PATH.
Status check_p4_programs();
// Compiles the P4 program into the rack's folder, and starts BMv2 in the switch's namespace, where it is noted. Returns when
// BMv2 takes connections. Errors: kUnsupported, kTimeout, kInternal, kAggregatorLost, with what the program has said.
Status start_bmv2(RackNote* note, const RackPlan& plan);
// The flags by which the aggregator of such a rack drives BMv2.
std::vector<std::string> p4_arguments(const RackPlan& plan);
std::string bmv2_log_path(const RackOptions& options);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_RACK_P4_H_
