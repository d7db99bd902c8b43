// The plain references of codes.h.
#include <algorithm>
#include <bit>
#include <cmath>

#include "src/kernels/codes.h"
#include "src/kernels/select.h"

namespace netsum::kernels::plain {
namespace {

constexpr uint8_t kSign = 0x80;

uint8_t sign_of(float value) {
  return std::signbit(value) ? kSign : 0;
}

// Rounded up if `least` of the way to the next power of two is behind it.
uint8_t power_of(float value, int top, float least) {
  const float magnitude = std::fabs(value);
  if (!std::isfinite(magnitude)) return kNoPower;
  if (magnitude == 0) return 0;
  const int bottom = top + 1 - kMostPowers;  // the exponent of the last code
  int exponent = 0;
  const float half = std::frexp(magnitude, &exponent);  // in [0.5, 1)
  --exponent;
  // Below the least power of two, the next lower number is 0.
  if (exponent < bottom) return std::ldexp(magnitude, -bottom) > least ? kMostPowers : 0;
  if (2 * half - 1 > least) ++exponent;
  return static_cast<uint8_t>(top + 1 - std::min(exponent, top));
}

}  // namespace

void to_intervals(const float* values, size_t n, const float* borders, uint32_t bits, uint8_t* codes) {
  const float* const end = borders + ((1u << bits) - 1);
  for (size_t i = 0; i < n; ++i)
    codes[i] = static_cast<uint8_t>(std::lower_bound(borders, end, values[i]) - borders);
}

void to_signed_intervals(const float* values, size_t n, float scale, const IndexedBorders& borders,
                         uint8_t* codes) {
  const auto begin = borders.numbers.begin(), end = begin + IndexedBorders::kCount;
  for (size_t i = 0; i < n; ++i) {
    const float share = std::fabs(values[i]) / scale;
    const auto code = std::lower_bound(begin, end, share) - begin;
    codes[i] = static_cast<uint8_t>(code | sign_of(values[i]));
  }
}

void to_powers(const float* values, size_t n, int top, uint8_t* codes) {
  for (size_t i = 0; i < n; ++i)
    codes[i] = static_cast<uint8_t>(power_of(values[i], top, 0.5f) | sign_of(values[i]));
}

void to_random_powers(const float* values, size_t n, int top, RandomKey key, uint32_t first, uint8_t* codes) {
  for (size_t i = 0; i < n; ++i) {
    const float unit = static_cast<float>(random_bits(key, first + static_cast<uint32_t>(i)) >> 8) * 0x1p-24f;
    codes[i] = static_cast<uint8_t>(power_of(values[i], top, unit) | sign_of(values[i]));
  }
}

void from_codes(const uint8_t* codes, size_t n, const float* table, float scale, float divisor, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = table[codes[i]] * scale / divisor;
}

void rest_of_codes(const float* values, const uint8_t* codes, size_t n, const float* table, float scale,
                   float* rest) {
  for (size_t i = 0; i < n; ++i) rest[i] = values[i] - table[codes[i]] * scale;
}

void to_short_numbers(const float* values, size_t n, float step, uint8_t* lengths, uint32_t* words,
                      float* rest) {
  for (size_t i = 0; i < n; ++i) {
    const float value = values[i];
    const float steps = std::nearbyint(value / step);
    const float magnitude = std::fabs(steps);
    const bool is_whole = !(magnitude <= 32767);  // also what is not finite
    lengths[i] = is_whole ? kWholeNumber : magnitude == 0 ? 0 : magnitude <= 127 ? 1 : 2;
    words[i] = is_whole ? std::bit_cast<uint32_t>(value) : static_cast<uint32_t>(static_cast<int32_t>(steps));
    if (rest == nullptr) continue;
    rest[i] = is_whole ? 0 : value - static_cast<float>(static_cast<int32_t>(steps)) * step;
  }
}

void from_short_numbers(const uint8_t* lengths, const uint32_t* words, size_t n, float step, float divisor,
                        float* out) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t word = words[i];
    const int32_t integer = lengths[i] == 0   ? 0
                            : lengths[i] == 1 ? static_cast<int8_t>(word)
                                              : static_cast<int16_t>(word);
    const float value =
        lengths[i] == kWholeNumber ? std::bit_cast<float>(word) : static_cast<float>(integer) * step;
    out[i] = value / divisor;
  }
}

void random_cells(RandomKey key, uint32_t first, size_t n, uint32_t width, uint32_t* cells) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits = random_bits(key, first + static_cast<uint32_t>(i));
    cells[i] = static_cast<uint32_t>((uint64_t{bits} * width) >> 32) | bits << 31;
  }
}

}  // namespace netsum::kernels::plain
