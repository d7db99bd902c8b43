// Kernels of compression that round elements to integers of a common scale: levels, Hadamard's matrix, and fields of 32-bit
// lanes. Each has a plain reference (namespace kernels::plain) and a Highway version that is chosen at run time, with the same bits.
// Flushed subnormals and other rounding modes of the calling thread have no effect.
#ifndef NETSUM_SRC_KERNELS_LEVELS_H_
#define NETSUM_SRC_KERNELS_LEVELS_H_

#include <cstddef>
#include <cstdint>

namespace netsum::kernels {

// Random numbers as a function of a key and a counter: two rounds of a 32-bit mixing function, a half of the key before each. Keys of
// different ranks, tensors or steps must differ, and those of other elements are other counters.
struct RandomKey {
  uint32_t first = 0;
  uint32_t second = 0;
};
constexpr uint32_t mix32(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return x ^ (x >> 16);
}
constexpr uint32_t random_bits(RandomKey key, uint32_t counter) {
  return mix32(mix32(counter + key.first) + key.second);
}

// codes[i] = values[i] / scale * levels as an integer, limited to -levels and levels; 1 <= levels <= 2^22, and scale > 0 is finite.
// NaN gives any code in that range.
// Rounded to the nearest, halves to the even one.
void to_nearest_levels(const float* values, size_t n, float scale, uint32_t levels, int32_t* codes);
// Rounded up with the probability of the fraction, otherwise down (stochastic rounding): unbiased within the limits, up to 2^-24, and
// integers stay as they are. Element i takes the number of counter first + i.
void to_random_levels(const float* values, size_t n, float scale, uint32_t levels, RandomKey key,
                      uint32_t first, int32_t* codes);
// out[i] = sums[i] / divisor * scale, |sums[i]| <= 2^24. A sum that is the divisor gives the scale itself.
void from_levels(const int32_t* sums, size_t n, float divisor, float scale, float* out);
// rest[i] = values[i] minus what from_levels() makes of codes[i]. `rest` may be `values`.
void rest_of_levels(const float* values, const int32_t* codes, size_t n, float divisor, float scale,
                    float* rest);

// The largest magnitude; NaN if any value is not finite; 0 of none.
float largest_magnitude(const float* values, size_t n);

// x = H x, in place, where H is Hadamard's matrix of n = 2^k rows, of entries 1 and -1 (Sylvester's order).
void hadamard(float* x, size_t n);
// Multiplies by -1 where a bit is set: that of element i is bit i % 64 of word i / 64.
void flip_signs(float* x, size_t n, const uint64_t* bits);

// The integers of `fields` elements in each lane of 32 bits: field f of lane j has `bits` bits from bit f * bits on, and is that of
// element f * lanes + j of `n` elements in lanes = ceil(n / fields). Negative ones borrow from the fields above, so lanes are sums of
// codes[f * lanes + j] * 2^(f * bits), and their sums those of the sums of codes. 1 <= fields * bits <= 32.
void pack_fields(const int32_t* codes, size_t n, uint32_t bits, uint32_t fields, int32_t* lanes);
// The reverse of sums from -offset to 2^bits - 1 - offset.
void unpack_fields(const int32_t* lanes, size_t n, uint32_t bits, uint32_t fields, uint32_t offset,
                   int32_t* sums);

// out[j] = the sum of factors[r] * matrix[r * stride + j] over r in ascending order, for j < n; rows whose factor is 0 are left out.
void sum_rows(const float* factors, size_t rows, const float* matrix, size_t stride, size_t n, float* out);

namespace plain {
void sum_rows(const float* factors, size_t rows, const float* matrix, size_t stride, size_t n, float* out);
void to_nearest_levels(const float* values, size_t n, float scale, uint32_t levels, int32_t* codes);
void to_random_levels(const float* values, size_t n, float scale, uint32_t levels, RandomKey key,
                      uint32_t first, int32_t* codes);
void from_levels(const int32_t* sums, size_t n, float divisor, float scale, float* out);
void rest_of_levels(const float* values, const int32_t* codes, size_t n, float divisor, float scale,
                    float* rest);
float largest_magnitude(const float* values, size_t n);
void hadamard(float* x, size_t n);
void flip_signs(float* x, size_t n, const uint64_t* bits);
void pack_fields(const int32_t* codes, size_t n, uint32_t bits, uint32_t fields, int32_t* lanes);
void unpack_fields(const int32_t* lanes, size_t n, uint32_t bits, uint32_t fields, uint32_t offset,
                   int32_t* sums);
}  // namespace plain

}  // namespace netsum::kernels

#endif  // NETSUM_SRC_KERNELS_LEVELS_H_
