// Calls that Gloo runs, announced in the order of the network's calls.
#ifndef NETSUM_TORCH_SRC_ANNOUNCEMENT_H_
#define NETSUM_TORCH_SRC_ANNOUNCEMENT_H_

#include <chrono>
#include <functional>
#include <string>

#include "netsum/communicator.h"

namespace netsum::torch_backend {

// Gloo does not compare the ranks' calls, and does not know of those in the network: ranks whose calls differ would wait for
// each other until the deadline. So a collective that Gloo runs is beside it an operation in the network, of one element,
// whose tag is a hash of the call. If another rank calls something else, that operation fails with kMismatch, on all ranks.
//
// `call`: what all ranks must agree on, as a text. `on_failure` is called if the operation fails, on the engine's thread, or
// on this one if it is refused; it must not block.
void announce(Communicator& communicator, const std::string& call, std::chrono::milliseconds timeout,
              std::function<void(const Status&)> on_failure);

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_ANNOUNCEMENT_H_
