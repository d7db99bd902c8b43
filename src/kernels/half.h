// bfloat16 and float16 to and from binary32, one value at a time, with the same bits as PyTorch's casts:
// round to nearest even, overflow to infinity. A NaN always becomes the canonical quiet one.
// Written to be checked by eye; the vector kernels have their own.
#ifndef NETSUM_SRC_KERNELS_HALF_H_
#define NETSUM_SRC_KERNELS_HALF_H_

#include <bit>
#include <cmath>
#include <cstdint>

namespace netsum::kernels {

inline constexpr uint32_t kNaNBits = 0x7FC00000;  // what every NaN result is
inline constexpr uint16_t kBFloat16NaNBits = 0x7FC0;
inline constexpr uint16_t kFloat16NaNBits = 0x7E00;

inline float bfloat16_to_float(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

inline uint16_t float_to_bfloat16(float value) {
  if (std::isnan(value)) return kBFloat16NaNBits;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  // Just under half of the last kept place, plus one where that place is odd: ties go to even. A carry runs
  // into the exponent, which is the right result there too (up to infinity).
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline float float16_to_float(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  float magnitude;
  if (exponent == 31) {
    magnitude = fraction != 0 ? std::bit_cast<float>(kNaNBits) : INFINITY;
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(fraction), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

inline uint16_t float_to_float16(float value) {
  if (std::isnan(value)) return kFloat16NaNBits;
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (magnitude >= 65520.0) return static_cast<uint16_t>(sign | 0x7C00);  // halfway past the largest, 65504
  if (magnitude < 0x1p-14) {
    // Subnormal: a count of 2^-24. A count of 1024 is the bit pattern of the smallest normal number.
    return static_cast<uint16_t>(sign | static_cast<int>(std::nearbyint(std::ldexp(magnitude, 24))));
  }
  const int exponent = std::ilogb(magnitude);
  const int significand = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  // A significand rounded up to 2048 carries into the exponent by the addition.
  return static_cast<uint16_t>(sign | (((exponent + 15) << 10) + (significand - 1024)));
}

}  // namespace netsum::kernels

#endif  // NETSUM_SRC_KERNELS_HALF_H_
