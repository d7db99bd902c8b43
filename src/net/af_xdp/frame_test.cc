#include "src/net/af_xdp/frame.h"

#include <gtest/gtest.h>

#include <vector>

namespace netsum::frame_test {
namespace {

constexpr MacAddress kOurs = {0x02, 0, 0, 0, 0, 0x0A}, kTheirs = {0x02, 0, 0, 0, 0, 0x0B};

FrameHeaders headers() {
  return FrameHeaders(kOurs, Address::parse("10.1.2.3:5151").value(), kTheirs,
                      Address::parse("192.168.255.254:40000").value());
}

std::vector<uint8_t> frame_of(const std::vector<uint8_t>& data) {
  std::vector<uint8_t> frame(kFrameHeaderBytes + data.size());
  EXPECT_EQ(headers().write(data.data(), static_cast<uint32_t>(data.size()), frame.data()), frame.size());
  return frame;
}

TEST(FrameTest, IsWhatTheStandardsSay) {
  const std::vector<uint8_t> expected = {
      0x02, 0,    0,    0,    0,   0x0B, 0x02, 0,   0,  0,  0, 0x0A, 0x08, 0x00,  // Ethernet: to, from, IPv4
      0x45, 0,    0,    31,   0,   0,    0x40, 0,   64, 17,  // IPv4: 31 bytes, unfragmented, UDP
      0x6E, 0x23,                                            // ~(0x4500+31+0x4000+0x4011+addresses)
      10,   1,    2,    3,    192, 168,  255,  254,          //
      0x14, 0x1F, 0x9C, 0x40, 0,   11,   0,    0,            // UDP: ports, 11 bytes, no checksum
      'a',  'b',  'c'};
  EXPECT_EQ(frame_of({'a', 'b', 'c'}), expected);
}

TEST(FrameTest, TheHeadersSumIsRightForEverySize) {
  for (uint32_t size = 0; size <= 3800; ++size) {
    const std::vector<uint8_t> frame = frame_of(std::vector<uint8_t>(size));
    uint32_t sum = 0;
    for (size_t i = kEthernetBytes; i < kEthernetBytes + 20; i += 2) sum += frame[i] << 8 | frame[i + 1];
    while (sum > 0xFFFF) sum = (sum & 0xFFFF) + (sum >> 16);
    ASSERT_EQ(sum, 0xFFFFu) << size << " bytes";
  }
}

TEST(FrameTest, ReadsWhatItWrote) {
  for (const size_t size : {0, 1, 8, 1472, 3776}) {
    const std::vector<uint8_t> data(size, 0x5A);
    std::vector<uint8_t> frame = frame_of(data);
    frame.resize(frame.size() + 18);  // padding, as of a short frame
    const InPacket packet = read_frame(frame.data());
    EXPECT_EQ(std::vector<uint8_t>(packet.data, packet.data + packet.size), data);
    EXPECT_EQ(packet.from.to_string(), "10.1.2.3:5151");
  }
}

}  // namespace
}  // namespace netsum::frame_test
