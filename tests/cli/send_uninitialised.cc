// Sends one packet with a byte that nobody has written: what memcheck_test.py must see.
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "src/net/udp/udp_io.h"

int main() {
  netsum::UdpIoOptions options;
  options.bind = *netsum::Address::parse("127.0.0.1:0");
  auto io = netsum::open_udp(options);
  if (!io.ok()) {
    std::fprintf(stderr, "send_uninitialised: %s\n", io.status().to_string().c_str());
    return 1;
  }
  constexpr uint32_t kBytes = 64;
  const std::unique_ptr<uint8_t, decltype(&std::free)> packet(static_cast<uint8_t*>(std::malloc(kBytes)),
                                                              std::free);
  for (uint32_t i = 0; i + 1 < kBytes; ++i) packet.get()[i] = 1;
  const netsum::OutPacket out{packet.get(), kBytes, io.value()->local_address()};
  io.value()->send({&out, 1});
  return 0;
}
