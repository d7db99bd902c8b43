// Where an AggregatorCore keeps the rounds of its jobs.
#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <vector>

#include "aggregator/user/core.h"
#include "wire/codec.h"

namespace netsum::core_frames_test {
namespace {

constexpr uint32_t kSlots = 5;
constexpr netsum_key kKey = {0xC0FFEE, 1};
constexpr uint32_t kPayload[] = {64, 32};  // by job

Address member_of(uint16_t job) {
  Address address;
  address.ip = {10, 0, 0, static_cast<uint8_t>(job + 1)};
  address.port = 4000;
  address.family = 4;
  return address;
}

class AggregatorFramesTest : public testing::Test {
 protected:
  AggregatorFramesTest() {
    for (const uint16_t job : {0, 1}) {
      const DataplaneJob spec = {.job = job,
                                 .epoch = 7,
                                 .key = kKey,
                                 .members = 1,
                                 .data_slots = kSlots - 1,
                                 .scale_slots = 1,
                                 .payload_bytes = kPayload[job]};
      EXPECT_TRUE(core_.install(spec).ok());
      send(NETSUM_TYPE_HELLO, job, 0, 0);
    }
    core_.clear();
  }

  static int32_t value(uint16_t job, uint32_t round, uint32_t slot) {
    return static_cast<int32_t>(job * 100 + round * 10 + slot);
  }
  void send(uint8_t type, uint16_t job, uint32_t round, uint32_t slot) {
    netsum_fields f{};
    f.type = type;
    f.format = type == NETSUM_TYPE_HELLO ? NETSUM_FORMAT_NONE : NETSUM_FORMAT_SUM_I32;
    f.job = job;
    f.epoch = 7;
    f.slot = static_cast<uint16_t>(slot);
    f.round = round;
    f.payload_bytes = kPayload[job];
    std::vector<uint8_t> frame(NETSUM_HEADER_BYTES + f.payload_bytes);
    const int32_t lane = value(job, round, slot);
    for (size_t at = NETSUM_HEADER_BYTES; at < frame.size(); at += sizeof lane)
      std::memcpy(&frame[at], &lane, sizeof lane);
    const uint32_t size = wire::write_header(f, wire::stripe_key(kKey, 0), frame.data());
    core_.on_packet(0, {frame.data(), size, member_of(job)});
  }

  // The job that comes second has the end of the memory.
  AggregatorCore core_{{.max_jobs = 2, .slots = 2 * kSlots, .payload_bytes = kPayload[0]}};
};

TEST_F(AggregatorFramesTest, ResultsOfConsecutiveSlotsAreSideBySide) {
  for (const uint32_t round : {1, 2, 3}) {
    for (const uint16_t job : {0, 1}) {
      for (uint32_t slot = 0; slot < kSlots; ++slot) send(NETSUM_TYPE_CONTRIBUTION, job, round, slot);
      const std::span<const OutPacket> results = core_.outbox();
      ASSERT_EQ(results.size(), kSlots);
      for (size_t i = 0; i < kSlots; ++i) {
        EXPECT_EQ(results[i].size, NETSUM_HEADER_BYTES + kPayload[job]);
        EXPECT_EQ(results[i].data, results[0].data + i * results[0].size);
      }
      core_.clear();
    }
  }
}

TEST_F(AggregatorFramesTest, EveryRoundOfEverySlotHasAFrameOfItsOwn) {
  for (const uint32_t round : {1, 2}) {
    for (const uint16_t job : {0, 1}) {
      for (uint32_t slot = 0; slot < kSlots; ++slot) send(NETSUM_TYPE_CONTRIBUTION, job, round, slot);
    }
  }
  const std::span<const OutPacket> results = core_.outbox();
  ASSERT_EQ(results.size(), 4 * kSlots);
  for (const OutPacket& packet : results) {
    netsum_fields f;
    ASSERT_EQ(netsum_parse(packet.data, packet.size, &f), NETSUM_DROP_NONE);
    ASSERT_EQ(f.payload_bytes, kPayload[f.job]);
    for (uint32_t at = 0; at < f.payload_bytes; at += sizeof(int32_t)) {
      int32_t lane;
      std::memcpy(&lane, packet.data + NETSUM_HEADER_BYTES + at, sizeof lane);
      EXPECT_EQ(lane, value(f.job, f.round, f.slot));
    }
  }
}

}  // namespace
}  // namespace netsum::core_frames_test
