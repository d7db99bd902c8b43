// What forked children must not keep of this process. A child that lives on, such as a worker of a data loader,
// holds duplicates of all sockets: if its parent is killed, the other ends would not hear of it, and ports would
// stay in use. Close-on-exec does not help without exec, so a fork handler lets go of them in the child: the
// numbers stay taken (by /dev/null), because objects in the child still own them.
//
// Children of fork() alone: processes made by a raw clone() keep everything.
// Thread rule: any thread may call anything.
#ifndef NETSUM_SRC_NET_FORKED_CHILDREN_H_
#define NETSUM_SRC_NET_FORKED_CHILDREN_H_

#include <cstdint>

#include "src/net/address.h"

namespace netsum::forked_children {

// The descriptor is this process's alone, until keep() with the same number; do that before it is closed.
void drop(int fd);
void keep(int fd);

// The same, while the object lives, for TCP sockets whose descriptors only a library knows.
class TcpSockets {
 public:
  TcpSockets() = default;
  static TcpSockets connected_to(const Address& peer);
  static TcpSockets with_local_port(uint16_t port);  // listening ones, and what they have accepted
  TcpSockets(TcpSockets&& other) noexcept;
  TcpSockets& operator=(TcpSockets&& other) noexcept;
  ~TcpSockets();

 private:
  explicit TcpSockets(const Address& what);
  uint64_t id_ = 0;  // 0: none
};

}  // namespace netsum::forked_children

#endif  // NETSUM_SRC_NET_FORKED_CHILDREN_H_
