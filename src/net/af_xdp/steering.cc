#include "src/net/af_xdp/steering.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/if_link.h>

#include <cerrno>
#include <cstring>

#include "src/net/af_xdp/rings.h"
#include "src/net/af_xdp/steer.skel.h"

namespace netsum {
namespace {

Status load_failure(int error) {
  const std::string reason = std::string("the kernel refuses the XDP program: ") + std::strerror(error);
  if (error == EPERM || error == EACCES) {
    return Status(ErrorCode::kPermissionDenied,
                  reason + "; AF_XDP needs root, or CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW");
  }
  return Status(ErrorCode::kUnsupported,
                reason + "; AF_XDP needs Linux 5.15 or later with CONFIG_XDP_SOCKETS");
}

Status attach_failure(const std::string& interface, int error) {
  const std::string reason = std::strerror(error);
  switch (error) {
    case EBUSY:
      return Status(
          ErrorCode::kAddressInUse,
          interface +
              " has an XDP program already, perhaps of another communicator: one at a time can have "
              "its packets by AF_XDP there; `ip link` names the program");
    case EOPNOTSUPP:
    case EINVAL:
    case ERANGE:
      return Status(ErrorCode::kUnsupported,
                    interface + " takes no native XDP program (" + reason +
                        "): its driver has none, or an MTU is too large for one page");
    default:
      return Status(ErrorCode::kUnsupported, "cannot attach an XDP program to " + interface + ": " + reason);
  }
}

}  // namespace

void Steering::Destroy::operator()(steer_bpf* program) const {
  steer_bpf__destroy(program);
}

Result<Steering> Steering::load(const Address& local) {
  // The Status contains what libbpf would print.
  const libbpf_print_fn_t print_before = libbpf_set_print(nullptr);
  Steering steering;
  steering.program_.reset(steer_bpf__open());
  int error = steering.program_ == nullptr ? errno : 0;
  if (error == 0) {
    std::memcpy(const_cast<uint32_t*>(&steering.program_->rodata->local_ip), local.ip.data(), 4);
    *const_cast<uint16_t*>(&steering.program_->rodata->local_port) = htons(local.port);
    error = -steer_bpf__load(steering.program_.get());
  }
  libbpf_set_print(print_before);
  if (error != 0) return load_failure(error);
  return steering;
}

Status Steering::attach(const Interface& interface, int af_xdp_socket) {
  LIBBPF_OPTS(bpf_link_create_opts, options, .flags = XDP_FLAGS_DRV_MODE);
  int link = -1;
  if (bpf_map_update_elem(bpf_map__fd(program_->maps.sockets), &XskRings::kQueue, &af_xdp_socket, BPF_ANY) ==
      0) {
    link = bpf_link_create(bpf_program__fd(program_->progs.netsum_steer), static_cast<int>(interface.index),
                           BPF_XDP, &options);
  }
  if (link < 0) return attach_failure(interface.name, errno);
  link_ = FileDescriptor(link);
  return Status();
}

}  // namespace netsum
