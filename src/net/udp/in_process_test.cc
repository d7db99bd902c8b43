#include "src/net/in_process.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "src/base/clock.h"
#include "src/net/udp/udp_io.h"

namespace netsum::in_process_test {
namespace {

constexpr uint32_t kMaxPacket = 256;
constexpr int64_t kLimitUs = 60'000'000;  // of all waits of a test

std::unique_ptr<PacketIo> open_socket() {
  auto io = open_udp({.bind = *Address::parse("127.0.0.1:0")});
  EXPECT_TRUE(io.ok());
  return std::move(io).value();
}

// `size` bytes (at least 4): the number, and then its lowest byte.
struct Packets {
  Packets(uint32_t first, uint32_t count, uint32_t size, const Address& to) {
    for (uint32_t number = first; number < first + count; ++number) {
      bytes.emplace_back(size, static_cast<uint8_t>(number));
      std::memcpy(bytes.back().data(), &number, sizeof number);
    }
    for (const auto& one : bytes) burst.push_back({.data = one.data(), .size = size, .to = to});
  }
  std::vector<std::vector<uint8_t>> bytes;
  std::vector<OutPacket> burst;
};

class InProcess : public testing::Test {
 protected:
  InProcess() : hub_(open_socket()) {
    auto io = open_socket();
    auto link = std::make_unique<InProcessLink>(kMaxPacket);
    link_ = link.get();
    hub_address_ = link->hub = hub_.local_address();
    member_address_ = link->member = io->local_address();
    link->member_io = io.get();
    link->wake_hub = [this](size_t) { hub_.wake(); };
    hub_.attach(link_);
    member_.emplace(std::move(io), std::move(link), [this] { hub_.detach(link_); });
  }

  // The numbers of the next `count` packets at `io`, in the order in which they come.
  std::vector<uint32_t> take(PacketIo* io, size_t count, const Address& from, uint32_t size) {
    std::vector<uint32_t> numbers;
    std::array<InPacket, 48> burst;
    const int64_t end_us = monotonic_us() + kLimitUs;
    while (numbers.size() < count && monotonic_us() < end_us) {
      const size_t got = io->receive(burst);
      if (got == 0) io->wait(1000);
      for (const InPacket& packet : std::span(burst).first(got)) {
        uint32_t number = 0;
        EXPECT_EQ(packet.from, from);
        EXPECT_EQ(packet.size, size);
        in_memory_ += packet.in_memory ? 1 : 0;
        std::memcpy(&number, packet.data, sizeof number);
        numbers.push_back(number);
        EXPECT_TRUE(std::all_of(packet.data + sizeof number, packet.data + packet.size,
                                [&](uint8_t byte) { return byte == static_cast<uint8_t>(number); }));
      }
    }
    EXPECT_EQ(numbers.size(), count);
    return numbers;
  }

  static std::vector<uint32_t> count_from(uint32_t first, uint32_t count) {
    std::vector<uint32_t> numbers;
    for (uint32_t i = 0; i < count; ++i) numbers.push_back(first + i);
    return numbers;
  }

  InProcessHub hub_;
  InProcessLink* link_ = nullptr;
  Address hub_address_, member_address_;
  std::optional<InProcessMember> member_;
  size_t in_memory_ = 0;  // of the packets that have come
};

TEST_F(InProcess, PacketsPassNoSocketAndStayInOrder) {
  for (uint32_t round = 0; round < 30; ++round) {  // several times around the ring
    const uint32_t first = round * 100, size = 4 + round * 8;
    member_->send(Packets(first, 100, size, hub_address_).burst);
    EXPECT_EQ(take(&hub_, 100, member_address_, size), count_from(first, 100));
    hub_.send(Packets(first, 100, size, member_address_).burst);
    EXPECT_EQ(take(&*member_, 100, hub_address_, size), count_from(first, 100));
  }
  EXPECT_EQ(member_->counters().packets_sent.get(), 0u);
  EXPECT_EQ(hub_.counters().packets_sent.get(), 0u);
  EXPECT_EQ(hub_.packets_sent().get(), 3000u);
}

TEST_F(InProcess, WhatTheRingHasNoRoomForPassesTheSocket) {
  constexpr uint32_t kMore = 40;
  const uint32_t count = InProcessLane::kPackets + kMore;
  member_->send(Packets(0, count, 64, hub_address_).burst);
  std::vector<uint32_t> numbers = take(&hub_, count, member_address_, 64);
  std::sort(numbers.begin(), numbers.end());
  EXPECT_EQ(numbers, count_from(0, count));
  EXPECT_EQ(member_->counters().packets_sent.get(), kMore);
  EXPECT_EQ(in_memory_, InProcessLane::kPackets) << "the tags of the others are checked";
}

TEST_F(InProcess, PacketsThatAreTooLongPassTheSocket) {
  hub_.send(Packets(0, 3, kMaxPacket + 1, member_address_).burst);
  take(&*member_, 3, hub_address_, kMaxPacket + 1);
  EXPECT_EQ(hub_.counters().packets_sent.get(), 3u);
}

TEST_F(InProcess, OtherDestinationsPassTheSocket) {
  const auto other = open_socket();
  Packets mixed(0, 10, 32, member_address_);
  for (size_t i = 0; i < mixed.burst.size(); i += 3) mixed.burst[i].to = other->local_address();
  hub_.send(mixed.burst);
  EXPECT_EQ(take(&*member_, 6, hub_address_, 32), (std::vector<uint32_t>{1, 2, 4, 5, 7, 8}));
  EXPECT_EQ(take(other.get(), 4, hub_address_, 32), (std::vector<uint32_t>{0, 3, 6, 9}));
}

TEST_F(InProcess, WithoutTheMemberItsPacketsPassTheSocket) {
  member_.reset();
  hub_.send(Packets(0, 1, 32, member_address_).burst);
  EXPECT_EQ(hub_.counters().packets_sent.get(), 1u);
}

// A wake-up that is lost would leave one of the two asleep for as long as the test may take.
TEST_F(InProcess, WhoeverSleepsIsWoken) {
  constexpr uint32_t kRounds = 500;
  const int64_t end_us = monotonic_us() + kLimitUs;
  const auto next = [&](PacketIo* io, const auto& sleep) {
    std::array<InPacket, 1> one;
    while (monotonic_us() < end_us) {
      if (io->receive(one) == 1) return true;
      sleep();
    }
    return false;
  };
  std::thread hub_thread([&] {
    const auto sleep = [&] {
      if (!hub_.fall_asleep()) return;
      hub_.wait(kLimitUs);
      hub_.wake_up();
    };
    for (uint32_t round = 0; round < kRounds && next(&hub_, sleep); ++round)
      hub_.send(Packets(round, 1, 16, member_address_).burst);
  });
  uint32_t rounds = 0;
  for (; rounds < kRounds; ++rounds) {
    member_->send(Packets(rounds, 1, 16, hub_address_).burst);
    if (!next(&*member_, [&] { member_->wait(kLimitUs); })) break;
  }
  hub_thread.join();
  EXPECT_EQ(rounds, kRounds);
}

}  // namespace
}  // namespace netsum::in_process_test
