// The UDP driver, with and without its offloads, and the lossy decorator doing nothing, against the suite.
#include <sys/socket.h>

#include "src/net/lossy.h"
#include "src/net/udp/socket.h"
#include "src/net/udp/udp_io.h"
#include "tests/conformance/packet_io_conformance.h"

namespace netsum::packet_io_udp_test {
namespace {

UdpIoOptions options_for(const char* bind, bool gso, bool gro) {
  UdpIoOptions options;
  options.bind = Address::parse(bind).value();
  options.gso = gso;
  options.gro = gro;
  return options;
}

// The kernel charges a datagram at about twice its size and some more to the receive buffer, and how large
// that is depends on the machine's limits.
size_t socket_capacity(const UdpIoOptions& options, uint32_t size) {
  const Result<UdpSocket> socket = open_udp_socket(options);
  int bytes = 0;
  socklen_t length = sizeof bytes;
  if (!socket.ok() || getsockopt(socket.value().fd.get(), SOL_SOCKET, SO_RCVBUF, &bytes, &length) != 0)
    return 1;
  return static_cast<size_t>(bytes) / (2 * size + 1280);
}

PacketIoCase udp_case(const char* name, const char* bind, bool gso, bool gro) {
  const UdpIoOptions base = options_for(bind, gso, gro);
  PacketIoCase out;
  out.name = name;
  out.open = [base](uint32_t max_packet) {
    UdpIoOptions options = base;
    options.max_packet = max_packet;
    return open_udp(options);
  };
  // The port of a socket that is closed again.
  out.closed_address = [base] { return open_udp_socket(base).value().local; };
  out.obstacle = [base]() -> std::string {
    const Result<UdpSocket> socket = open_udp_socket(base);
    if (socket.ok()) return "";
    return "this machine has no loopback of this family: " + socket.status().message();
  };
  out.capacity = [base](uint32_t size) { return socket_capacity(base, size); };
  return out;
}

// All that comes goes to the last of several sockets.
PacketIoCase queues_case(const char* name, const char* bind) {
  PacketIoCase out = udp_case(name, bind, true, true);
  out.open = [base = options_for(bind, true, true)](uint32_t max_packet) {
    UdpIoOptions options = base;
    options.max_packet = max_packet;
    options.queues = 5;
    options.queue_selector = {BPF_STMT(BPF_RET | BPF_K, 4)};
    return open_udp(options);
  };
  return out;
}

PacketIoCase lossless_case() {
  PacketIoCase out = udp_case("udp_in_lossless_lossy", "127.0.0.1:0", true, true);
  out.open = [inner = out.open](uint32_t max_packet) -> Result<std::unique_ptr<PacketIo>> {
    Result<std::unique_ptr<PacketIo>> io = inner(max_packet);
    if (!io.ok()) return io.status();
    return std::unique_ptr<PacketIo>(std::make_unique<LossyIo>(std::move(io).value(), LossyOptions{}));
  };
  return out;
}

INSTANTIATE_TEST_SUITE_P(Udp, PacketIoConformance,
                         testing::Values(udp_case("udp_v4", "127.0.0.1:0", true, true),
                                         udp_case("udp_v6", "[::1]:0", true, true),
                                         udp_case("udp_v4_without_offloads", "127.0.0.1:0", false, false),
                                         udp_case("udp_v6_without_offloads", "[::1]:0", false, false),
                                         udp_case("udp_v4_gso_only", "127.0.0.1:0", true, false),
                                         udp_case("udp_v4_gro_only", "127.0.0.1:0", false, true),
                                         queues_case("udp_v4_with_queues", "127.0.0.1:0"),
                                         queues_case("udp_v6_with_queues", "[::1]:0"), lossless_case()),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace netsum::packet_io_udp_test
