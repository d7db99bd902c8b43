// A daemon's rights: what it needs to start, it does not keep.
#ifndef NETSUM_TOOLS_NETSUM_PRIVILEGES_H_
#define NETSUM_TOOLS_NETSUM_PRIVILEGES_H_

#include <vector>

#include "netsum/status.h"

namespace netsum::tool {

// Takes all capabilities but `kept` (CAP_* of linux/capability.h, as far as it has them) from the calling
// thread and those that it starts, also for programs that it would run. Threads that are running keep theirs:
// call it before there are any. Error: kPermissionDenied.
Status drop_capabilities(const std::vector<unsigned>& kept);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_PRIVILEGES_H_
