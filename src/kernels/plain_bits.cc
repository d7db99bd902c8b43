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

size_t pack(size_t element_bytes, const uint8_t* in, const SetWords& set, uint8_t* out) {
  size_t count = 0;
  for (size_t w = 0; w < set.count; ++w)
    for (size_t i = 0; i < 64; ++i)
      if ((set.words[w] >> i & 1) != 0)
        std::memcpy(out + count++ * element_bytes, in + (set.numbers[w] * 64 + i) * element_bytes,
                    element_bytes);
  return count;
}

void unpack(size_t element_bytes, const uint8_t* in, const SetWords& set, uint8_t* out) {
  for (size_t w = 0; w < set.count; ++w)
    for (size_t i = 0; i < 64; ++i)
      if ((set.words[w] >> i & 1) != 0) {
        std::memcpy(out + (set.numbers[w] * 64 + i) * element_bytes, in, element_bytes);
        in += element_bytes;
      }
}

bool spread(size_t element_bytes, const uint8_t* in, const SetWords& part, const SetWords& set,
            uint8_t* out) {
  size_t next = 0;  // of `part`
  for (size_t w = 0; w < set.count; ++w) {
    const bool has_part = next < part.count && part.numbers[next] == set.numbers[w];
    const uint64_t own = has_part ? part.words[next++] : 0;
    if ((own & ~set.words[w]) != 0) return false;
    for (size_t i = 0; i < 64; ++i) {
      if ((set.words[w] >> i & 1) == 0) continue;
      if ((own >> i & 1) != 0) {
        std::memcpy(out, in, element_bytes);
        in += element_bytes;
      } else {
        std::memset(out, 0, element_bytes);
      }
      out += element_bytes;
    }
  }
  return next == part.count;
}

void count_blocks(const uint64_t* words, size_t n, uint64_t* counts) {
  for (size_t s = 0; s < 6; ++s) {
    counts[s] = 0;
    const size_t block = size_t{1} << s;
    for (size_t i = 0; i < 64 * n; i += block)
      if ((words[i / 64] >> (i % 64) & ((uint64_t{1} << block) - 1)) != 0) ++counts[s];
  }
}

void block_bits(const uint64_t* words, size_t n, int shift, uint64_t* out) {
  for (size_t i = 0; i < n; ++i) {
    out[i] = 0;
    for (int bit = 0; bit < 64; ++bit) out[i] |= (words[i] >> bit & 1) << (bit >> shift);
  }
}

}  // namespace netsum::kernels::plain
