// What the kernels' tests share: memory at any alignment with guards around it, hostile floating-point data,
// and running a test on each of Highway's targets that this CPU has.
#ifndef NETSUM_SRC_KERNELS_TEST_DATA_H_
#define NETSUM_SRC_KERNELS_TEST_DATA_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "netsum/types.h"
#include "src/base/rng.h"
#include "src/kernels/kernels.h"

namespace netsum::kernels {

inline constexpr DataType kFloatTypes[] = {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16};
inline constexpr DataType kAllTypes[] = {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16,
                                         DataType::kInt32, DataType::kInt64};

// From NETSUM_TEST_SEED, or 1. A failing test prints it.
uint64_t test_seed();

// Every size around a vector, and those of packets.
std::vector<size_t> interesting_sizes();

// `size` bytes that start `misalignment` bytes past a 64-byte boundary, between guards.
class GuardedBytes {
 public:
  GuardedBytes(size_t size, size_t misalignment);
  uint8_t* data() { return storage_.data() + start_; }
  const uint8_t* data() const { return storage_.data() + start_; }
  size_t size() const { return size_; }
  void fill(std::span<const uint8_t> bytes) { std::copy(bytes.begin(), bytes.end(), data()); }
  bool guards_intact() const;
  // Same contents, and nobody wrote outside either.
  bool operator==(const GuardedBytes& other) const;

 private:
  std::vector<uint8_t> storage_;
  size_t start_;
  size_t size_;
};

template <typename T>
std::vector<uint8_t> to_bytes(std::span<const T> values) {
  std::vector<uint8_t> bytes(values.size_bytes());
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::vector<uint8_t> random_bytes(Rng& rng, size_t count);

// `n` finite elements below 2^(exponent - 126), as lanes of that exponent need: wide spread, close spread,
// zeros of both signs, subnormals, the largest allowed, halves of a quantum (ties).
std::vector<uint8_t> finite_elements(Rng& rng, DataType type, size_t n, uint8_t exponent, int members,
                                     int lane_bits = 32);

// Writes an infinity or NaN of random sign and payload over some elements.
void sprinkle_specials(Rng& rng, DataType type, std::vector<uint8_t>& elements);

// Converts by half.h.
std::vector<uint8_t> elements_of(DataType type, std::span<const float> values);
float element(DataType type, const uint8_t* base, size_t index);

using Blocks = std::vector<std::vector<uint8_t>>;  // one per member, all of one size

struct Reduced {
  std::vector<uint8_t> out;
  BlockScale scale;
  bool overflow = false;
};

// What the members and the aggregator do to one block, without the network. `lane_bits` is the width of
// narrow lanes of floating-point types.
Reduced reduce(DataType type, const Blocks& blocks, bool average = false, int lane_bits = 32);

// Runs each test once per Highway target.
class TargetTest : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override;
  void TearDown() override;
  Rng rng_{test_seed()};
  testing::ScopedTrace trace_{__FILE__, __LINE__, "NETSUM_TEST_SEED=" + std::to_string(test_seed())};
};
std::vector<int64_t> all_targets();
std::string target_name(const testing::TestParamInfo<int64_t>& info);

}  // namespace netsum::kernels

#endif  // NETSUM_SRC_KERNELS_TEST_DATA_H_
