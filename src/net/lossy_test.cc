#include "src/net/lossy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <deque>
#include <map>
#include <set>

namespace netsum::lossy_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using Bytes = std::vector<uint8_t>;

// Keeps what is sent and gives back what the test puts in.
class FakeIo final : public PacketIo {
 public:
  void send(std::span<const OutPacket> burst) override {
    for (const OutPacket& packet : burst) sent.emplace_back(packet.data, packet.data + packet.size);
  }
  size_t receive(std::span<InPacket> burst) override {
    lent_.clear();
    size_t filled = 0;
    while (filled < burst.size() && !arriving.empty()) {
      lent_.push_back(std::move(arriving.front()));
      arriving.pop_front();
      burst[filled++] = {lent_.back().data(), static_cast<uint32_t>(lent_.back().size()), {}};
    }
    return filled;
  }
  void wait(int64_t timeout_us) override { waits.push_back(timeout_us); }
  void wake() override {}
  Address local_address() const override { return {}; }
  const PacketIoCounters& counters() const override { return counters_; }
  uint64_t overflowed() const override { return 0; }
  std::string_view description() const override { return "fake"; }

  std::vector<Bytes> sent;
  std::deque<Bytes> arriving;
  std::vector<int64_t> waits;

 private:
  std::deque<Bytes> lent_;
  PacketIoCounters counters_;
};

constexpr size_t kPacketBytes = 16;

Bytes packet_number(uint32_t number) {
  Bytes bytes(kPacketBytes);
  for (size_t i = 0; i < kPacketBytes; ++i) bytes[i] = static_cast<uint8_t>(number >> (8 * (i % 4)));
  return bytes;
}

uint32_t number_of(const Bytes& bytes) {
  return bytes[0] | bytes[1] << 8 | bytes[2] << 16 | static_cast<uint32_t>(bytes[3]) << 24;
}

class LossyTest : public testing::Test {
 protected:
  void make(LossyOptions options) {
    options.now_us = [this] { return now_us_; };
    auto fake = std::make_unique<FakeIo>();
    fake_ = fake.get();
    lossy_ = std::make_unique<LossyIo>(std::move(fake), options);
  }

  void send(uint32_t first, uint32_t count) {
    std::vector<Bytes> bytes;
    std::vector<OutPacket> burst;
    for (uint32_t i = first; i < first + count; ++i) bytes.push_back(packet_number(i));
    for (const Bytes& one : bytes) burst.push_back({one.data(), kPacketBytes, {}});
    lossy_->send(burst);
  }

  // Everything that the other side would see of `count` packets, through the direction under test.
  std::vector<Bytes> through(bool sending, uint32_t count, size_t burst_size = 37) {
    if (sending) {
      for (uint32_t next = 0; next < count; next += burst_size) {
        send(next, std::min<uint32_t>(burst_size, count - next));
      }
      return fake_->sent;
    }
    for (uint32_t i = 0; i < count; ++i) fake_->arriving.push_back(packet_number(i));
    return receive_all(burst_size);
  }

  std::vector<Bytes> receive_all(size_t burst_size) {
    std::vector<Bytes> received;
    std::vector<InPacket> burst(burst_size);
    while (const size_t got = lossy_->receive(burst)) {
      EXPECT_LE(got, burst.size());
      for (size_t i = 0; i < got; ++i) received.emplace_back(burst[i].data, burst[i].data + burst[i].size);
    }
    return received;
  }

  int64_t now_us_ = 1'000;
  FakeIo* fake_ = nullptr;
  std::unique_ptr<LossyIo> lossy_;
};

class LossyDirectionTest : public LossyTest, public testing::WithParamInterface<bool> {
 protected:
  static LossyOptions with(const LossyRates& rates, uint64_t seed = 7) {
    LossyOptions options;
    options.seed = seed;
    options.hold_us = 0;
    (GetParam() ? options.send : options.receive) = rates;
    return options;
  }
  const LossyCounters& counters() const {
    return GetParam() ? lossy_->send_counters() : lossy_->receive_counters();
  }
  const LossyCounters& others() const {
    return GetParam() ? lossy_->receive_counters() : lossy_->send_counters();
  }
};

INSTANTIATE_TEST_SUITE_P(Directions, LossyDirectionTest, testing::Values(true, false),
                         [](const auto& tested) { return tested.param ? "send" : "receive"; });

constexpr uint32_t kMany = 20'000;

TEST_P(LossyDirectionTest, ZeroRatesChangeNothing) {
  make(with({}));
  const std::vector<Bytes> out = through(GetParam(), 1000);
  ASSERT_EQ(out.size(), 1000u);
  for (uint32_t i = 0; i < 1000; ++i) EXPECT_EQ(out[i], packet_number(i));
}

TEST_P(LossyDirectionTest, LosesItsShareAndKeepsTheOrder) {
  make(with({.loss = 0.1}));
  const std::vector<Bytes> out = through(GetParam(), kMany);
  EXPECT_EQ(out.size() + counters().lost.get(), kMany);
  // Binomial: mean 2000, standard deviation 42; for a fixed seed this either always or never holds.
  EXPECT_NEAR(static_cast<double>(counters().lost.get()), 2000, 200);
  for (size_t i = 1; i < out.size(); ++i) EXPECT_LT(number_of(out[i - 1]), number_of(out[i]));
  EXPECT_EQ(others().lost.get(), 0u);
}

TEST_P(LossyDirectionTest, LosesEverythingAtRateOne) {
  make(with({.loss = 1}));
  EXPECT_THAT(through(GetParam(), 500), IsEmpty());
  EXPECT_EQ(counters().lost.get(), 500u);
}

TEST_P(LossyDirectionTest, DuplicatesItsShare) {
  make(with({.duplication = 0.1}));
  const std::vector<Bytes> out = through(GetParam(), kMany);
  EXPECT_EQ(out.size(), kMany + counters().duplicated.get());
  EXPECT_NEAR(static_cast<double>(counters().duplicated.get()), 2000, 200);
  std::map<Bytes, int> copies;
  for (const Bytes& bytes : out) ++copies[bytes];
  EXPECT_EQ(copies.size(), kMany);
  for (const auto& [bytes, count] : copies) EXPECT_LE(count, 2);
}

TEST_P(LossyDirectionTest, DuplicatesOfAFullBurstAreKept) {
  make(with({.duplication = 1}));
  const std::vector<Bytes> out = through(GetParam(), 100, 1);
  ASSERT_EQ(out.size(), 200u);
  for (uint32_t i = 0; i < 200; ++i) EXPECT_EQ(out[i], packet_number(i / 2));
}

TEST_P(LossyDirectionTest, CorruptsOneBitOfItsShare) {
  make(with({.corruption = 0.1}));
  const std::vector<Bytes> out = through(GetParam(), kMany);
  ASSERT_EQ(out.size(), kMany);
  EXPECT_EQ(counters().no_room.get(), 0u);
  EXPECT_NEAR(static_cast<double>(counters().corrupted.get()), 2000, 200);
  uint64_t altered = 0;
  std::set<size_t> bytes_hit;
  for (uint32_t i = 0; i < kMany; ++i) {
    const Bytes original = packet_number(i);
    int bits = 0;
    for (size_t b = 0; b < kPacketBytes; ++b) {
      const int flipped = std::popcount(static_cast<uint8_t>(original[b] ^ out[i][b]));
      if (flipped > 0) bytes_hit.insert(b);
      bits += flipped;
    }
    EXPECT_LE(bits, 1);
    altered += bits;
  }
  EXPECT_EQ(altered, counters().corrupted.get());
  EXPECT_EQ(bytes_hit.size(), kPacketBytes);
}

TEST_P(LossyDirectionTest, HoldsItsShareBackForLaterPackets) {
  LossyOptions options = with({.reordering = 0.1});
  options.hold_packets = 8;
  make(options);
  const std::vector<Bytes> out = through(GetParam(), kMany);
  EXPECT_NEAR(static_cast<double>(counters().reordered.get()), 2000, 200);
  // Only those held at the very end are missing, and no packet comes more than 8 packets late.
  EXPECT_LE(out.size(), kMany);
  EXPECT_GE(out.size(), kMany - 8);
  uint64_t late = 0;
  uint32_t newest = 0;
  for (const Bytes& bytes : out) {
    const uint32_t number = number_of(bytes);
    if (number < newest) {
      ++late;
      EXPECT_LE(newest - number, 8u);
    }
    newest = std::max(newest, number);
  }
  EXPECT_GT(late, 1500u);
  EXPECT_LE(late, counters().reordered.get());
}

TEST_P(LossyDirectionTest, SameSeedSameOutcome) {
  const LossyRates rates = {.loss = 0.1, .corruption = 0.1, .duplication = 0.1, .reordering = 0.1};
  std::vector<std::vector<Bytes>> outcomes;
  for (const uint64_t seed : {5, 5, 6}) {
    make(with(rates, seed));
    outcomes.push_back(through(GetParam(), 2000));
  }
  EXPECT_EQ(outcomes[0], outcomes[1]);
  EXPECT_NE(outcomes[0], outcomes[2]);
}

TEST_P(LossyDirectionTest, WithoutRoomPacketsPassUnharmed) {
  LossyOptions options = with({.reordering = 1});
  options.max_held = 4;
  options.hold_packets = 1'000'000;
  make(options);
  const std::vector<Bytes> out = through(GetParam(), 100);
  EXPECT_EQ(counters().reordered.get(), 4u);
  EXPECT_EQ(counters().no_room.get(), 96u);
  ASSERT_EQ(out.size(), 96u);
  for (uint32_t i = 0; i < 96; ++i) EXPECT_EQ(out[i], packet_number(i + 4));
}

TEST_F(LossyTest, DirectionsHaveTheirOwnLuck) {
  LossyOptions options;
  options.send.loss = options.receive.loss = 0.5;
  make(options);
  const std::vector<Bytes> sent = through(true, 200);
  EXPECT_NE(sent, through(false, 200));
}

TEST_F(LossyTest, HeldPacketIsSentOnceItsTimeIsUp) {
  LossyOptions options;
  options.send.reordering = 1;
  options.hold_packets = 1'000'000;
  options.hold_us = 500;
  make(options);
  send(1, 2);
  EXPECT_THAT(fake_->sent, IsEmpty());

  lossy_->wait(-1);
  lossy_->wait(100);
  lossy_->wait(10'000);
  EXPECT_THAT(fake_->waits, ElementsAre(500, 100, 500));

  now_us_ += 499;
  EXPECT_THAT(receive_all(8), IsEmpty());
  EXPECT_THAT(fake_->sent, IsEmpty());
  now_us_ += 1;
  EXPECT_THAT(receive_all(8), IsEmpty());
  EXPECT_THAT(fake_->sent, ElementsAre(packet_number(1), packet_number(2)));

  lossy_->wait(-1);
  EXPECT_EQ(fake_->waits.back(), -1);
}

TEST_F(LossyTest, HeldArrivalComesOnceItsTimeIsUp) {
  LossyOptions options;
  options.receive.reordering = 1;
  options.hold_packets = 1'000'000;
  options.hold_us = 500;
  make(options);
  EXPECT_THAT(through(false, 3), IsEmpty());
  lossy_->wait(-1);
  EXPECT_THAT(fake_->waits, ElementsAre(500));
  now_us_ += 500;
  EXPECT_THAT(receive_all(8), ElementsAre(packet_number(0), packet_number(1), packet_number(2)));
}

TEST_F(LossyTest, DoesNotWaitWhileArrivalsAreKept) {
  LossyOptions options;
  options.receive.duplication = 1;
  make(options);
  fake_->arriving.push_back(packet_number(1));
  InPacket one;
  ASSERT_EQ(lossy_->receive(std::span(&one, 1)), 1u);
  lossy_->wait(-1);
  EXPECT_THAT(fake_->waits, IsEmpty());
  ASSERT_EQ(lossy_->receive(std::span(&one, 1)), 1u);
  EXPECT_EQ(Bytes(one.data, one.data + one.size), packet_number(1));
}

TEST_F(LossyTest, SaysThatItIsLossy) {
  make({});
  EXPECT_EQ(lossy_->description(), "lossy fake");
}

}  // namespace
}  // namespace netsum::lossy_test
