// The XDP program (steer.bpf.c) that hands one endpoint's datagrams to its AF_XDP socket.
#ifndef NETSUM_SRC_NET_AF_XDP_STEERING_H_
#define NETSUM_SRC_NET_AF_XDP_STEERING_H_

#include <memory>

#include "netsum/status.h"
#include "src/base/file_descriptor.h"
#include "src/net/address.h"
#include "src/net/af_xdp/routing.h"

struct steer_bpf;

namespace netsum {

class Steering {
 public:
  // Has the kernel verify the program, for datagrams to `local`. Errors: kPermissionDenied, kUnsupported.
  static Result<Steering> load(const Address& local);
  // Attaches it to `interface`, at the driver, for as long as the object lives (or the process: the kernel
  // detaches it then). What comes in by the socket's queue goes to the AF_XDP socket. Errors: kUnsupported
  // (by the driver), kAddressInUse (the interface has a program).
  Status attach(const Interface& interface, int af_xdp_socket);

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
