// TCP sockets that forked children must not keep (src/base/forked_children.h), if only a library such as gRPC knows their
// descriptors.
// Thread rule: any thread may call anything.
#ifndef NETSUM_SRC_NET_TCP_SOCKETS_H_
#define NETSUM_SRC_NET_TCP_SOCKETS_H_

#include <cstdint>

#include "src/net/address.h"

namespace netsum::forked_children {

// While the object lives, children of fork() do not get the sockets that it names.
class TcpSockets {
 public:
  TcpSockets() = default;
  static TcpSockets connected_to(const Address& peer);
  static TcpSockets with_local_port(uint16_t port);  // listening sockets, and connections accepted there
  TcpSockets(TcpSockets&& other) noexcept;
  TcpSockets& operator=(TcpSockets&& other) noexcept;
  ~TcpSockets();

 private:
  explicit TcpSockets(const Address& what);
  uint64_t id_ = 0;  // 0: none
};

}  // namespace netsum::forked_children

#endif  // NETSUM_SRC_NET_TCP_SOCKETS_H_
