// Links of a rack that lose packets: a stretch in the middle of the link, two interfaces NAME-a and NAME-b in
// the namespace of the switch, between which an XDP program carries frames or loses them. The kernel keeps
// the program with its interfaces, so any later process can change and read it.
#ifndef NETSUM_TOOLS_NETSUM_RACK_LOSS_H_
#define NETSUM_TOOLS_NETSUM_RACK_LOSS_H_

#include <cstdint>
#include <functional>
#include <map>
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

// A frame that has come to the stretch of a link, after the token bucket of its sender, whether it is lost then or not.
struct LinkFrame {
  int64_t at_ns = 0;  // of the monotonic clock
  std::string port;
  bool up = false;  // from the host to the switch
  uint32_t bytes = 0;
};
// Gives all frames to `take`, those of each direction of a link in the order of time, as long as `goes_on`, which is called every
// few milliseconds. `ports`: by namespace. Returns how many were left out, because they came faster than they were taken.
Result<uint64_t> capture_frames(const std::map<std::string, std::vector<std::string>>& ports,
                                const std::function<bool()>& goes_on,
                                const std::function<void(const LinkFrame&)>& take);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_RACK_LOSS_H_
