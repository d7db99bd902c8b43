#include <bit>
#include <cstring>

#include "src/base/assert.h"
#include "src/kernels/bits.h"

namespace netsum::kernels::plain {
namespace {

template <typename T>
T load(const void* in, size_t index) {
  T value;
  std::memcpy(&value, static_cast<const uint8_t*>(in) + index * sizeof value, sizeof value);
  return value;
}

uint64_t bits_of(size_t element_bytes, const void* in, size_t index) {
  switch (element_bytes) {
    case 2:
      return load<uint16_t>(in, index);
    case 4:
      return load<uint32_t>(in, index);
    default:
      return load<uint64_t>(in, index);
  }
}

}  // namespace

bool nonzero_bits(DataType type, const void* in, size_t n, uint64_t* words) {
  const size_t bytes = size_of(type);
  const uint64_t sign = is_floating(type) ? uint64_t{1} << (8 * bytes - 1) : 0;
  bool negative_zeros = false;
  std::memset(words, 0, (n + 63) / 64 * sizeof *words);
  for (size_t i = 0; i < n; ++i) {
    const uint64_t bits = bits_of(bytes, in, i);
    if ((bits & ~sign) != 0) {
      words[i / 64] |= uint64_t{1} << (i % 64);
    } else {
      negative_zeros |= bits != 0;
    }
  }
  return negative_zeros;
}

size_t pack(size_t element_bytes, const uint8_t* in, size_t n, uint64_t word, uint8_t* out) {
  size_t count = 0;
  for (size_t i = 0; i < n; ++i)
    if ((word >> i & 1) != 0)
      std::memcpy(out + count++ * element_bytes, in + i * element_bytes, element_bytes);
  return count;
}

size_t unpack(size_t element_bytes, const uint8_t* in, uint64_t word, uint8_t* out) {
  size_t count = 0;
  for (size_t i = 0; i < 64; ++i)
    if ((word >> i & 1) != 0)
      std::memcpy(out + i * element_bytes, in + count++ * element_bytes, element_bytes);
  return count;
}

}  // namespace netsum::kernels::plain
