// What forked children must not use. First, descriptors that they must not keep. A child such as a data loader's worker holds duplicates of all sockets: if
// its parent is killed, the peers would not notice, and ports would stay in use. Close-on-exec does not help without exec,
// so a fork handler replaces the descriptors in the child with /dev/null; the numbers stay in use, because objects in the
// child still own them.
//
// Second, what threads of the parent would have to finish: process_id() tells a child.
//
// Applies to fork() only: processes created by a raw clone() keep the descriptors, and the parent's process_id().
// Thread rule: any thread may call anything.
#ifndef NETSUM_SRC_BASE_FORKED_CHILDREN_H_
#define NETSUM_SRC_BASE_FORKED_CHILDREN_H_

#include <sys/types.h>

#include <cstddef>

namespace netsum::forked_children {

// Descriptors with higher numbers are ignored: few processes open so many.
inline constexpr size_t kDescriptors = 65'536;

// Children do not get the descriptor from now on, until keep() with the same number, which must precede closing it.
void drop(int fd);
void keep(int fd);

// As getpid(), without a system call.
pid_t process_id();

// In a child: `fd` is `nothing` (of /dev/null) from now on, or closed if `nothing` is negative.
void replace(int fd, int nothing);

}  // namespace netsum::forked_children

#endif  // NETSUM_SRC_BASE_FORKED_CHILDREN_H_
