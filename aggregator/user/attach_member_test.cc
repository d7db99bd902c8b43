// Dataplane::attach_member(): what passes between the dataplane and a member of its process does not pass a socket.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <string_view>
#include <thread>

#include "aggregator/user/dataplane.h"
#include "src/net/udp/udp_io.h"

namespace netsum {
namespace {

using std::chrono::seconds;

uint64_t packets_received(const Dataplane& dataplane) {
  for (const AggregatorCounter& counter : dataplane.counters())
    if (counter.name == "packets_received") return counter.value;
  return 0;
}

// Sends one packet, which the dataplane counts and drops, and returns how many of these passed the member's socket.
uint64_t send_one(PacketIo* io, const Dataplane& dataplane) {
  const uint64_t before = packets_received(dataplane), sockets_before = io->counters().packets_sent.get();
  const std::array<uint8_t, 8> bytes{};
  const OutPacket packet{.data = bytes.data(), .size = bytes.size(), .to = dataplane.endpoints().front()};
  io->send({&packet, 1});
  const auto end = std::chrono::steady_clock::now() + seconds(30);
  while (packets_received(dataplane) == before && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(packets_received(dataplane), before + 1);
  return io->counters().packets_sent.get() - sockets_before;
}

std::unique_ptr<Dataplane> start(std::string_view address, bool members_in_process) {
  UserDataplaneOptions options;
  options.ports = {{.address = *Address::parse(address)}};
  options.members_in_process = members_in_process;
  return start_user_dataplane(options).value();
}

std::unique_ptr<PacketIo> open_anywhere() {
  return open_udp({.bind = *Address::parse("0.0.0.0:0")}).value();
}

TEST(AttachMemberTest, PacketsOfAMemberPassNoSocket) {
  const auto dataplane = start("127.0.0.1:0", true);
  const auto first = dataplane->attach_member(open_anywhere());
  auto second = dataplane->attach_member(open_anywhere());
  EXPECT_EQ(send_one(first.get(), *dataplane), 0u);
  EXPECT_EQ(send_one(second.get(), *dataplane), 0u);
  second.reset();  // a job ends, and another one begins
  second = dataplane->attach_member(open_anywhere());
  EXPECT_EQ(send_one(second.get(), *dataplane), 0u);
  EXPECT_EQ(send_one(first.get(), *dataplane), 0u);
}

TEST(AttachMemberTest, OtherwiseTheyPassTheSocket) {
  const auto separate = start("127.0.0.1:0", false);
  const auto io = separate->attach_member(open_anywhere());
  EXPECT_EQ(send_one(io.get(), *separate), 1u);
}

}  // namespace
}  // namespace netsum
