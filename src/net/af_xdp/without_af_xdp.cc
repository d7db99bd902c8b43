// Replaces af_xdp_io.cc in builds without its dependencies.
#include "src/net/af_xdp/af_xdp_io.h"

namespace netsum {

Status probe_af_xdp() {
  return Status(
      ErrorCode::kUnsupported,
      "this netsum was built without AF_XDP, which needs clang, bpftool, libbpf-dev, libxdp-dev and "
      "libmnl-dev");
}

Result<std::unique_ptr<PacketIo>> open_af_xdp(const AfXdpIoOptions&) {
  return probe_af_xdp();
}

}  // namespace netsum
