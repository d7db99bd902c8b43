// The plain references of levels.h.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "src/kernels/levels.h"
#include "src/kernels/select.h"

namespace netsum::kernels::plain {
namespace {

// Between -levels and levels, also a NaN.
float exact_level(float value, float scale, float levels) {
  const float exact = value / scale * levels;
  const float at_least = exact > -levels ? exact : -levels;
  return at_least < levels ? at_least : levels;
}

}  // namespace

void to_nearest_levels(const float* values, size_t n, float scale, uint32_t levels, int32_t* codes) {
  for (size_t i = 0; i < n; ++i)
    codes[i] =
        static_cast<int32_t>(std::nearbyint(exact_level(values[i], scale, static_cast<float>(levels))));
}

void to_random_levels(const float* values, size_t n, float scale, uint32_t levels, RandomKey key,
                      uint32_t first, int32_t* codes) {
  for (size_t i = 0; i < n; ++i) {
    const float exact = exact_level(values[i], scale, static_cast<float>(levels));
    const float below = std::floor(exact);
    // Compared, not added: a sum would be rounded, and might lift an integer.
    const float unit = static_cast<float>(random_bits(key, first + static_cast<uint32_t>(i)) >> 8) * 0x1p-24f;
    codes[i] = static_cast<int32_t>(below) + (unit < exact - below ? 1 : 0);
  }
}

void from_levels(const int32_t* sums, size_t n, float divisor, float scale, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<float>(sums[i]) / divisor * scale;
}

void rest_of_levels(const float* values, const int32_t* codes, size_t n, float divisor, float scale,
                    float* rest) {
  for (size_t i = 0; i < n; ++i) rest[i] = values[i] - static_cast<float>(codes[i]) / divisor * scale;
}

float largest_magnitude(const float* values, size_t n) {
  uint32_t largest = 0;
  for (size_t i = 0; i < n; ++i) largest = std::max(largest, magnitude_bits(values[i]));
  return largest < kInfinityBits ? std::bit_cast<float>(largest) : std::numeric_limits<float>::quiet_NaN();
}

void hadamard(float* x, size_t n) {
  for (size_t half = 1; half < n; half *= 2)
    for (size_t begin = 0; begin < n; begin += 2 * half)
      for (size_t i = begin; i < begin + half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
}

void sum_rows(const float* factors, size_t rows, const float* matrix, size_t stride, size_t n, float* out) {
  std::fill_n(out, n, 0.0f);
  for (size_t r = 0; r < rows; ++r) {
    if (factors[r] == 0) continue;
    for (size_t j = 0; j < n; ++j) out[j] += factors[r] * matrix[r * stride + j];
  }
}

void flip_signs(float* x, size_t n, const uint64_t* bits) {
  for (size_t i = 0; i < n; ++i) {
    const auto sign = static_cast<uint32_t>(bits[i / 64] >> (i % 64) & 1) << 31;
    x[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(x[i]) ^ sign);
  }
}

void pack_fields(const int32_t* codes, size_t n, uint32_t bits, uint32_t fields, int32_t* lanes) {
  const size_t count = (n + fields - 1) / fields;
  for (size_t j = 0; j < count; ++j) {
    uint32_t lane = 0;
    for (uint32_t f = 0; f < fields && f * count + j < n; ++f)
      lane += static_cast<uint32_t>(codes[f * count + j]) << (f * bits);
    lanes[j] = static_cast<int32_t>(lane);
  }
}

void unpack_fields(const int32_t* lanes, size_t n, uint32_t bits, uint32_t fields, uint32_t offset,
                   int32_t* sums) {
  const size_t count = (n + fields - 1) / fields;
  uint32_t offsets = 0;
  for (uint32_t f = 0; f < fields; ++f) offsets += offset << (f * bits);
  const uint32_t mask = 0xFFFFFFFFu >> (32 - bits);
  for (size_t i = 0; i < n; ++i) {
    const uint32_t lane = static_cast<uint32_t>(lanes[i % count]) + offsets;
    sums[i] = static_cast<int32_t>(lane >> (i / count * bits) & mask) - static_cast<int32_t>(offset);
  }
}

}  // namespace netsum::kernels::plain
