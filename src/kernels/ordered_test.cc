// Elements as unsigned words: their order, and that nothing is lost.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "src/base/rng.h"
#include "src/kernels/half.h"
#include "src/kernels/kernels.h"

namespace netsum::kernels::ordered_test {
namespace {

template <typename Word, typename Element>
std::vector<Word> words_of(DataType type, bool complement, const std::vector<Element>& elements) {
  static_assert(sizeof(Word) == sizeof(Element));
  std::vector<Word> words(elements.size());
  to_ordered_words(type, complement, elements.data(), elements.size(),
                   reinterpret_cast<uint8_t*>(words.data()));
  std::vector<Element> back(elements.size());
  from_ordered_words(type, complement, reinterpret_cast<const uint8_t*>(words.data()), words.size(),
                     back.data());
  EXPECT_EQ(std::memcmp(back.data(), elements.data(), elements.size() * sizeof(Element)), 0);
  return words;
}

template <typename Word, typename Element>
void expect_order(DataType type, const std::vector<Element>& ascending) {
  const std::vector<Word> up = words_of<Word>(type, false, ascending);
  const std::vector<Word> down = words_of<Word>(type, true, ascending);
  for (size_t i = 1; i < ascending.size(); ++i) {
    EXPECT_LT(up[i - 1], up[i]) << i;
    EXPECT_GT(down[i - 1], down[i]) << i;
  }
}

TEST(OrderedWords, KeepTheOrderOfIntegers) {
  expect_order<uint32_t>(DataType::kInt32, std::vector<int32_t>{INT32_MIN, -7, -1, 0, 1, 9, INT32_MAX});
  expect_order<uint64_t>(DataType::kInt64,
                         std::vector<int64_t>{INT64_MIN, -1ll << 40, -1, 0, 1, 1ll << 40, INT64_MAX});
  // What a rank without elements contributes.
  EXPECT_EQ(words_of<uint32_t>(DataType::kInt32, false, std::vector<int32_t>{INT32_MIN})[0], 0u);
  EXPECT_EQ(words_of<uint64_t>(DataType::kInt64, true, std::vector<int64_t>{INT64_MAX})[0], 0u);
}

TEST(OrderedWords, KeepTheOrderOfFloats) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  constexpr float kSubnormal = std::numeric_limits<float>::denorm_min();
  expect_order<uint32_t>(DataType::kFloat32,
                         std::vector<float>{-INFINITY, -kLargest, -1.5f, -kSubnormal, -0.0f, 0.0f, kSubnormal,
                                            1.5f, kLargest, INFINITY});
}

// All values of both 16-bit types.
void expect_order_of_all(DataType type, uint16_t infinity) {
  std::vector<uint16_t> ascending;
  for (int magnitude = infinity; magnitude >= 0; --magnitude)
    ascending.push_back(static_cast<uint16_t>(0x8000 | magnitude));
  for (int magnitude = 0; magnitude <= infinity; ++magnitude)
    ascending.push_back(static_cast<uint16_t>(magnitude));
  expect_order<uint16_t>(type, ascending);
}

TEST(OrderedWords, KeepTheOrderOfAllHalves) {
  expect_order_of_all(DataType::kFloat16, 0x7C00);
  expect_order_of_all(DataType::kBFloat16, 0x7F80);
}

// The maximum and the minimum of anything and a NaN is a NaN.
TEST(OrderedWords, EveryNanIsTheLargestBothWays) {
  for (const bool complement : {false, true}) {
    for (const uint32_t nan : {0x7FC00000u, 0x7F800001u, 0xFFC00000u, 0xFFFFFFFFu, 0x7FFFFFFFu}) {
      uint32_t word = 0, back = 0;
      to_ordered_words(DataType::kFloat32, complement, &nan, 1, reinterpret_cast<uint8_t*>(&word));
      EXPECT_EQ(word, UINT32_MAX);
      from_ordered_words(DataType::kFloat32, complement, reinterpret_cast<uint8_t*>(&word), 1, &back);
      EXPECT_EQ(back, kNaNBits);
    }
    const uint16_t halves[] = {0x7E00, 0xFE01, 0x7C01};
    uint16_t words[3], back[3];
    to_ordered_words(DataType::kFloat16, complement, halves, 3, reinterpret_cast<uint8_t*>(words));
    from_ordered_words(DataType::kFloat16, complement, reinterpret_cast<uint8_t*>(words), 3, back);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(words[i], UINT16_MAX);
      EXPECT_EQ(back[i], kFloat16NaNBits);
    }
    // No element has the word 0; infinities do not come near.
    const float infinities[] = {-INFINITY, INFINITY};
    uint32_t of_infinities[2];
    to_ordered_words(DataType::kFloat32, complement, infinities, 2,
                     reinterpret_cast<uint8_t*>(of_infinities));
    EXPECT_GT(std::min(of_infinities[0], of_infinities[1]), 0u);
    EXPECT_LT(std::max(of_infinities[0], of_infinities[1]), UINT32_MAX);
  }
}

TEST(OrderedWords, InvertInvertsEveryByteAndNoMore) {
  Rng rng(5);
  for (size_t bytes = 0; bytes < 40; ++bytes) {
    std::vector<uint8_t> in(bytes + 1), out(bytes + 2, 0xC3);
    for (uint8_t& byte : in) byte = static_cast<uint8_t>(rng.next());
    invert(in.data() + 1, bytes, out.data() + 1);
    for (size_t i = 1; i <= bytes; ++i) ASSERT_EQ(out[i], static_cast<uint8_t>(~in[i]));
    ASSERT_EQ(out[0], 0xC3);
    ASSERT_EQ(out[bytes + 1], 0xC3);
  }
}

}  // namespace
}  // namespace netsum::kernels::ordered_test
