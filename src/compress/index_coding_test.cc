// Indices and values, with few and with many bits for each, and what is no code.
#include "src/compress/index_coding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "src/base/rng.h"

namespace netsum::compress::index_coding_test {
namespace {

// k of n elements at random places.
std::vector<float> sparse(size_t n, size_t k, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(n, 0.0f);
  for (size_t sent = 0; sent < k;) {
    float& value = values[rng.below(n)];
    if (value != 0) continue;
    value = static_cast<float>(rng.unit()) + 0.5f;
    ++sent;
  }
  return values;
}

// With bytes behind the code that nothing may touch.
std::vector<std::byte> encoded(const std::vector<float>& values) {
  constexpr auto kBehind = std::byte{0xA5};
  std::vector<std::byte> coded(most_coded_bytes(values.size()) + 8, kBehind);
  const size_t bytes = encode_indices(values, coded.data());
  EXPECT_LE(bytes, most_coded_bytes(values.size()));
  for (size_t i = bytes; i < coded.size(); ++i) EXPECT_EQ(coded[i], kBehind);
  coded.resize(bytes);
  return coded;
}

TEST(IndexCodingTest, ValuesComeBackAtTheirPlaces) {
  for (const size_t n : {0, 1, 2, 7, 8, 9, 63, 64, 65, 1000, 4097})
    for (const double share : {0.0, 0.001, 0.01, 0.1, 0.2, 0.25, 0.3, 0.5, 0.9, 1.0}) {
      const auto k = static_cast<size_t>(std::ceil(share * static_cast<double>(n)));
      const auto values = sparse(n, k, n + k);
      const auto coded = encoded(values);
      EXPECT_EQ(coded.size(), coded_bytes(n, k));
      std::vector<float> decoded(n, -1);
      ASSERT_TRUE(decode_indices(coded.data(), decoded)) << n << " " << k;
      ASSERT_EQ(decoded, values) << n << " " << k;
    }
}

TEST(IndexCodingTest, ElementsAtTheEndsAndInARow) {
  for (const auto& places :
       std::vector<std::vector<size_t>>{{0}, {999}, {0, 999}, {0, 1, 2}, {997, 998, 999}}) {
    std::vector<float> values(1000, 0.0f), decoded(1000);
    for (const size_t i : places) values[i] = -2;
    ASSERT_TRUE(decode_indices(encoded(values).data(), decoded));
    EXPECT_EQ(decoded, values);
  }
}

// Bits of the index for each element that is sent: near the entropy log2(1 / share) + 1.44, and never more than a bitmap.
TEST(IndexCodingTest, TheShortestCodeIsTaken) {
  constexpr size_t kCount = 1'000'000;
  const auto index_bits = [](size_t k) {
    return static_cast<double>(8 * (coded_bytes(kCount, k) - 16 - 4 * k)) / static_cast<double>(k);
  };
  EXPECT_NEAR(index_bits(kCount / 100), 8.55, 0.01);
  EXPECT_NEAR(index_bits(kCount / 1000), 11.95, 0.05);
  EXPECT_NEAR(index_bits(kCount / 2), 2, 0.01);  // a bitmap
  for (size_t k = 1; k <= kCount; k = 3 * k / 2 + 1)
    EXPECT_LE(coded_bytes(kCount, k), 16 + kCount / 8 + 4 * k);
  EXPECT_EQ(coded_bytes(kCount, 0), 16u);
}

TEST(IndexCodingTest, NumbersThatAreNotFiniteArrive) {
  std::vector<float> values(100, 0.0f), decoded(100);
  values[3] = std::numeric_limits<float>::quiet_NaN();
  values[50] = -std::numeric_limits<float>::infinity();
  ASSERT_TRUE(decode_indices(encoded(values).data(), decoded));
  EXPECT_EQ(std::memcmp(decoded.data(), values.data(), 400), 0);
}

// Any bytes: it reads no more than it may (the sanitizers see it), and tells what it cannot decode.
TEST(IndexCodingTest, WhatIsNoCodeIsRefused) {
  Rng rng(5);
  int refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    const size_t n = 1 + rng.below(300);
    auto coded = encoded(sparse(n, rng.below(n + 1), rng.below(1'000'000)));
    const auto flips = 1 + rng.below(4);
    for (size_t i = 0; i < flips; ++i)
      coded[rng.below(coded.size())] ^= static_cast<std::byte>(1u << rng.below(8));
    uint64_t length = 0;
    std::memcpy(&length, coded.data(), sizeof length);
    if (length > coded.size()) continue;  // what the caller must not pass
    std::vector<float> decoded(n);
    refused += decode_indices(coded.data(), decoded) ? 0 : 1;
  }
  EXPECT_GT(refused, 500);
  // Bytes that nothing explains.
  auto longer = encoded(sparse(100, 5, 1));
  longer.resize(longer.size() + 1);
  const uint64_t length = longer.size();
  std::memcpy(longer.data(), &length, sizeof length);
  std::vector<float> decoded(100);
  EXPECT_FALSE(decode_indices(longer.data(), decoded));
  std::vector<float> none;
  const uint64_t tiny = 8;
  EXPECT_FALSE(decode_indices(reinterpret_cast<const std::byte*>(&tiny), none));
}

}  // namespace
}  // namespace netsum::compress::index_coding_test
