// Links of a rack that lose packets: a stretch in the middle of the link, two interfaces NAME-a and NAME-b in
// the namespace of the switch, between which an XDP program carries frames or loses them. The kernel keeps
// the program with its interfaces, so any later process can change and read it.
#ifndef NETSUM_TOOLS_NETSUM_RACK_LOSS_H_
#define NETSUM_TOOLS_NETSUM_RACK_LOSS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "netsum/status.h"

namespace netsum::tool {

// Puts the program on the stretches of `ports`, all in one namespace. Errors: kUnsupported where this netsum
// was built without BPF or the kernel refuses the program, kPermissionDenied.
Status attach_lossy_links(const std::string& network_namespace, const std::vector<std::string>& ports);
// From now on frames are lost with this probability, 0 to 1, each way.
Status set_link_loss(const std::string& network_namespace, const std::string& port, double probability);

struct LinkLossCounts {  // frames, both ways together, since the rack is up
  uint64_t passed = 0;
  uint64_t lost = 0;
};
Result<LinkLossCounts> link_loss_counts(const std::string& network_namespace, const std::string& port);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_RACK_LOSS_H_
