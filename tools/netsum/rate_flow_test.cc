#include "tools/netsum/rate_flow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <thread>

#include "src/net/udp/udp_io.h"

namespace netsum::tool::rate_flow_test {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

const Address kLoopback = Address::parse("127.0.0.1:0").value();

Address at_port(uint16_t port) {
  Address address = kLoopback;
  address.port = port;
  return address;
}

TEST(RateMeterTest, TheRateIsThatOfTheMiddle) {
  RateMeter meter(milliseconds(1000), 2);
  uint64_t sequence = 0;
  // A burst at the start, then 125 bytes per ms from each of two flows, and one of them ends early.
  for (int i = 0; i < 5000; ++i) meter.on_data(7'000'000, 0, sequence++, 1000);
  for (int ms = 1; ms < 1500; ++ms) {
    meter.on_data(7'000'000 + ms * 1000, 0, sequence++, 125);
    if (ms < 950) meter.on_data(7'000'000 + ms * 1000, 1, static_cast<uint64_t>(ms), 125);
  }
  EXPECT_NEAR(meter.counts().bits_per_second, 2e6, 1e4);
  EXPECT_THAT(meter.counts().received, testing::ElementsAre(6499, 949));
}

TEST(RateMeterTest, CountsEachPacketOnce) {
  RateMeter meter(milliseconds(100), 1);
  for (int copy = 0; copy < 3; ++copy) {
    for (uint64_t ms = 0; ms < 100; ++ms) meter.on_data(static_cast<int64_t>(ms) * 1000, 0, 99 - ms, 1000);
  }
  meter.on_data(50'000, 1, 0, 1000);                  // no such flow
  meter.on_data(50'000, 0, uint64_t{1} << 40, 1000);  // would take a terabit of memory
  meter.on_data(50'000, 0, uint64_t{1} << 25, 1000);  // so would many, each in a flow of its own
  EXPECT_NEAR(meter.counts().bits_per_second, 8e6, 1);
  EXPECT_THAT(meter.counts().received, testing::ElementsAre(100));
}

TEST(RateMeterTest, NothingReceivedIsARateOfZero) {
  EXPECT_EQ(RateMeter(milliseconds(100), 1).counts().bits_per_second, 0);
}

TEST(RateFlowTest, AFlowArrives) {
  const RateTest test{.nonce = 5, .packet_bytes = 1000, .time = milliseconds(300)};
  auto receiver = RateReceiver::open(kLoopback, test, 2);
  auto stranger = RateReceiver::open(kLoopback, {.nonce = 6, .packet_bytes = 1000}, 1);
  ASSERT_TRUE(receiver.ok() && stranger.ok());
  const std::vector<RateTarget> targets = {{0, at_port(receiver.value()->port())},
                                           {1, at_port(receiver.value()->port())}};
  const auto sent = send_rate_flows(kLoopback, test, targets, [] { return false; });
  ASSERT_TRUE(sent.ok()) << sent.status().to_string();
  const RateCounts counts = receiver.value()->stop();
  EXPECT_GT(counts.bits_per_second, 0);
  for (size_t flow = 0; flow < 2; ++flow) {
    EXPECT_GT(counts.received[flow], 0u);
    EXPECT_LE(counts.received[flow], sent.value()[flow]);
  }
}

TEST(RateFlowTest, NothingIsSentToOneThatDoesNotExpectIt) {
  const auto stranger = RateReceiver::open(kLoopback, {.nonce = 6, .packet_bytes = 1000}, 1);
  ASSERT_TRUE(stranger.ok());
  const std::vector<RateTarget> targets = {{0, at_port(stranger.value()->port())}};
  const auto sent =
      send_rate_flows(kLoopback, {.nonce = 5, .packet_bytes = 1000}, targets, [] { return false; });
  ASSERT_FALSE(sent.ok());
  EXPECT_EQ(sent.status().code(), ErrorCode::kUnreachable);
  EXPECT_THAT(sent.status().message(), HasSubstr(targets[0].to.to_string()));
  EXPECT_EQ(stranger.value()->stop().received[0], 0u);
}

// Who has asked for the flow knows all but what the victim receives.
TEST(RateFlowTest, AForgedReadyStartsNoFlow) {
  constexpr uint64_t kNonce = 5;
  auto victim = open_udp({.bind = kLoopback}).value();
  auto forger = open_udp({.bind = kLoopback}).value();
  std::atomic<bool> stop{false};
  size_t hellos = 0, longest = 0;
  std::thread forging([&] {
    std::array<InPacket, 64> burst;
    while (!stop) {
      victim->wait(10'000);
      const size_t count = victim->receive(burst);
      for (size_t i = 0; i < count; ++i, ++hellos) {
        longest = std::max<size_t>(longest, burst[i].size);
        // A hello of another number, as a ready.
        std::array<uint8_t, kMinRatePacketBytes> ready;
        std::memcpy(ready.data(), burst[i].data, ready.size());
        ready[4] = 2;
        ready[24] ^= 1;
        forger->send(std::array{OutPacket{ready.data(), ready.size(), burst[i].from}});
        std::memset(&ready[24], 0, 8);
        forger->send(std::array{OutPacket{ready.data(), ready.size(), burst[i].from}});
      }
    }
  });
  const std::vector<RateTarget> targets = {{0, victim->local_address()}};
  const auto sent =
      send_rate_flows(kLoopback, {.nonce = kNonce, .packet_bytes = 1000}, targets, [] { return false; });
  stop = true;
  victim->wake();
  forging.join();
  EXPECT_EQ(sent.status().code(), ErrorCode::kUnreachable);
  EXPECT_GT(hellos, 0u);
  EXPECT_LT(hellos, 20u);
  EXPECT_EQ(longest, kMinRatePacketBytes);
}

TEST(RateFlowTest, ACancelledFlowEnds) {
  const RateTest test{.nonce = 5, .packet_bytes = 1000, .time = kMaxRateTime};
  const auto receiver = RateReceiver::open(kLoopback, test, 1);
  ASSERT_TRUE(receiver.ok());
  const std::vector<RateTarget> targets = {{0, at_port(receiver.value()->port())}};
  int calls = 0;
  const auto sent = send_rate_flows(kLoopback, test, targets, [&] { return ++calls > 100; });
  ASSERT_FALSE(sent.ok());
  EXPECT_EQ(sent.status().code(), ErrorCode::kAborted);
}

}  // namespace
}  // namespace netsum::tool::rate_flow_test
