// Whether an interface receives the frames that an XDP program at the other end of its link redirects to it.
#ifndef NETSUM_SRC_NET_REDIRECTED_FRAMES_H_
#define NETSUM_SRC_NET_REDIRECTED_FRAMES_H_

#include <string>

#include "netsum/status.h"

namespace netsum {

// Error: kUnsupported. The interface is a veth, or lies on one, that has neither GRO nor an XDP program: then it has no NAPI
// context, and the kernel drops such frames. What cannot be found out is no error.
Status takes_redirected_frames(const std::string& interface);

}  // namespace netsum

#endif  // NETSUM_SRC_NET_REDIRECTED_FRAMES_H_
