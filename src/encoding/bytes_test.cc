#include "src/encoding/bytes.h"

#include <gtest/gtest.h>

#include <vector>

#include "src/kernels/kernels.h"
#include "wire/ids.h"

namespace netsum::bytes_test {
namespace {

constexpr uint32_t kPayload = 64;

// What an aggregator makes of all ranks' lanes of chunk [begin, begin + count).
std::vector<uint8_t> sum(const std::vector<TensorSequence>& ranks, size_t begin, size_t count) {
  const Bytes encoding;
  std::vector<uint8_t> lanes(kPayload), more(kPayload);
  for (const TensorSequence& sequence : ranks) {
    const Elements chunk{&sequence, begin, count};
    const ChunkPlan plan = encoding.plan(chunk, nullptr, kPayload);
    EXPECT_EQ(plan.packets, 1);
    EXPECT_EQ(plan.packet[0].payload_bytes % 8, 0u);
    std::fill(more.begin(), more.end(), uint8_t{0});
    encoding.encode(chunk, nullptr, plan.packet[0], more.data());
    EXPECT_FALSE(kernels::add_lanes(8, lanes.data(), more.data(), plan.packet[0].payload_bytes));
  }
  return lanes;
}

// Parts whose borders are inside of lanes; all bits of each byte are used.
TEST(Bytes, PartsOfDifferentRanksShareLanesExactly) {
  const std::vector<size_t> sizes = {3, 0, 6, 1, 13, 30};
  std::vector<uint8_t> expected;
  std::vector<std::vector<uint8_t>> parts;
  for (size_t r = 0; r < sizes.size(); ++r) {
    parts.emplace_back(sizes[r]);
    for (size_t i = 0; i < sizes[r]; ++i)
      parts[r][i] = static_cast<uint8_t>(i % 3 == 0 ? 0xFF : 0x80 + 7 * r + i);
    expected.insert(expected.end(), parts[r].begin(), parts[r].end());
  }
  std::vector<TensorSequence> ranks;
  for (size_t r = 0; r < sizes.size(); ++r) {
    std::vector<TensorView> views;
    for (size_t part = 0; part < sizes.size(); ++part)
      views.push_back({part == r ? parts[r].data() : nullptr, nullptr, sizes[part]});
    ranks.emplace_back(DataType::kByte, std::move(views));
  }
  const std::vector<uint8_t> lanes = sum(ranks, 0, expected.size());
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), lanes.begin()));

  // A rank that receives only the third and the fifth part.
  std::vector<uint8_t> third(sizes[2]), fifth(sizes[4]);
  std::vector<TensorView> views(sizes.size());
  for (size_t part = 0; part < sizes.size(); ++part) views[part].count = sizes[part];
  views[2].output = third.data();
  views[4].output = fifth.data();
  const TensorSequence outputs(DataType::kByte, views);
  const Bytes encoding;
  EXPECT_TRUE(encoding.decode({&outputs, 0, expected.size()}, nullptr, {}, {lanes.data()}));
  EXPECT_EQ(third, parts[2]);
  EXPECT_EQ(fifth, parts[4]);
}

TEST(Bytes, SeveralInputsOfOneHostAreOne) {
  const std::vector<uint8_t> first = {1, 2, 0, 0, 0, 0xFF, 0, 0, 0, 9},
                             second = {0, 0, 3, 4, 0xFF, 0, 0, 0, 8, 0};
  const TensorSequence both(DataType::kByte, {{first.data(), nullptr, first.size()}}, {second.data()});
  const std::vector<uint8_t> lanes = sum({both}, 0, first.size());
  for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(lanes[i], first[i] | second[i]) << i;
}

TEST(Bytes, AFurtherInputCountsFromItsFirstByteToTheLastOfTheChunk) {
  const std::vector<uint8_t> first = {0, 0, 0}, second = {5, 6, 7, 8};
  const TensorSequence both(DataType::kByte, {{first.data(), nullptr, 3}}, {second.data()});
  const std::vector<uint8_t> lanes = sum({both}, 0, 3);
  EXPECT_EQ(std::vector<uint8_t>(lanes.begin(), lanes.begin() + 4), (std::vector<uint8_t>{5, 6, 7, 0}));
}

TEST(Bytes, ChunksAreAsLargeAsPacketsAndNeedNoAgreement) {
  const Bytes encoding;
  EXPECT_EQ(encoding.chunk_elements(kPayload), kPayload);
  EXPECT_FALSE(encoding.agrees());
  const std::vector<uint8_t> memory(200, 1);
  const TensorSequence sequence(DataType::kByte, {{memory.data(), nullptr, memory.size()}});
  const PacketPlan packet = encoding.plan({&sequence, 128, 61}, nullptr, kPayload).packet[0];
  EXPECT_EQ(packet.format, NETSUM_FORMAT_SUM_I64);
  EXPECT_EQ(packet.payload_bytes, 64u);
  EXPECT_EQ(packet.begin, 128u);
  EXPECT_EQ(packet.count, 61u);
}

}  // namespace
}  // namespace netsum::bytes_test
