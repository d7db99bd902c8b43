// What every PacketIo must do, as an abstract GoogleTest suite: link packet_io_conformance.cc into a test and
// INSTANTIATE_TEST_SUITE_P(Name, PacketIoConformance, testing::Values(PacketIoCase{...})).
#ifndef NETSUM_TESTS_CONFORMANCE_PACKET_IO_CONFORMANCE_H_
#define NETSUM_TESTS_CONFORMANCE_PACKET_IO_CONFORMANCE_H_

#include <gtest/gtest.h>
#include <sched.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "src/net/packet_io.h"

namespace netsum {

struct PacketIoCase {
  std::string name;
  // Opens one more endpoint on a common network on which nothing is lost, taking datagrams of up to
  // `max_packet` bytes.
  std::function<Result<std::unique_ptr<PacketIo>>(uint32_t max_packet)> open;
  // An address of that network at which nobody listens.
  std::function<Address()> closed_address;
  // Why this case cannot run on this machine (a missing capability, probed), or empty.
  std::function<std::string()> obstacle;
  // How many datagrams of `size` bytes an endpoint is sure to buffer until they are received.
  std::function<size_t(uint32_t size)> capacity;
  // The largest datagram that the network takes, bytes; at least 1473.
  uint32_t max_packet = 9000;
};

inline void PrintTo(const PacketIoCase& tested, std::ostream* out) {
  *out << tested.name;
}

class PacketIoConformance : public testing::TestWithParam<PacketIoCase> {
 protected:
  using Bytes = std::vector<uint8_t>;
  struct Arrival {
    Bytes bytes;
    Address from;
    bool operator==(const Arrival&) const = default;
  };
  struct Departure {
    uint32_t size = 0;
    PacketIo* to = nullptr;
  };

  void SetUp() override;
  void TearDown() override;

  std::unique_ptr<PacketIo> open(uint32_t max_packet = GetParam().max_packet);
  static uint32_t largest() { return GetParam().max_packet; }
  size_t capacity(uint32_t size) const { return GetParam().capacity(size); }

  // Contents that no other packet of this test has, as far as `size` allows.
  Bytes make_packet(uint32_t size);

  // Receives until `count` packets have come or the deadline has passed.
  static std::vector<Arrival> collect(PacketIo* io, size_t count, size_t burst_size = 64);
  // Nothing more must come: what is on the way in this process has arrived when send() returns.
  static void expect_nothing_more(PacketIo* io);

  // Sends the packets as one burst and checks that each endpoint gets what was sent to it, in order.
  void expect_delivered(PacketIo* from, const std::vector<Departure>& departures, size_t receive_burst = 64);

 private:
  uint64_t packets_made_ = 0;
  cpu_set_t cores_{};
};

}  // namespace netsum

#endif  // NETSUM_TESTS_CONFORMANCE_PACKET_IO_CONFORMANCE_H_
