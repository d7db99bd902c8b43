// Descriptors that forked children must not keep. A child that lives on, such as a worker of a data loader, holds
// duplicates of all sockets: if its parent is killed, the other ends would not hear of it, and ports would stay in
// use. Close-on-exec does not help without exec, so a fork handler replaces them in the child by /dev/null: the
// numbers stay taken, because objects in the child still own them.
//
// Children of fork() alone: processes made by a raw clone() keep everything.
// Thread rule: any thread may call anything.
#ifndef NETSUM_SRC_BASE_FORKED_CHILDREN_H_
#define NETSUM_SRC_BASE_FORKED_CHILDREN_H_

#include <cstddef>

namespace netsum::forked_children {

// Descriptors with higher numbers are left alone: few processes have so many open.
inline constexpr size_t kDescriptors = 65'536;

// The descriptor is this process's alone, until keep() with the same number; do that before it is closed.
void drop(int fd);
void keep(int fd);

// In a child: `fd` is `nothing` (of /dev/null) from now on, or closed if `nothing` is negative.
void replace(int fd, int nothing);

}  // namespace netsum::forked_children

#endif  // NETSUM_SRC_BASE_FORKED_CHILDREN_H_
