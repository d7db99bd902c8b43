#include "src/kernels/test_data.h"

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>

#include "src/kernels/half.h"

namespace netsum::kernels {
namespace {

constexpr size_t kGuardBytes = 64;
constexpr uint8_t kGuard = 0xA5;

float finite_float(Rng& rng, uint8_t exponent, int members, int lane_bits) {
  const uint32_t sign = static_cast<uint32_t>(rng.below(2)) << 31;
  const auto fraction = static_cast<uint32_t>(rng.below(1 << 23));
  const int unit = exponent - 126 - quantum_bits(members, lane_bits);
  switch (rng.below(8)) {
    case 0:
      return std::bit_cast<float>(sign);
    case 1:  // subnormal
      return std::bit_cast<float>(sign | fraction);
    case 2:  // the largest allowed, or the smallest of its binade
      return std::bit_cast<float>(sign | uint32_t{exponent} << 23 | (rng.chance(0.5) ? 0x7FFFFF : 0));
    case 3: {  // a tie
      const auto odd = static_cast<double>(2 * rng.below(1000) + 1);
      return static_cast<float>(std::ldexp(sign != 0 ? -odd : odd, unit - 1));
    }
    case 4:
      return std::bit_cast<float>(sign | static_cast<uint32_t>(rng.below(exponent + 1)) << 23 | fraction);
    default: {
      const auto below = static_cast<uint32_t>(rng.below(std::min<int>(exponent, 34) + 1));
      return std::bit_cast<float>(sign | (exponent - below) << 23 | fraction);
    }
  }
}

BlockScale agree(DataType type, const Blocks& blocks) {
  BlockScale agreed;
  for (const auto& block : blocks) {
    const auto scale =
        scan(type, block.data(), block.size() / size_of(type), static_cast<int>(blocks.size()));
    agreed.exponent = std::max(agreed.exponent, scale.exponent);
    agreed.wide = std::max(agreed.wide, scale.wide);
  }
  return agreed;
}

// Sums each block's half `half` as an aggregator would; 64-bit lanes.
std::vector<uint8_t> sum_halves(const Blocks& blocks, int half, bool* overflow) {
  const size_t n = blocks[0].size() / 8;
  std::vector<uint8_t> sum(n * 8), lanes(n * 8);
  for (const auto& block : blocks) {
    int64_to_half_lanes(reinterpret_cast<const int64_t*>(block.data()), n, half, lanes.data());
    *overflow |= add_lanes64(sum.data(), lanes.data(), n);
  }
  return sum;
}

// Those of the types and numbers of members that may travel in 16-bit lanes.
Reduced reduce16(DataType type, const Blocks& blocks, bool average) {
  const int members = static_cast<int>(blocks.size());
  const size_t n = blocks[0].size() / 2;
  Reduced result{.out = std::vector<uint8_t>(n * 2), .scale = agree(type, blocks)};
  const bool wide = result.scale.wide != 0;
  std::vector<uint8_t> sum(n * (wide ? 4 : 2)), lanes(sum.size());
  for (const auto& block : blocks) {
    (wide ? to_wide_lanes32 : to_lanes16)(type, block.data(), n, result.scale.exponent, members,
                                          lanes.data());
    result.overflow |= (wide ? add_lanes32 : add_lanes16)(sum.data(), lanes.data(), n);
  }
  (wide ? from_wide_lanes32 : from_lanes16)(type, sum.data(), n, result.scale.exponent, members, average,
                                            result.out.data());
  return result;
}

// The same of 8-bit lanes.
Reduced reduce8(DataType type, const Blocks& blocks, bool average) {
  const int members = static_cast<int>(blocks.size());
  const size_t n = blocks[0].size() / size_of(type);
  Reduced result{.out = std::vector<uint8_t>(blocks[0].size()), .scale = agree(type, blocks)};
  std::vector<uint8_t> sum(n), lanes(n), marks((n + 3) / 4);
  for (const auto& block : blocks) {
    to_lanes8(type, block.data(), n, result.scale.exponent, members, lanes.data());
    result.overflow |= add_lanes8(sum.data(), lanes.data(), n);
    mark_specials(type, block.data(), n, 0, marks.data());
  }
  from_lanes8(type, sum.data(), n, result.scale.exponent, members, average, result.out.data());
  if (result.scale.wide) put_specials(type, marks.data(), 0, n, result.out.data());
  return result;
}

}  // namespace

uint64_t test_seed() {
  const char* seed = std::getenv("NETSUM_TEST_SEED");
  return seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1;
}

std::vector<size_t> interesting_sizes() {
  std::vector<size_t> sizes;
  for (size_t n = 0; n <= 100; ++n) sizes.push_back(n);
  for (const size_t n : {255, 256, 257, 352, 360, 361, 719, 720, 2222}) sizes.push_back(n);
  return sizes;
}

GuardedBytes::GuardedBytes(size_t size, size_t misalignment)
    : storage_(size + misalignment + 3 * kGuardBytes, kGuard), size_(size) {
  const auto address = reinterpret_cast<uintptr_t>(storage_.data()) + kGuardBytes;
  start_ = kGuardBytes + (64 - address % 64) % 64 + misalignment;
}

bool GuardedBytes::guards_intact() const {
  for (size_t i = 0; i < storage_.size(); ++i) {
    if ((i < start_ || i >= start_ + size_) && storage_[i] != kGuard) return false;
  }
  return true;
}

bool GuardedBytes::operator==(const GuardedBytes& other) const {
  return size_ == other.size_ && guards_intact() && other.guards_intact() &&
         std::equal(data(), data() + size_, other.data());
}

std::vector<uint8_t> random_bytes(Rng& rng, size_t count) {
  std::vector<uint8_t> bytes(count);
  for (auto& byte : bytes) byte = static_cast<uint8_t>(rng.next());
  return bytes;
}

std::vector<uint8_t> finite_elements(Rng& rng, DataType type, size_t n, uint8_t exponent, int members,
                                     int lane_bits) {
  std::vector<float> values(n);
  for (auto& value : values) {
    value = exponent == 0 ? std::copysign(0.0f, static_cast<float>(rng.unit() - 0.5))
                          : finite_float(rng, exponent, members, lane_bits);
  }
  auto bytes = elements_of(type, values);
  // Rounding to 16 bits may have reached the next power of two or infinity: those become zeros.
  for (size_t i = 0; i < n; ++i) {
    const float x = element(type, bytes.data(), i);
    const bool allowed = std::isfinite(x) && std::fabs(x) < std::ldexp(1.0, exponent - 126);
    if (!allowed) std::memset(bytes.data() + i * size_of(type), 0, size_of(type));
  }
  return bytes;
}

void sprinkle_specials(Rng& rng, DataType type, std::vector<uint8_t>& elements) {
  const size_t width = size_of(type);
  for (size_t i = 0; i < elements.size() / width; ++i) {
    if (!rng.chance(0.3)) continue;
    const uint32_t infinity = type == DataType::kFloat32    ? 0x7F800000
                              : type == DataType::kBFloat16 ? 0x7F80
                                                            : 0x7C00;
    const uint32_t fraction_mask = (infinity & (~infinity + 1)) - 1;
    const uint32_t sign = rng.chance(0.5) ? 1u << (8 * width - 1) : 0;
    const uint32_t payload = rng.chance(0.5) ? static_cast<uint32_t>(rng.next()) & fraction_mask : 0;
    const uint32_t bits = infinity | sign | payload;
    std::memcpy(elements.data() + i * width, &bits, width);
  }
}

std::vector<uint8_t> elements_of(DataType type, std::span<const float> values) {
  if (type == DataType::kFloat32) return to_bytes(values);
  std::vector<uint16_t> halves;
  for (const float value : values) {
    halves.push_back(type == DataType::kBFloat16 ? float_to_bfloat16(value) : float_to_float16(value));
  }
  return to_bytes(std::span<const uint16_t>(halves));
}

float element(DataType type, const uint8_t* base, size_t index) {
  if (type == DataType::kFloat32) {
    float value;
    std::memcpy(&value, base + index * 4, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, base + index * 2, 2);
  return type == DataType::kBFloat16 ? bfloat16_to_float(bits) : float16_to_float(bits);
}

Reduced reduce(DataType type, const Blocks& blocks, bool average, int lane_bits) {
  if (lane_bits == 8) return reduce8(type, blocks, average);
  if (lane_bits == 16) return reduce16(type, blocks, average);
  const int members = static_cast<int>(blocks.size());
  const size_t n = blocks[0].size() / size_of(type);
  Reduced result{.out = std::vector<uint8_t>(n * size_of(type)), .scale = agree(type, blocks)};
  if (type == DataType::kInt64 && result.scale.wide) {
    const auto low = sum_halves(blocks, 0, &result.overflow);
    const auto high = sum_halves(blocks, 1, &result.overflow);
    result.overflow |=
        !int64_from_half_lanes(low.data(), high.data(), n, reinterpret_cast<int64_t*>(result.out.data()));
    return result;
  }
  const bool lanes64 = result.scale.wide || type == DataType::kInt64;
  std::vector<uint8_t> sum(n * (lanes64 ? 8 : 4)), lanes(sum.size());
  for (const auto& block : blocks) {
    if (lanes64) {
      to_lanes64(type, block.data(), n, result.scale.exponent, members, lanes.data());
      result.overflow |= add_lanes64(sum.data(), lanes.data(), n);
    } else {
      to_lanes32(type, block.data(), n, result.scale.exponent, members, lanes.data());
      result.overflow |= add_lanes32(sum.data(), lanes.data(), n);
    }
  }
  if (lanes64) {
    result.overflow |=
        !from_lanes64(type, sum.data(), n, result.scale.exponent, members, average, result.out.data());
  } else {
    from_lanes32(type, sum.data(), n, result.scale.exponent, members, average, result.out.data());
  }
  return result;
}

void TargetTest::SetUp() {
  hwy::SetSupportedTargetsForTest(GetParam());
}
void TargetTest::TearDown() {
  hwy::SetSupportedTargetsForTest(0);
}

std::vector<int64_t> all_targets() {
  return hwy::SupportedAndGeneratedTargets();
}
std::string target_name(const testing::TestParamInfo<int64_t>& info) {
  return hwy::TargetName(info.param);
}

}  // namespace netsum::kernels
