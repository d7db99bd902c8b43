#include "aggregator/slot/lanes.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <iterator>
#include <vector>

#include "src/base/rng.h"

namespace netsum::lanes_test {
namespace {

// Small, huge and boundary values mixed, so that carries and overflows are frequent.
std::vector<uint8_t> random_bytes(Rng& rng, size_t n) {
  std::vector<uint8_t> bytes(n);
  const uint64_t style = rng.below(4);
  for (size_t i = 0; i < n; ++i) {
    static constexpr uint8_t kEdges[] = {0x00, 0xFF, 0x7F, 0x80, 0x01};
    bytes[i] = style == 0 ? static_cast<uint8_t>(rng.next()) : kEdges[rng.below(style == 1 ? 2 : 5)];
  }
  return bytes;
}

template <typename T, typename Wide>
int naive_sum(std::vector<uint8_t>& acc, const std::vector<uint8_t>& in) {
  int overflow = 0;
  for (size_t i = 0; i + sizeof(T) <= acc.size(); i += sizeof(T)) {
    T x, y;
    std::memcpy(&x, &acc[i], sizeof x);
    std::memcpy(&y, &in[i], sizeof y);
    const Wide sum = static_cast<Wide>(x) + static_cast<Wide>(y);
    const T kept = static_cast<T>(sum);
    if (static_cast<Wide>(kept) != sum) overflow = 1;
    std::memcpy(&acc[i], &kept, sizeof kept);
  }
  return overflow;
}

template <typename T, typename Combine>
int naive_words(std::vector<uint8_t>& acc, const std::vector<uint8_t>& in, const Combine& combine) {
  for (size_t i = 0; i + sizeof(T) <= acc.size(); i += sizeof(T)) {
    T x, y;
    std::memcpy(&x, &acc[i], sizeof x);
    std::memcpy(&y, &in[i], sizeof y);
    const T kept = combine(x, y);
    std::memcpy(&acc[i], &kept, sizeof kept);
  }
  return 0;
}

template <typename T>
T larger(T x, T y) {
  return x > y ? x : y;
}

int naive(uint8_t format, std::vector<uint8_t>& acc, const std::vector<uint8_t>& in) {
  if (format == NETSUM_FORMAT_SUM_I8) return naive_sum<int8_t, int32_t>(acc, in);
  if (format == NETSUM_FORMAT_SUM_I16) return naive_sum<int16_t, int32_t>(acc, in);
  if (format == NETSUM_FORMAT_SUM_I32) return naive_sum<int32_t, int64_t>(acc, in);
  if (format == NETSUM_FORMAT_SUM_I64) return naive_sum<int64_t, __int128>(acc, in);
  if (format == NETSUM_FORMAT_MAX_U16) return naive_words<uint16_t>(acc, in, larger<uint16_t>);
  if (format == NETSUM_FORMAT_MAX_U32) return naive_words<uint32_t>(acc, in, larger<uint32_t>);
  if (format == NETSUM_FORMAT_MAX_U64) return naive_words<uint64_t>(acc, in, larger<uint64_t>);
  if (format == NETSUM_FORMAT_OR_U64) return naive_words<uint64_t>(acc, in, std::bit_or<uint64_t>());
  if (format == NETSUM_FORMAT_XOR_U64) return naive_words<uint64_t>(acc, in, std::bit_xor<uint64_t>());
  return naive_words<uint8_t>(acc, in, larger<uint8_t>);
}

TEST(Lanes, AddAsTheNaiveLoopDoes) {
  Rng rng(1);
  int overflows = 0;
  for (int round = 0; round < 20000; ++round) {
    const uint8_t formats[] = {NETSUM_FORMAT_SUM_I16, NETSUM_FORMAT_SUM_I32, NETSUM_FORMAT_SUM_I64,
                               NETSUM_FORMAT_MAX_U8,  NETSUM_FORMAT_MAX_U16, NETSUM_FORMAT_MAX_U32,
                               NETSUM_FORMAT_MAX_U64, NETSUM_FORMAT_OR_U64,  NETSUM_FORMAT_XOR_U64,
                               NETSUM_FORMAT_SUM_I8};
    const uint8_t format = formats[static_cast<size_t>(round) % std::size(formats)];
    const size_t bytes = round < 30 ? NETSUM_MAX_PAYLOAD - 8 * rng.below(2) : 8 * (1 + rng.below(12));
    const std::vector<uint8_t> start = random_bytes(rng, bytes), in = random_bytes(rng, bytes);
    std::vector<uint8_t> expected = start;
    const int overflow = naive(format, expected, in);
    overflows += overflow;
    // Neither side is aligned, and nothing beyond the payload is touched.
    const size_t a = rng.below(8), b = rng.below(8);
    std::vector<uint8_t> acc(a + bytes + 8, 0xC3), lanes(b + bytes);
    std::memcpy(&acc[a], start.data(), bytes);
    std::memcpy(&lanes[b], in.data(), bytes);
    ASSERT_EQ(netsum_lanes_add(format, &acc[a], &lanes[b], static_cast<uint32_t>(bytes)), overflow);
    ASSERT_EQ(std::memcmp(&acc[a], expected.data(), bytes), 0) << "format " << int{format};
    for (size_t i = 0; i < 8; ++i) ASSERT_EQ(acc[a + bytes + i], 0xC3);
  }
  EXPECT_GT(overflows, 100);
}

TEST(Lanes, WideWordsAddAsAllWordsDo) {
  Rng rng(3);
  for (int round = 0; round < 100000; ++round) {
    const uint8_t format = round % 2 ? NETSUM_FORMAT_SUM_I32 : NETSUM_FORMAT_SUM_I64;
    const uint64_t top = netsum_top_bits(format);
    const uint64_t x = netsum_load64(random_bytes(rng, 8).data()),
                   y = netsum_load64(random_bytes(rng, 8).data());
    uint64_t overflow = 0, expected_overflow = 0;
    const uint64_t expected = netsum_word_add(x, y, top, &expected_overflow);
    const uint64_t carry = format == NETSUM_FORMAT_SUM_I32 ? 1ull << 32 : 0;
    ASSERT_EQ(netsum_word_add_wide(x, y, carry, &overflow), expected) << x << " + " << y;
    ASSERT_EQ(overflow & top, expected_overflow & top) << x << " + " << y;
  }
}

TEST(Lanes, MaximumOfEveryPairOfBytes) {
  for (uint32_t x = 0; x < 256; ++x) {
    for (uint32_t y = 0; y < 256; ++y) {
      // The neighbours differ both ways, so a borrow that crossed a lane would show.
      const uint64_t got =
          netsum_word_max(0xFF0000FF00FF0000ull | uint64_t{x} << 8 | uint64_t{y} << 48,
                          0x00FF00FFFF0000FFull | uint64_t{y} << 8 | uint64_t{x} << 48,
                          netsum_max_top_bits(NETSUM_FORMAT_MAX_U8), netsum_max_bits(NETSUM_FORMAT_MAX_U8));
      const uint64_t max = std::max(x, y);
      const uint64_t naive = [&] {
        uint64_t r = 0;
        const uint64_t p = 0xFF0000FF00FF0000ull | uint64_t{x} << 8 | uint64_t{y} << 48;
        const uint64_t q = 0x00FF00FFFF0000FFull | uint64_t{y} << 8 | uint64_t{x} << 48;
        for (int i = 0; i < 64; i += 8) r |= std::max(p >> i & 255, q >> i & 255) << i;
        return r;
      }();
      ASSERT_EQ(got, naive) << x << " " << y;
      ASSERT_EQ(got >> 8 & 255, max);
    }
  }
}

TEST(Lanes, StoreCopiesExactly) {
  Rng rng(2);
  for (uint32_t bytes : {8u, 16u, 1440u, uint32_t{NETSUM_MAX_PAYLOAD}}) {
    const std::vector<uint8_t> in = random_bytes(rng, bytes);
    std::vector<uint8_t> acc(bytes + 9, 0xC3);
    netsum_lanes_store(&acc[1], in.data(), bytes);
    EXPECT_EQ(std::memcmp(&acc[1], in.data(), bytes), 0);
    EXPECT_EQ(acc[0], 0xC3);
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ(acc[1 + bytes + i], 0xC3);
  }
}

}  // namespace
}  // namespace netsum::lanes_test
