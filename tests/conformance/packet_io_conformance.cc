#include "tests/conformance/packet_io_conformance.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <stdexcept>
#include <thread>

#include "src/base/clock.h"
#include "src/base/rng.h"

namespace netsum {
namespace {

constexpr int64_t kSecondUs = 1'000'000;
constexpr int64_t kArrivalDeadlineUs = 20 * kSecondUs;
constexpr int64_t kForeverUs =
    100 * kSecondUs;  // longer than any machine is slow, shorter than the test's limit

}  // namespace

void PacketIoConformance::SetUp() {
  if (const std::string obstacle = GetParam().obstacle(); !obstacle.empty()) GTEST_SKIP() << obstacle;
  // The kernel's loopback has a queue per core, so a sender that moves between cores can overtake itself. On
  // one core the order of arrival is the driver's doing alone.
  ASSERT_EQ(sched_getaffinity(0, sizeof cores_, &cores_), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
}

void PacketIoConformance::TearDown() {
  if (CPU_COUNT(&cores_) > 0) sched_setaffinity(0, sizeof cores_, &cores_);
}

std::unique_ptr<PacketIo> PacketIoConformance::open(uint32_t max_packet) {
  Result<std::unique_ptr<PacketIo>> io = GetParam().open(max_packet);
  if (io.ok()) return std::move(io).value();
  throw std::runtime_error(io.status().to_string());  // ends the test as failed
}

PacketIoConformance::Bytes PacketIoConformance::make_packet(uint32_t size) {
  Rng rng(++packets_made_);
  Bytes bytes(size);
  uint64_t word = 0;
  for (uint32_t i = 0; i < size; ++i) {
    if (i % 8 == 0) word = rng.next();
    bytes[i] = static_cast<uint8_t>(word >> (8 * (i % 8)));
  }
  return bytes;
}

std::vector<PacketIoConformance::Arrival> PacketIoConformance::collect(PacketIo* io, size_t count,
                                                                       size_t burst_size) {
  std::vector<Arrival> arrivals;
  std::vector<InPacket> burst(burst_size);
  const int64_t deadline_us = monotonic_us() + kArrivalDeadlineUs;
  while (arrivals.size() < count && monotonic_us() < deadline_us) {
    const size_t got = io->receive(burst);
    EXPECT_LE(got, burst.size());
    for (size_t i = 0; i < got; ++i) {
      arrivals.push_back({Bytes(burst[i].data, burst[i].data + burst[i].size), burst[i].from});
    }
    if (got == 0) io->wait(kSecondUs);
  }
  return arrivals;
}

void PacketIoConformance::expect_nothing_more(PacketIo* io) {
  std::vector<InPacket> burst(8);
  EXPECT_EQ(io->receive(burst), 0u);
}

void PacketIoConformance::expect_delivered(PacketIo* from, const std::vector<Departure>& departures,
                                           size_t receive_burst) {
  std::vector<Bytes> bytes;
  std::vector<OutPacket> burst;
  std::map<PacketIo*, std::vector<Arrival>> expected;
  for (const Departure& departure : departures) bytes.push_back(make_packet(departure.size));
  for (size_t i = 0; i < departures.size(); ++i) {
    burst.push_back({bytes[i].data(), departures[i].size, departures[i].to->local_address()});
    expected[departures[i].to].push_back({bytes[i], from->local_address()});
  }
  from->send(burst);
  for (const auto& [io, arrivals] : expected) {
    const std::vector<Arrival> got = collect(io, arrivals.size(), receive_burst);
    ASSERT_EQ(got.size(), arrivals.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].bytes.size(), arrivals[i].bytes.size()) << "packet " << i;
      ASSERT_TRUE(got[i] == arrivals[i]) << "packet " << i << " of " << got[i].bytes.size() << " bytes from "
                                         << got[i].from.to_string() << " is not the one sent";
    }
    expect_nothing_more(io);
  }
}

TEST_P(PacketIoConformance, EndpointsHaveAddressesOfTheirOwn) {
  const auto a = open(), b = open();
  EXPECT_TRUE(a->local_address().valid());
  EXPECT_NE(a->local_address().port, 0);
  EXPECT_NE(a->local_address(), b->local_address());
  EXPECT_FALSE(a->description().empty());
}

TEST_P(PacketIoConformance, EverySizeArrives) {
  const auto a = open(), b = open();
  for (uint32_t first = 8; first <= largest();) {
    std::vector<Departure> burst;
    const size_t room = capacity(std::min(largest(), first + 64));
    for (; first <= largest() && burst.size() < std::min<size_t>(64, room); ++first)
      burst.push_back({first, b.get()});
    ASSERT_NO_FATAL_FAILURE(expect_delivered(a.get(), burst));
  }
}

TEST_P(PacketIoConformance, EveryBurstLengthArrives) {
  const auto a = open(), b = open();
  const size_t longest = std::min<size_t>(1000, capacity(100));
  std::vector<size_t> lengths = {255, 256, 257, 500, 511, 512, 513, 999, 1000};
  for (size_t length = 1; length <= 130; ++length) lengths.push_back(length);
  for (const size_t length : lengths) {
    const std::vector<Departure> burst(std::min(length, longest), {100, b.get()});
    ASSERT_NO_FATAL_FAILURE(expect_delivered(a.get(), burst));
  }
}

TEST_P(PacketIoConformance, LongBurstsOfFullPacketsArrive) {
  const auto a = open(), b = open();
  for (const uint32_t size : {1472u, 1473u, largest() - 28, largest()}) {
    const std::vector<Departure> burst(std::min<size_t>(1000, capacity(size)), {size, b.get()});
    ASSERT_NO_FATAL_FAILURE(expect_delivered(a.get(), burst));
  }
}

TEST_P(PacketIoConformance, RunsWithOddTailsArrive) {
  const auto a = open(), b = open(), c = open();
  for (const size_t run : {1, 2, 7, 43, 44, 45, 63, 64, 65, 130}) {
    for (const uint32_t tail : {8u, 1471u, 1472u, 1473u}) {
      // The tail, then the same run to another endpoint, then a run of another size that begins with the
      // tail's.
      std::vector<Departure> burst(std::min(run, capacity(1473) / 4), {1472, b.get()});
      const size_t length = burst.size();
      burst.push_back({tail, b.get()});
      burst.insert(burst.end(), length, {1472, c.get()});
      burst.insert(burst.end(), length, {tail, b.get()});
      ASSERT_NO_FATAL_FAILURE(expect_delivered(a.get(), burst)) << "run of " << run << ", tail of " << tail;
    }
  }
}

TEST_P(PacketIoConformance, MixedSizesAndDestinationsArrive) {
  const auto a = open(), b = open(), c = open(), d = open();
  PacketIo* const to[] = {b.get(), c.get(), d.get()};
  Rng rng(2024);
  for (int round = 0; round < 40; ++round) {
    std::vector<Departure> burst;
    const size_t length = 1 + rng.below(std::min<size_t>(400, capacity(largest())));
    while (burst.size() < length) {
      // Runs of random length, so that both single packets and segmented ones meet every neighbour.
      const auto size = static_cast<uint32_t>(8 + rng.below(rng.chance(0.5) ? 1465 : largest() - 7));
      burst.insert(burst.end(), 1 + rng.below(rng.chance(0.5) ? 2 : 20), {size, to[rng.below(3)]});
    }
    burst.resize(length);
    ASSERT_NO_FATAL_FAILURE(expect_delivered(a.get(), burst, 1 + rng.below(100))) << "round " << round;
  }
}

TEST_P(PacketIoConformance, DestinationsInterleavedPacketByPacketArrive) {
  const auto a = open(), b = open(), c = open();
  std::vector<Departure> burst;
  for (size_t i = 0; i < std::min<size_t>(300, capacity(1472)); ++i) {
    burst.push_back({1472, i % 2 == 0 ? b.get() : c.get()});
  }
  ASSERT_NO_FATAL_FAILURE(expect_delivered(a.get(), burst));
}

TEST_P(PacketIoConformance, SendersAreToldApart) {
  const auto a = open(), b = open(), c = open();
  for (int round = 0; round < 20; ++round) {
    const Bytes from_a = make_packet(500), from_b = make_packet(500);
    const OutPacket out_a = {from_a.data(), 500, c->local_address()};
    const OutPacket out_b = {from_b.data(), 500, c->local_address()};
    a->send(std::vector<OutPacket>(3, out_a));
    b->send(std::vector<OutPacket>(2, out_b));
    std::vector<Arrival> expected(3, {from_a, a->local_address()});
    expected.insert(expected.end(), 2, {from_b, b->local_address()});
    ASSERT_TRUE(collect(c.get(), 5) == expected);
  }
}

TEST_P(PacketIoConformance, AnswersReachTheSender) {
  const auto a = open(), b = open();
  ASSERT_NO_FATAL_FAILURE(expect_delivered(a.get(), {{100, b.get()}}));
  ASSERT_NO_FATAL_FAILURE(expect_delivered(b.get(), {{100, a.get()}}));
  ASSERT_NO_FATAL_FAILURE(expect_delivered(a.get(), {{100, a.get()}})) << "to itself";
}

TEST_P(PacketIoConformance, SmallReceiveBurstsKeepTheRest) {
  const auto a = open(), b = open();
  for (const size_t receive_burst : {1, 2, 3, 5, 43, 45}) {
    const std::vector<Departure> burst(std::min<size_t>(200, capacity(1472)), {1472, b.get()});
    ASSERT_NO_FATAL_FAILURE(expect_delivered(a.get(), burst, receive_burst));
  }
}

TEST_P(PacketIoConformance, DoesNotWaitWhileTheRestIsKept) {
  const auto a = open(), b = open();
  const Bytes bytes = make_packet(1000);
  a->send(std::vector<OutPacket>(10, {bytes.data(), 1000, b->local_address()}));
  const int64_t begin_us = monotonic_us();
  for (int i = 0; i < 10; ++i) {
    b->wait(kForeverUs);
    ASSERT_LT(monotonic_us() - begin_us, kForeverUs) << "wait() slept on packets that it had";
    InPacket one;
    ASSERT_EQ(b->receive(std::span(&one, 1)), 1u) << "packet " << i;
    EXPECT_EQ(Bytes(one.data, one.data + one.size), bytes);
  }
}

TEST_P(PacketIoConformance, ReceivedBytesStayUntilTheNextReceive) {
  const auto a = open(), b = open();
  const Bytes first = make_packet(1472), second = make_packet(1472);
  a->send(std::vector<OutPacket>{{first.data(), 1472, b->local_address()}});
  b->wait(kArrivalDeadlineUs);
  std::vector<InPacket> burst(4);
  ASSERT_EQ(b->receive(burst), 1u);
  a->send(std::vector<OutPacket>{{second.data(), 1472, b->local_address()}});
  b->wait(kArrivalDeadlineUs);
  EXPECT_EQ(Bytes(burst[0].data, burst[0].data + burst[0].size), first);
  ASSERT_EQ(b->receive(burst), 1u);
  EXPECT_EQ(Bytes(burst[0].data, burst[0].data + burst[0].size), second);
}

TEST_P(PacketIoConformance, LongerThanTheLargestIsDroppedAndCounted) {
  const auto a = open();
  const auto b = open(1472);
  const Bytes good = make_packet(1472), bad = make_packet(1473);
  const Bytes worse = make_packet(std::min(4000u, largest()));
  const Address to = b->local_address();
  // Lone ones, whole runs, and a run whose last packet is short enough again.
  std::vector<OutPacket> burst = {{good.data(), 1472, to}, {bad.data(), 1473, to}, {good.data(), 1472, to}};
  burst.insert(burst.end(), 10, {worse.data(), static_cast<uint32_t>(worse.size()), to});
  burst.push_back({good.data(), 1472, to});
  burst.insert(burst.end(), 2, {bad.data(), 1473, to});
  burst.push_back({good.data(), 1472, to});
  a->send(burst);
  const std::vector<Arrival> arrivals = collect(b.get(), 4);
  EXPECT_TRUE(arrivals == std::vector<Arrival>(4, {good, a->local_address()}));
  expect_nothing_more(b.get());
  EXPECT_EQ(b->counters().truncated.get(), 13u);
  EXPECT_EQ(b->counters().packets_received.get(), 4u);
}

TEST_P(PacketIoConformance, UnsendablePacketsAreRefusedAndTheRestArrives) {
  const auto a = open(), b = open();
  const Bytes bytes = make_packet(600);
  const OutPacket good = {bytes.data(), 600, b->local_address()};
  const OutPacket nowhere = {bytes.data(), 600, {}};
  a->send(std::vector<OutPacket>{good, nowhere, nowhere, good, good, nowhere});
  EXPECT_EQ(collect(b.get(), 3).size(), 3u);
  expect_nothing_more(b.get());
  EXPECT_EQ(a->counters().send_refused.get(), 3u);
  EXPECT_EQ(a->counters().packets_sent.get(), 3u);
}

TEST_P(PacketIoConformance, AClosedPortDoesNotDisturbTheRest) {
  const auto a = open(), b = open();
  const Address closed = GetParam().closed_address();
  for (int round = 0; round < 20; ++round) {
    const Bytes bytes = make_packet(700);
    const OutPacket good = {bytes.data(), 700, b->local_address()};
    const OutPacket lost = {bytes.data(), 700, closed};
    a->send(std::vector<OutPacket>{lost, lost, good, lost, good});
    EXPECT_EQ(collect(b.get(), 2).size(), 2u);
    // The other direction too: an error that came back must not hide an arrival.
    ASSERT_NO_FATAL_FAILURE(expect_delivered(b.get(), {{700, a.get()}, {700, a.get()}}));
  }
}

TEST_P(PacketIoConformance, NothingToDoIsFine) {
  const auto a = open();
  a->send({});
  EXPECT_EQ(a->receive({}), 0u);
  std::vector<InPacket> burst(4);
  EXPECT_EQ(a->receive(burst), 0u);
  EXPECT_EQ(a->counters().packets_sent.get(), 0u);
  EXPECT_EQ(a->counters().packets_received.get(), 0u);
}

TEST_P(PacketIoConformance, WaitEndsWithItsTimeout) {
  const auto a = open();
  for (const int64_t timeout_us : {0, 1, 999, 1'000, 20'000}) {
    const int64_t begin_us = monotonic_us();
    a->wait(timeout_us);
    EXPECT_GE(monotonic_us() - begin_us, timeout_us) << "nothing happened, so it must not end early";
  }
}

TEST_P(PacketIoConformance, WaitEndsWithAnArrival) {
  const auto a = open(), b = open();
  const Address to = b->local_address();
  const int64_t begin_us = monotonic_us();
  std::thread sender([&] {
    const Bytes bytes(100);
    a->send(std::vector<OutPacket>{{bytes.data(), 100, to}});
  });
  b->wait(kForeverUs);
  EXPECT_LT(monotonic_us() - begin_us, kForeverUs);
  std::vector<InPacket> burst(4);
  EXPECT_EQ(b->receive(burst), 1u);
  sender.join();
}

TEST_P(PacketIoConformance, WakeFromAnotherThreadEndsTheWait) {
  const auto a = open();
  for (const int64_t timeout_us : {int64_t{-1}, kForeverUs}) {
    std::atomic<bool> woken = false;
    std::thread waker([&] {
      woken = true;
      a->wake();
    });
    a->wait(timeout_us);
    EXPECT_TRUE(woken);
    waker.join();
  }
}

TEST_P(PacketIoConformance, WakeIsRememberedOnce) {
  const auto a = open();
  const int64_t begin_us = monotonic_us();
  a->wake();
  a->wake();
  a->wait(kForeverUs);
  EXPECT_LT(monotonic_us() - begin_us, kForeverUs);
  const int64_t again_us = monotonic_us();
  a->wait(5'000);
  EXPECT_GE(monotonic_us() - again_us, 5'000) << "several wakes before one wait() are one";
}

TEST_P(PacketIoConformance, CountersAddUp) {
  const auto a = open(), b = open();
  for (int round = 1; round <= 5; ++round) {
    ASSERT_NO_FATAL_FAILURE(expect_delivered(a.get(), std::vector<Departure>(20, {1000, b.get()})));
    ASSERT_NO_FATAL_FAILURE(expect_delivered(a.get(), {{8, b.get()}}));
    EXPECT_EQ(a->counters().packets_sent.get(), 21u * round);
    EXPECT_EQ(a->counters().bytes_sent.get(), 20'008u * round);
    EXPECT_EQ(b->counters().packets_received.get(), 21u * round);
    EXPECT_EQ(b->counters().bytes_received.get(), 20'008u * round);
  }
  EXPECT_GE(a->counters().send_calls.get(), 10u);
  EXPECT_GE(b->counters().receive_calls.get(), 10u);
  EXPECT_EQ(a->counters().send_refused.get(), 0u);
  EXPECT_EQ(b->counters().truncated.get(), 0u);
  EXPECT_EQ(a->counters().packets_received.get(), 0u);
  EXPECT_EQ(b->counters().packets_sent.get(), 0u);
}

}  // namespace netsum
