// Where the main thread of this process is, if its language can tell: for those who wait for this process.
#ifndef NETSUM_SRC_BASE_STACK_HINT_H_
#define NETSUM_SRC_BASE_STACK_HINT_H_

#include <chrono>
#include <cstddef>
#include <string>

#include "netsum/stack_hint.h"

namespace netsum {

// Longer hints are cut off.
inline constexpr size_t kMostHintBytes = 512;

// What set_stack_hint() was given says, printable; "": nothing, or not within `patience`: it may wait for a lock of an interpreter
// that the main thread holds. It is called on a thread of its own, one at a time.
std::string stack_hint(std::chrono::milliseconds patience);

}  // namespace netsum

#endif  // NETSUM_SRC_BASE_STACK_HINT_H_
