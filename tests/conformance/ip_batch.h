// Configures network interfaces by the `ip` command.
#ifndef NETSUM_TESTS_CONFORMANCE_IP_BATCH_H_
#define NETSUM_TESTS_CONFORMANCE_IP_BATCH_H_

#include <string>

#include "netsum/status.h"

namespace netsum {

// Runs `ip` on these lines, in the network namespace of the calling thread. Error: kUnsupported.
Status ip_batch(const std::string& lines);

}  // namespace netsum

#endif  // NETSUM_TESTS_CONFORMANCE_IP_BATCH_H_
