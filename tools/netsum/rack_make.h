// Makes a rack and takes it down, with its note on disk.
#ifndef NETSUM_TOOLS_NETSUM_RACK_MAKE_H_
#define NETSUM_TOOLS_NETSUM_RACK_MAKE_H_

#include <chrono>
#include <string>

#include "netsum/status.h"
#include "tools/netsum/rack_note.h"

namespace netsum::tool {

// For an aggregator or BMv2: an emulated processor verifies an XDP program in ten seconds; BMv2 loads its program in some.
inline constexpr std::chrono::seconds kStartPatience{120};

// All of these need the rack's lock (lock_rack), but is_whole() and log_path().

// Makes the rack and starts its aggregators; if anything fails, takes everything down again. Errors:
// kAddressInUse if a namespace has one of the rack's names, kAggregatorLost with the end of the log if an
// aggregator does not start, or what the system says.
Status make_rack(const RackOptions& options);
// Takes down all that the note names. What is gone already is ignored.
Status take_down(const RackNote& note);
// Without a readable note: every namespace with the rack's name in its own.
Status take_down_unnoted(const std::string& name);

// Whether everything was made, and its namespaces and aggregators are still there.
bool is_whole(const RackNote& note);
// The last lines of a log, for an error.
std::string tail_of_log(const std::string& path);
std::string log_path(const RackOptions& options, const std::string& service);  // of an aggregator

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_RACK_MAKE_H_
