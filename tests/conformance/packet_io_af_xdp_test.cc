// AF_XDP on veth pairs against the suite that every PacketIo passes.
#include "src/net/af_xdp/af_xdp_io.h"
#include "tests/conformance/packet_io_conformance.h"
#include "tests/conformance/veth_lab.h"

namespace netsum::packet_io_af_xdp_test {
namespace {

using conformance::VethLab;

constexpr int kHosts = 5;  // more than any test opens endpoints
constexpr int kMtu = 3400;
constexpr uint32_t kMaxPacket = kMtu - 28;

// Made once: every endpoint gets a host of its own, in turn.
struct Network {
  std::unique_ptr<VethLab> hosts;
  std::string obstacle;  // to making it
  int next_host = 0;
};

Network& network() {
  static Network* const made = [] {
    auto* out = new Network;
    Result<std::unique_ptr<VethLab>> hosts = VethLab::make(kHosts, {.mtu = kMtu, .known_neighbours = true});
    if (hosts.ok()) {
      out->hosts = std::move(hosts).value();
    } else {
      EXPECT_EQ(hosts.status().code(), ErrorCode::kPermissionDenied) << hosts.status().message();
      out->obstacle = hosts.status().message();
    }
    return out;
  }();
  return *made;
}

Result<std::unique_ptr<PacketIo>> open_endpoint(uint32_t max_packet) {
  const int host = network().next_host++ % kHosts;
  const VethLab::Inside inside = network().hosts->in_host(host);
  return open_af_xdp({.remote = VethLab::switch_address(), .max_packet = max_packet});
}

INSTANTIATE_TEST_SUITE_P(AfXdp, PacketIoConformance,
                         testing::Values(PacketIoCase{
                             .name = "af_xdp",
                             .open = open_endpoint,
                             .closed_address = [] { return VethLab::switch_address(9); },
                             .obstacle = [] { return network().obstacle; },
                             .capacity = [](uint32_t) -> size_t { return 1000; },
                             .max_packet = kMaxPacket}),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace netsum::packet_io_af_xdp_test
