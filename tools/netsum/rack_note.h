// The note of a rack on disk, which later runs of the command read, and its lock.
#ifndef NETSUM_TOOLS_NETSUM_RACK_NOTE_H_
#define NETSUM_TOOLS_NETSUM_RACK_NOTE_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "netsum/status.h"
#include "src/base/file_descriptor.h"
#include "tools/netsum/rack_plan.h"
#include "tools/netsum/rack_system.h"

namespace netsum::tool {

struct RackAggregator {
  std::string id;  // RackService::id
  ProcessMark process;
};

// A link as `rack set` has left it.
struct RackLinkState {
  uint64_t rate_bits = 0;
  double loss = 0;
  bool up = true;
};

// Written before anything is made, so that a later run can take away what a killed one has left.
struct RackNote {
  RackOptions options;
  bool complete = false;  // everything was made
  std::vector<RackAggregator> aggregators;
  ProcessMark bmv2 = {};                       // with the dataplane p4
  std::map<std::string, RackLinkState> links;  // those that differ from the options, by RackLink::id
};

// $NETSUM_RACK_DIR/NAME, by default /run/netsum/rack/NAME; the aggregators' logs are there, too.
std::string rack_folder(const std::string& name);
// What a node's NETSUM_AGGREGATOR is to be.
std::string aggregator_setting(const RackPlan& plan, const std::string& name, const RackNode& node);
std::string relays_file(const std::string& name);  // with RackPlan::relays()
std::vector<std::string> noted_racks();
std::optional<RackNote> read_note(const std::string& name);  // nothing if there is none, or it cannot be read
Status write_note(const RackNote& note);
void delete_folder(const std::string& name);

// Held while a rack is made, changed or taken down, so that two runs do not interfere. Error: kAddressInUse if
// another run holds it.
Result<FileDescriptor> lock_rack(const std::string& name);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_RACK_NOTE_H_
