// What becomes of the communicators that a process has not destroyed when it calls exit(), or returns from main(): other ranks
// may depend on packets that it has not sent yet. So their operations in flight get a second to end, all together.
#ifndef NETSUM_API_EXIT_FLUSH_H_
#define NETSUM_API_EXIT_FLUSH_H_

#include "api/communicator_base.h"

namespace netsum::exit_flush {

// Any thread. Not in a child that was forked after add(): its exit() leaves its parent's communicators alone.
void add(CommunicatorBase* communicator);
void remove(CommunicatorBase* communicator);

}  // namespace netsum::exit_flush

#endif  // NETSUM_API_EXIT_FLUSH_H_
