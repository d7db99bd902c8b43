// Kernels of compression that give each element a code of its own which cannot be added: numbers of intervals, powers of two, and
// integers of various lengths. Each has a plain reference (namespace kernels::plain) and a Highway version that is chosen at run time,
// with the same bits. Flushed subnormals and other rounding modes of the calling thread have no effect.
#ifndef NETSUM_SRC_KERNELS_CODES_H_
#define NETSUM_SRC_KERNELS_CODES_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "src/kernels/levels.h"

namespace netsum::kernels {

// codes[i] = how many of the 2^bits - 1 ascending `borders` are below values[i]; 0 of NaN. 1 <= bits <= 8.
void to_intervals(const float* values, size_t n, const float* borders, uint32_t bits, uint8_t* codes);

// 127 ascending borders between 2^-34 and 1 or infinite, and an infinity; and how many of them are below the least number of each range of numbers with
// the same first 6 bits behind the 1. No range may have two.
struct IndexedBorders {
  static constexpr size_t kCount = 127;
  static constexpr int kShift = 23 - 6;
  static constexpr int32_t kFirst = (127 - 34) << 6;  // of 2^-34
  static constexpr int32_t kLast = 127 << 6;          // of 1

  std::array<float, kCount + 1> numbers;
  std::array<int32_t, kLast - kFirst + 1> below;

  static constexpr IndexedBorders make(const std::array<float, kCount>& borders) {
    IndexedBorders made{};
    for (size_t b = 0; b < kCount; ++b) made.numbers[b] = borders[b];
    made.numbers[kCount] = std::numeric_limits<float>::infinity();
    int32_t code = 0;
    for (int32_t range = kFirst; range <= kLast; ++range) {
      const auto least = std::bit_cast<float>(static_cast<uint32_t>(range) << kShift);
      while (made.numbers[static_cast<size_t>(code)] < least) ++code;
      made.below[static_cast<size_t>(range - kFirst)] = code;
    }
    return made;
  }
  constexpr bool is_valid() const {
    for (size_t r = 0; r + 1 < below.size(); ++r)
      if (below[r + 1] > below[r] + 1) return false;
    return below.front() == 0;
  }
};
// codes[i] = how many borders are below |values[i]| / scale; bit 7 is the sign. `scale` > 0 is finite, and no magnitude is above it.
void to_signed_intervals(const float* values, size_t n, float scale, const IndexedBorders& borders,
                         uint8_t* codes);

// Bits 0 to 6: 0 of zero; 127 of what is not finite; otherwise top + 1 - e, where |values[i]| is between 2^e and 2^(e + 1), or one less if
// it is nearer to the latter. Values below 2^(top - 125) become that number (126) or 0, and those from 2^top on 2^top (1). Bit 7 is the
// sign. -149 < top <= 127.
inline constexpr int kMostPowers = 126;
inline constexpr uint8_t kNoPower = 127;
void to_powers(const float* values, size_t n, int top, uint8_t* codes);
// The same, rounded up with the probability of the fraction. Element i takes the number of counter first + i.
void to_random_powers(const float* values, size_t n, int top, RandomKey key, uint32_t first, uint8_t* codes);

// out[i] = table[codes[i]] * scale / divisor, with 256 numbers in the table.
void from_codes(const uint8_t* codes, size_t n, const float* table, float scale, float divisor, float* out);
// rest[i] = values[i] - table[codes[i]] * scale. `rest` may be `values`.
void rest_of_codes(const float* values, const uint8_t* codes, size_t n, const float* table, float scale,
                   float* rest);

// The integer s nearest to values[i] / step, in as few bytes as it needs: lengths[i] is 0 for s = 0, 1 for up to 127 on either side of zero, 2
// for up to 32767, and otherwise 3, for 4 bytes that are the value itself. words[i] has these bytes, the lowest first.
// rest[i] = values[i] minus what arrives; 0 if it is not finite. `rest` may be null or `values`.
inline constexpr uint8_t kWholeNumber = 3;
void to_short_numbers(const float* values, size_t n, float step, uint8_t* lengths, uint32_t* words,
                      float* rest);
// out[i] = the number / divisor. Bytes of words[i] that are not part of it may be anything.
void from_short_numbers(const uint8_t* lengths, const uint32_t* words, size_t n, float step, float divisor,
                        float* out);

// cells[i] = the product of random_bits(key, first + i) and `width`, less its lower 32 bits; bit 31 is the lowest of the random bits. width < 2^31.
void random_cells(RandomKey key, uint32_t first, size_t n, uint32_t width, uint32_t* cells);

namespace plain {
void random_cells(RandomKey key, uint32_t first, size_t n, uint32_t width, uint32_t* cells);
void to_intervals(const float* values, size_t n, const float* borders, uint32_t bits, uint8_t* codes);
void to_signed_intervals(const float* values, size_t n, float scale, const IndexedBorders& borders,
                         uint8_t* codes);
void to_powers(const float* values, size_t n, int top, uint8_t* codes);
void to_random_powers(const float* values, size_t n, int top, RandomKey key, uint32_t first, uint8_t* codes);
void from_codes(const uint8_t* codes, size_t n, const float* table, float scale, float divisor, float* out);
void rest_of_codes(const float* values, const uint8_t* codes, size_t n, const float* table, float scale,
                   float* rest);
void to_short_numbers(const float* values, size_t n, float step, uint8_t* lengths, uint32_t* words,
                      float* rest);
void from_short_numbers(const uint8_t* lengths, const uint32_t* words, size_t n, float step, float divisor,
                        float* out);
}  // namespace plain

}  // namespace netsum::kernels

#endif  // NETSUM_SRC_KERNELS_CODES_H_
