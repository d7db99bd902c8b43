// Tells the other ranks where this process is while they wait for it.
#ifndef NETSUM_STACK_HINT_H_
#define NETSUM_STACK_HINT_H_

#include <functional>
#include <string>

#include "netsum/export.h"

namespace netsum {

// `hint` says in up to 512 bytes where the main thread of this process is, such as "train.py:41 in forward". It is called, on a
// thread of its own, when other ranks have waited for this process for a second, and then again with each heartbeat: their
// error messages and `netsum status` have what it says. One for all communicators; null: none. When this returns, the one before
// is called no more, unless its call takes longer than a second. netsum.torch sets one.
NETSUM_EXPORT void set_stack_hint(std::function<std::string()> hint);

}  // namespace netsum

#endif  // NETSUM_STACK_HINT_H_
