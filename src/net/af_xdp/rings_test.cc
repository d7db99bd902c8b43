// The rings of an AF_XDP socket against a kernel that this test plays: no socket, no interface.
#include "src/net/af_xdp/rings.h"

#include <gtest/gtest.h>

#include <array>

namespace netsum {

class XskRingsTest : public testing::Test {
 protected:
  static constexpr uint32_t kSend = XskRings::kSendFrames, kReceive = XskRings::kReceiveFrames;

  // What both sides see of a ring, and its entries.
  template <typename Entry, uint32_t kSize>
  struct Shared {
    uint32_t producer = 0, consumer = 0, flags = 0;
    std::array<Entry, kSize> entries{};

    void connect(xsk_ring_prod* ring) {
      *ring = {.cached_prod = 0,
               .cached_cons = kSize,
               .mask = kSize - 1,
               .size = kSize,
               .producer = &producer,
               .consumer = &consumer,
               .ring = entries.data(),
               .flags = &flags};
    }
    void connect(xsk_ring_cons* ring) {
      *ring = {.cached_prod = 0,
               .cached_cons = 0,
               .mask = kSize - 1,
               .size = kSize,
               .producer = &producer,
               .consumer = &consumer,
               .ring = entries.data(),
               .flags = &flags};
    }
    void produce(const Entry& entry) { entries[producer++ % kSize] = entry; }
  };

  XskRingsTest() : rings_(new XskRings) {
    const size_t bytes = size_t{kSend + kReceive} * XskRings::kChunkBytes;
    rings_->memory_ = static_cast<uint8_t*>(
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    send_.connect(&rings_->send_);
    sent_.connect(&rings_->sent_);
    fill_.connect(&rings_->fill_);
    arrived_.connect(&rings_->arrived_);
    for (uint64_t i = 0; i < kSend; ++i) rings_->free_.push_back(i * XskRings::kChunkBytes);
    for (uint64_t i = kSend; i < kSend + kReceive; ++i)
      rings_->handed_out_.push_back(i * XskRings::kChunkBytes);
  }

  // Sends until there is no frame.
  uint32_t send_all() {
    uint32_t count = 0;
    for (; rings_->next_frame() != nullptr; ++count) rings_->push(100);
    rings_->flush();
    return count;
  }

  std::unique_ptr<XskRings> rings_;
  Shared<xdp_desc, kSend> send_;
  Shared<uint64_t, kSend> sent_;
  Shared<uint64_t, kReceive> fill_;
  Shared<xdp_desc, kReceive> arrived_;
};

namespace {

// Linux before 6.17 in copy mode: it takes some frames, and sends them, but shows that they have left the ring only when the
// ring is empty.
TEST_F(XskRingsTest, ARingWithoutRoomIsAsNoFrame) {
  EXPECT_EQ(send_all(), kSend);
  for (uint32_t i = 0; i < 256; ++i) sent_.produce(send_.entries[i].addr);
  EXPECT_EQ(rings_->next_frame(), nullptr);
  EXPECT_EQ(send_all(), 0u);
  send_.consumer = 256;
  EXPECT_EQ(send_all(), 256u);
  send_.consumer = send_.producer;
  for (uint32_t i = 256; i < kSend; ++i) sent_.produce(send_.entries[i].addr);
  EXPECT_EQ(send_all(), kSend - 256);
}

// The kernel passes frames on a moment before it shows that it has taken their chunks.
TEST_F(XskRingsTest, ChunksThatTheFillRingHasNoRoomForAreKept) {
  std::array<const uint8_t*, 256> frames;
  EXPECT_EQ(rings_->receive(frames), 0u);
  EXPECT_EQ(fill_.producer, kReceive);
  for (uint32_t i = 0; i < 100; ++i) arrived_.produce({.addr = fill_.entries[i], .len = 60, .options = 0});
  EXPECT_EQ(rings_->receive(frames), 100u);
  EXPECT_EQ(rings_->receive(frames), 0u);
  EXPECT_EQ(fill_.producer, kReceive);
  fill_.consumer = 60;
  EXPECT_EQ(rings_->receive(frames), 0u);
  EXPECT_EQ(fill_.producer, kReceive + 60);
  fill_.consumer = 100;
  EXPECT_EQ(rings_->receive(frames), 0u);
  EXPECT_EQ(fill_.producer, kReceive + 100);
  for (uint32_t i = 0; i < 100; ++i) EXPECT_EQ(fill_.entries[i], uint64_t{kSend + i} * XskRings::kChunkBytes);
}

}  // namespace
}  // namespace netsum
