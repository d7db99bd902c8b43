// The links of a rack: made lossy when it is made, and changed while it is up.
#ifndef NETSUM_TOOLS_NETSUM_RACK_SET_H_
#define NETSUM_TOOLS_NETSUM_RACK_SET_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "netsum/status.h"
#include "tools/netsum/rack_note.h"

namespace netsum::tool {

// For a rack made with a loss: its program, its probability, and what makes every wire packet a frame.
Status make_links_lossy(const RackOptions& options);

struct RackLinkChange {
  std::optional<uint64_t> rate_bits;
  std::optional<double> loss;
  std::optional<bool> up;
};
// Changes the link of `where`, a RackLink::id, a node with several links, a worker's number or "all", and notes it. Errors:
// kInvalidArgument, or what the system says.
Status change_links(RackNote* note, const std::string& where, const RackLinkChange& change);

// Of each aggregator whose link has another rate by now than it declares to jobs: "s0 still declares 100mbit". Aggregators
// are told the rate when they start.
std::vector<std::string> outdated_declarations(const RackNote& note);

// The link as it is now.
RackLinkState state_of(const RackNote& note, const RackLink& link);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_RACK_SET_H_
