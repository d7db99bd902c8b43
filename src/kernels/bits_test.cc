#include "src/kernels/bits.h"

#include <gmock/gmock.h>

#include <algorithm>
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

struct Words {
  std::vector<uint64_t> numbers, words;
  SetWords view() const { return {numbers.data(), words.data(), words.size()}; }
  size_t count() const { return count_bits(words.data(), words.size()); }
};

// Positions below `elements`, in words that are full, or have many or few bits.
Words random_set(size_t elements, Rng& rng) {
  Words set;
  for (size_t number = 0; number * 64 < elements; ++number) {
    uint64_t word = rng.next();
    if (rng.chance(0.4)) word &= rng.next() & rng.next();
    if (rng.chance(0.2)) word = ~uint64_t{0};
    if (elements - number * 64 < 64) word &= (uint64_t{1} << (elements % 64)) - 1;
    if (word == 0 || rng.chance(0.3)) continue;
    set.numbers.push_back(number);
    set.words.push_back(word);
  }
  return set;
}

std::vector<uint8_t> random_bytes(size_t n, Rng& rng) {
  std::vector<uint8_t> bytes(n);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(rng.next());
  return bytes;
}

TEST_P(BitsTest, PackAndUnpackAreThoseOfThePlainReference) {
  for (const size_t bytes : {size_t{2}, size_t{4}, size_t{8}}) {
    for (int round = 0; round < 300; ++round) {
      const size_t n = 1 + rng_.below(640);
      const Words set = random_set(n, rng_);
      const auto in = random_bytes(n * bytes, rng_);
      std::vector<uint8_t> packed(n * bytes + 64), expected(n * bytes + 64);
      const size_t count = pack(bytes, in.data(), n, set.view(), packed.data());
      ASSERT_EQ(count, set.count());
      ASSERT_EQ(count, plain::pack(bytes, in.data(), set.view(), expected.data()));
      ASSERT_EQ(std::memcmp(packed.data(), expected.data(), count * bytes), 0) << bytes << " " << n;
      std::vector<uint8_t> out(n * bytes, 0xEE), plain_out(n * bytes, 0xEE);
      unpack(bytes, packed.data(), set.view(), out.data());
      plain::unpack(bytes, packed.data(), set.view(), plain_out.data());
      ASSERT_EQ(out, plain_out);
    }
  }
}

TEST_P(BitsTest, SpreadWritesZerosBetweenTheElementsOfAPart) {
  for (const size_t bytes : {size_t{2}, size_t{4}, size_t{8}}) {
    for (int round = 0; round < 300; ++round) {
      const Words set = random_set(640, rng_);
      Words part;
      for (size_t i = 0; i < set.words.size(); ++i) {
        const uint64_t word = rng_.chance(0.4) ? set.words[i] : set.words[i] & rng_.next() & rng_.next();
        if (word == 0 || rng_.chance(0.3)) continue;
        part.numbers.push_back(set.numbers[i]);
        part.words.push_back(word);
      }
      const auto in = random_bytes(part.count() * bytes, rng_);  // not a byte more
      std::vector<uint8_t> out(set.count() * bytes + 64, 0xEE), expected = out;
      ASSERT_TRUE(spread(bytes, in.data(), part.view(), set.view(), out.data()));
      ASSERT_TRUE(plain::spread(bytes, in.data(), part.view(), set.view(), expected.data()));
      ASSERT_EQ(std::memcmp(out.data(), expected.data(), set.count() * bytes), 0) << bytes;
    }
  }
}

TEST_P(BitsTest, SpreadRefusesASetThatLacksAPosition) {
  const std::vector<uint8_t> in(16, 1);
  std::vector<uint8_t> out(8 * 8 + 64);
  const auto refuses = [&](const Words& part, const Words& set) {
    const bool found = spread(8, in.data(), part.view(), set.view(), out.data());
    EXPECT_EQ(found, plain::spread(8, in.data(), part.view(), set.view(), out.data()));
    return !found;
  };
  EXPECT_FALSE(refuses({{1}, {5}}, {{0, 1}, {1, 7}}));
  EXPECT_FALSE(refuses({}, {{0, 1}, {1, 7}}));
  EXPECT_TRUE(refuses({{1}, {5}}, {{0, 1}, {1, 3}})) << "a bit";
  EXPECT_TRUE(refuses({{1}, {5}}, {{0, 2}, {1, 7}})) << "a word between";
  EXPECT_TRUE(refuses({{1}, {5}}, {{0}, {7}})) << "the last word";
  EXPECT_TRUE(refuses({{0}, {1}}, {{1}, {7}})) << "the first word";
  EXPECT_TRUE(refuses({{0}, {1}}, {})) << "everything";
}

TEST_P(BitsTest, BlocksOfBitsAreThoseOfThePlainReference) {
  for (size_t n = 0; n < 40; ++n) {
    std::vector<uint64_t> words(n);
    for (uint64_t& word : words)
      word = rng_.chance(0.3) ? uint64_t{1} << rng_.below(64) : rng_.next() & rng_.next() & rng_.next();
    uint64_t counts[6], expected[6];
    count_blocks(words.data(), n, counts);
    plain::count_blocks(words.data(), n, expected);
    EXPECT_THAT(counts, testing::ElementsAreArray(expected));
    EXPECT_EQ(count_bits(words.data(), n), expected[0]);
    for (int shift = 1; shift < 6; ++shift) {
      std::vector<uint64_t> blocks(n), expected_blocks(n);
      block_bits(words.data(), n, shift, blocks.data());
      plain::block_bits(words.data(), n, shift, expected_blocks.data());
      EXPECT_EQ(blocks, expected_blocks) << shift;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, BitsTest, testing::ValuesIn(all_targets()), target_name);

}  // namespace
}  // namespace netsum::kernels::bits_test
