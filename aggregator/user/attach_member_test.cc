// Dataplane::attach_member(): what passes between the dataplane and a member of its process does not pass a socket.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>

#include "aggregator/user/dataplane.h"
#include "src/net/udp/udp_io.h"

namespace netsum::attach_member_test {
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

// How often the other threads of the process have gone to sleep.
uint64_t sleeps_of_others() {
  uint64_t sum = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == std::to_string(gettid())) continue;
    std::ifstream status(task.path() / "status");
    for (std::string word; status >> word;) {
      uint64_t count = 0;
      if (word == "voluntary_ctxt_switches:" && status >> count) sum += count;
    }
  }
  return sum;
}

TEST(AttachMemberTest, WhoSendsLittleToASleeperServesItWithoutWakingIt) {
  constexpr uint64_t kPackets = 200;
  const auto dataplane = start("127.0.0.1:0", true);
  const auto io = dataplane->attach_member(open_anywhere());
  const uint64_t before = sleeps_of_others();
  const std::array<uint8_t, 8> bytes{};
  const OutPacket packet{.data = bytes.data(), .size = bytes.size(), .to = dataplane->endpoints().front()};
  for (uint64_t i = 0; i < kPackets; ++i) {
    io->send({&packet, 1});
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(packets_received(*dataplane), kPackets);
  EXPECT_LT(sleeps_of_others() - before, kPackets / 2);
}

// Two threads send while the dataplane's falls asleep and wakes up: no packet is lost, and none counts twice.
TEST(AttachMemberTest, MembersAndTheThreadTakeTurns) {
  constexpr uint64_t kPackets = 5000, kUnderWay = 100;  // fewer than a lane holds
  std::atomic<uint64_t> sent{0};
  const auto dataplane = start("127.0.0.1:0", true);
  const auto send = [&] {
    const auto io = dataplane->attach_member(open_anywhere());
    const std::array<uint8_t, 8> bytes{};
    const OutPacket packet{.data = bytes.data(), .size = bytes.size(), .to = dataplane->endpoints().front()};
    const auto end = std::chrono::steady_clock::now() + seconds(60);
    for (uint64_t i = 0; i < kPackets; ++i) {
      io->send({&packet, 1});
      const uint64_t wanted = i + 1 < kPackets ? sent.fetch_add(1) + 1 - kUnderWay : 2 * kPackets;
      if (i % 50 != 0 && i + 1 < kPackets) continue;
      while (static_cast<int64_t>(packets_received(*dataplane) - wanted) < 0 &&
             std::chrono::steady_clock::now() < end)
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  };
  std::thread other(send);
  send();
  other.join();
  EXPECT_EQ(packets_received(*dataplane), 2 * kPackets);
}

TEST(AttachMemberTest, OtherwiseTheyPassTheSocket) {
  const auto separate = start("127.0.0.1:0", false);
  const auto io = separate->attach_member(open_anywhere());
  EXPECT_EQ(send_one(io.get(), *separate), 1u);
}

}  // namespace
}  // namespace netsum::attach_member_test
