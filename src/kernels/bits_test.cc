#include "src/kernels/bits.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "src/kernels/test_data.h"

namespace netsum::kernels::bits_test {
namespace {

class BitsTest : public TargetTest {};

// Zeros, negative zeros, denormals, infinities, NaNs and other numbers, at an odd address.
std::vector<uint8_t> elements(DataType type, size_t n, Rng& rng) {
  const size_t bytes = size_of(type);
  std::vector<uint8_t> memory(1 + n * bytes, 0);
  for (size_t i = 0; i < n; ++i) {
    uint64_t bits = 0;
    switch (rng.below(6)) {
      case 0:
        bits = rng.next();
        break;
      case 1:
        bits = uint64_t{1} << (8 * bytes - 1);  // the sign alone
        break;
      case 2:
        bits = uint64_t{1} << rng.below(8 * bytes);
        break;
      default:
        break;
    }
    std::memcpy(&memory[1 + i * bytes], &bits, bytes);
  }
  return memory;
}

TEST_P(BitsTest, NonzeroBitsAreThoseOfThePlainReference) {
  for (const DataType type : kAllTypes) {
    for (size_t n = 0; n < 300; n += n < 140 ? 1 : 13) {
      const auto memory = elements(type, n, rng_);
      std::vector<uint64_t> words(n / 64 + 2, 77), expected(n / 64 + 2, 77);
      const bool negative = nonzero_bits(type, memory.data() + 1, n, words.data());
      EXPECT_EQ(negative, plain::nonzero_bits(type, memory.data() + 1, n, expected.data()));
      ASSERT_EQ(words, expected) << data_type_name(type) << " " << n;
      bool found = false;
      const bool zero = all_zero(type, memory.data() + 1, n, &found);
      EXPECT_EQ(zero, std::all_of(expected.begin(), expected.begin() + static_cast<long>((n + 63) / 64),
                                  [](uint64_t word) { return word == 0; }));
      EXPECT_EQ(found, zero && negative);
    }
  }
}

TEST_P(BitsTest, OnlyTheSignOfAFloatingPointNumberDoesNotCount) {
  const uint32_t negative_zero = 0x80000000, denormal = 1, nan = 0x7FC00000;
  uint64_t word = 0;
  EXPECT_TRUE(nonzero_bits(DataType::kFloat32, &negative_zero, 1, &word));
  EXPECT_EQ(word, 0u);
  for (const uint32_t& number : {denormal, nan}) {
    EXPECT_FALSE(nonzero_bits(DataType::kFloat32, &number, 1, &word));
    EXPECT_EQ(word, 1u);
  }
  EXPECT_FALSE(nonzero_bits(DataType::kInt32, &negative_zero, 1, &word)) << "the least integer";
  EXPECT_EQ(word, 1u);
}

TEST_P(BitsTest, PackAndUnpackAreThoseOfThePlainReference) {
  for (const size_t bytes : {size_t{2}, size_t{4}, size_t{8}}) {
    for (int round = 0; round < 2000; ++round) {
      const size_t n = rng_.chance(0.5) ? 64 : 1 + rng_.below(64);
      uint64_t word = rng_.next();
      if (rng_.chance(0.3)) word &= rng_.next() & rng_.next();
      if (rng_.chance(0.2)) word = ~uint64_t{0};
      if (n < 64) word &= (uint64_t{1} << n) - 1;
      std::vector<uint8_t> in(n * bytes);
      for (uint8_t& byte : in) byte = static_cast<uint8_t>(rng_.next());
      std::vector<uint8_t> packed(64 * bytes + 64), expected(64 * bytes + 64);
      const size_t count = pack(bytes, in.data(), n, word, packed.data());
      ASSERT_EQ(count, static_cast<size_t>(std::popcount(word)));
      ASSERT_EQ(count, plain::pack(bytes, in.data(), n, word, expected.data()));
      ASSERT_EQ(std::memcmp(packed.data(), expected.data(), count * bytes), 0) << bytes << " " << n;
      std::vector<uint8_t> out(64 * bytes, 0xEE), plain_out(64 * bytes, 0xEE);
      EXPECT_EQ(unpack(bytes, packed.data(), word, out.data()), count);
      EXPECT_EQ(plain::unpack(bytes, packed.data(), word, plain_out.data()), count);
      ASSERT_EQ(out, plain_out);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, BitsTest, testing::ValuesIn(all_targets()), target_name);

}  // namespace
}  // namespace netsum::kernels::bits_test
