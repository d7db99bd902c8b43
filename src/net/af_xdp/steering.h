// The XDP program (steer.bpf.c) that hands one endpoint's datagrams to its AF_XDP socket.
#ifndef NETSUM_SRC_NET_AF_XDP_STEERING_H_
#define NETSUM_SRC_NET_AF_XDP_STEERING_H_

#include <memory>

#include "netsum/status.h"
#include "src/net/address.h"
#include "src/net/af_xdp/routing.h"
#include "src/net/file_descriptor.h"

struct steer_bpf;

namespace netsum {

class Steering {
 public:
  // Attaches the program to `interface`, at the driver, for as long as the object lives (or the process: the
  // kernel detaches it then). Datagrams to `local` that come in by the socket's queue go to the AF_XDP
  // socket. Errors: kPermissionDenied, kUnsupported (kernel or driver), kAddressInUse (the interface has a
  // program).
  static Result<Steering> attach(const Interface& interface, const Address& local, int af_xdp_socket);

 private:
  struct Destroy {
    void operator()(steer_bpf* program) const;
  };
  Steering() = default;

  std::unique_ptr<steer_bpf, Destroy> program_;
  FileDescriptor link_;  // goes first: packets pass from then on
};

}  // namespace netsum

#endif  // NETSUM_SRC_NET_AF_XDP_STEERING_H_
