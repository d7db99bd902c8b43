// Which elements are not zero, and copying those that a bitmap names, vectorised.
#include "src/kernels/bits.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "src/kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kernels/bits.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "src/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace netsum::kernels::HWY_NAMESPACE {

// T: unsigned integer of the element's size. `sign`: the bit that does not count, or 0.
template <typename T>
bool nonzero(const uint8_t* in, size_t n, T sign, uint64_t* words) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  const auto magnitude_mask = hn::Set(d, static_cast<T>(~sign));
  const auto zero = hn::Zero(d);
  auto signs_of_zeros = hn::Zero(d);
  // A vector has at most 64 lanes, and their number divides 64.
  const auto word_of = [&](const uint8_t* from) HWY_ATTR {
    uint64_t word = 0;
    for (size_t i = 0; i < 64; i += lanes) {
      will_read(from + i * sizeof(T));
      const auto v = load(d, from + i * sizeof(T));
      const auto is_zero = hn::Eq(hn::And(v, magnitude_mask), zero);
      if (sign != 0) signs_of_zeros = hn::Or(signs_of_zeros, hn::IfThenElseZero(is_zero, v));
      uint64_t bits = 0;
      hn::StoreMaskBits(d, is_zero, reinterpret_cast<uint8_t*>(&bits));
      word |= bits << i;
    }
    return ~word;
  };
  const size_t whole = n / 64;
  for (size_t w = 0; w < whole; ++w) words[w] = word_of(in + w * 64 * sizeof(T));
  if (const size_t rest = n % 64; rest != 0) {
    HWY_ALIGN uint8_t last[64 * sizeof(T)] = {};
    std::memcpy(last, in + whole * 64 * sizeof(T), rest * sizeof(T));
    words[whole] = word_of(last);
  }
  return !hn::AllTrue(d, hn::Eq(signs_of_zeros, zero));
}

bool nonzero_words(DataType type, const uint8_t* in, size_t n, uint64_t* words) {
  switch (type) {
    case DataType::kFloat32:
      return nonzero<uint32_t>(in, n, 0x80000000, words);
    case DataType::kBFloat16:
    case DataType::kFloat16:
      return nonzero<uint16_t>(in, n, 0x8000, words);
    case DataType::kInt32:
      return nonzero<uint32_t>(in, n, 0, words);
    case DataType::kInt64:
      return nonzero<uint64_t>(in, n, 0, words);
    default:
      break;
  }
  return false;
}

// 64 elements of 4 bytes. Writes up to a vector more.
size_t compress32(const uint8_t* in, uint64_t word, uint8_t* out) {
  const hn::ScalableTag<uint32_t> d;
  const size_t lanes = hn::Lanes(d);
  uint8_t* to = out;
  for (size_t i = 0; i < 64; i += lanes) {
    uint64_t bits = word >> i;
    if (lanes < 64) bits &= (uint64_t{1} << lanes) - 1;
    const auto mask = hn::LoadMaskBits(d, reinterpret_cast<const uint8_t*>(&bits));
    store(hn::Compress(load(d, in + i * 4), mask), d, to);
    to += 4 * static_cast<size_t>(std::popcount(bits));
  }
  return static_cast<size_t>(to - out) / 4;
}

// What follows has no vectors, but uses the instructions of the target that count and find bits.

// Below so many set bits in a word, single copies are faster than vectors.
constexpr int kFewBits = 12;
// The elements of sparse sets lie in cache lines that no hardware expects: those of the word that comes so many words later
// are fetched.
constexpr size_t kWordsAhead = 24;

// The place of the first element of word `i`, if there is one. A number, as that of ahead_of().
template <size_t kBytes>
const void* first_element(const SetWords& set, size_t i, const uint8_t* begin) {
  const uint64_t position =
      i < set.count ? set.numbers[i] * 64 + static_cast<uint64_t>(__builtin_ctzll(set.words[i])) : 0;
  return reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(begin) + position * kBytes);
}

template <size_t kBytes>
size_t pack_set(const uint8_t* in, size_t elements, const SetWords& set, uint8_t* out) {
  uint8_t* to = out;
  for (size_t i = 0; i < set.count; ++i) {
    __builtin_prefetch(first_element<kBytes>(set, i + kWordsAhead, in));
    const uint8_t* const from = in + set.numbers[i] * 64 * kBytes;
    uint64_t word = set.words[i];
    if (word == ~uint64_t{0}) {
      std::memcpy(to, from, 64 * kBytes);
      to += 64 * kBytes;
    } else if (kBytes == 4 && __builtin_popcountll(word) > kFewBits && set.numbers[i] * 64 + 64 <= elements) {
      to += compress32(from, word, to) * kBytes;
    } else {
      for (; word != 0; word &= word - 1, to += kBytes)
        std::memcpy(to, from + static_cast<size_t>(__builtin_ctzll(word)) * kBytes, kBytes);
    }
  }
  return static_cast<size_t>(to - out) / kBytes;
}

template <size_t kBytes>
void unpack_set(const uint8_t* in, const SetWords& set, uint8_t* out) {
  for (size_t i = 0; i < set.count; ++i) {
    __builtin_prefetch(first_element<kBytes>(set, i + kWordsAhead, out), 1);
    uint8_t* const to = out + set.numbers[i] * 64 * kBytes;
    uint64_t word = set.words[i];
    if (word == ~uint64_t{0}) {
      std::memcpy(to, in, 64 * kBytes);
      in += 64 * kBytes;
    } else {
      for (; word != 0; word &= word - 1, in += kBytes)
        std::memcpy(to + static_cast<size_t>(__builtin_ctzll(word)) * kBytes, in, kBytes);
    }
  }
}

// Writes up to 64 bytes more, and reads none more.
template <size_t kBytes>
void copy_elements(const uint8_t* in, size_t count, uint8_t* out) {
  size_t at = 0;
  for (; at + 64 <= count * kBytes; at += 64) std::memcpy(out + at, in + at, 64);
  for (; at < count * kBytes; at += kBytes) std::memcpy(out + at, in + at, kBytes);
}

template <size_t kBytes>
bool spread_set(const uint8_t* in, const SetWords& part, const SetWords& set, uint8_t* out) {
  size_t next = 0;  // of `part`
  for (size_t i = 0; i < set.count; ++i) {
    const uint64_t word = set.words[i];
    uint64_t own = 0;
    if (next < part.count && part.numbers[next] <= set.numbers[i]) {
      if (part.numbers[next] != set.numbers[i]) return false;
      own = part.words[next++];
      if ((own & ~word) != 0) return false;
    }
    const size_t count = static_cast<size_t>(__builtin_popcountll(word));
    if (own == word) {
      copy_elements<kBytes>(in, count, out);
      in += count * kBytes;
    } else {
      for (size_t at = 0; at < count * kBytes; at += 64) std::memset(out + at, 0, 64);
      for (; own != 0; own &= own - 1, in += kBytes) {
        const uint64_t below = (own & -own) - 1;
        std::memcpy(out + static_cast<size_t>(__builtin_popcountll(word & below)) * kBytes, in, kBytes);
      }
    }
    out += count * kBytes;
  }
  return next == part.count;
}

size_t pack_elements(size_t element_bytes, const uint8_t* in, size_t elements, const SetWords& set,
                     uint8_t* out) {
  switch (element_bytes) {
    case 2:
      return pack_set<2>(in, elements, set, out);
    case 4:
      return pack_set<4>(in, elements, set, out);
    default:
      return pack_set<8>(in, elements, set, out);
  }
}

void unpack_elements(size_t element_bytes, const uint8_t* in, const SetWords& set, uint8_t* out) {
  switch (element_bytes) {
    case 2:
      return unpack_set<2>(in, set, out);
    case 4:
      return unpack_set<4>(in, set, out);
    default:
      return unpack_set<8>(in, set, out);
  }
}

bool spread_elements(size_t element_bytes, const uint8_t* in, const SetWords& part, const SetWords& set,
                     uint8_t* out) {
  switch (element_bytes) {
    case 2:
      return spread_set<2>(in, part, set, out);
    case 4:
      return spread_set<4>(in, part, set, out);
    default:
      return spread_set<8>(in, part, set, out);
  }
}

size_t bits_of_words(const uint64_t* words, size_t n) {
  size_t count = 0;
  for (size_t i = 0; i < n; ++i) count += static_cast<size_t>(__builtin_popcountll(words[i]));
  return count;
}

// Has no branch for a bit, and is as short as the compiler's vectors make it.
template <int kShift>
void shrink(const uint64_t* words, size_t n, uint64_t* out) {
  constexpr uint64_t kAll = ~uint64_t{0};
  for (size_t i = 0; i < n; ++i) {
    uint64_t word = words[i];
    for (int s = 0; s < kShift; ++s) word |= word >> (1 << s);
    word &= kAll / ((uint64_t{1} << (1 << kShift)) - 1);  // the first bit of each block
    // Fields of `width` bits lie `distance` bits apart: two become one.
    int width = 1;
    for (int distance = 1 << kShift; distance < 64; distance *= 2, width *= 2) {
      const uint64_t last = distance == 32 ? kAll : (uint64_t{1} << (2 * distance % 64)) - 1;
      word = (word | word >> (distance - width)) & (kAll / last * ((uint64_t{1} << (2 * width)) - 1));
    }
    out[i] = word;
  }
}

void blocks_in_words(const uint64_t* words, size_t n, int shift, uint64_t* out) {
  switch (shift) {
    case 1:
      return shrink<1>(words, n, out);
    case 2:
      return shrink<2>(words, n, out);
    case 3:
      return shrink<3>(words, n, out);
    case 4:
      return shrink<4>(words, n, out);
    default:
      return shrink<5>(words, n, out);
  }
}

void blocks_of_words(const uint64_t* words, size_t n, uint64_t* counts) {
  // Bits at the multiples of 2^s.
  constexpr uint64_t kFirst[] = {~uint64_t{0},       0x5555555555555555, 0x1111111111111111,
                                 0x0101010101010101, 0x0001000100010001, 0x0000000100000001};
  std::fill_n(counts, 6, 0);
  for (size_t i = 0; i < n; ++i) {
    uint64_t word = words[i];
    counts[0] += static_cast<uint64_t>(__builtin_popcountll(word));
    for (int s = 1; s < 6; ++s) {
      word = (word | word >> (1 << (s - 1))) & kFirst[s];
      counts[s] += static_cast<uint64_t>(__builtin_popcountll(word));
    }
  }
}

}  // namespace netsum::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum::kernels {

HWY_EXPORT(nonzero_words);
HWY_EXPORT(pack_elements);
HWY_EXPORT(unpack_elements);
HWY_EXPORT(spread_elements);
HWY_EXPORT(bits_of_words);
HWY_EXPORT(blocks_of_words);
HWY_EXPORT(blocks_in_words);

bool nonzero_bits(DataType type, const void* in, size_t n, uint64_t* words) {
  return HWY_DYNAMIC_DISPATCH(nonzero_words)(type, static_cast<const uint8_t*>(in), n, words);
}

bool all_zero(DataType type, const void* in, size_t n, bool* negative_zeros) {
  const auto* bytes = static_cast<const uint8_t*>(in);
  constexpr size_t kAtOnce = 1024;
  uint64_t words[kAtOnce / 64];
  bool negative = false;
  for (size_t begin = 0; begin < n; begin += kAtOnce) {
    const size_t count = std::min(kAtOnce, n - begin);
    negative |= nonzero_bits(type, bytes + begin * size_of(type), count, words);
    for (size_t w = 0; w < (count + 63) / 64; ++w)
      if (words[w] != 0) return false;
  }
  *negative_zeros |= negative;
  return true;
}

size_t pack(size_t element_bytes, const uint8_t* in, size_t elements, const SetWords& set, uint8_t* out) {
  return HWY_DYNAMIC_DISPATCH(pack_elements)(element_bytes, in, elements, set, out);
}

void unpack(size_t element_bytes, const uint8_t* in, const SetWords& set, uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(unpack_elements)(element_bytes, in, set, out);
}

bool spread(size_t element_bytes, const uint8_t* in, const SetWords& part, const SetWords& set,
            uint8_t* out) {
  return HWY_DYNAMIC_DISPATCH(spread_elements)(element_bytes, in, part, set, out);
}

size_t count_bits(const uint64_t* words, size_t n) {
  return HWY_DYNAMIC_DISPATCH(bits_of_words)(words, n);
}

void count_blocks(const uint64_t* words, size_t n, uint64_t* counts) {
  HWY_DYNAMIC_DISPATCH(blocks_of_words)(words, n, counts);
}

void block_bits(const uint64_t* words, size_t n, int shift, uint64_t* out) {
  HWY_DYNAMIC_DISPATCH(blocks_in_words)(words, n, shift, out);
}

}  // namespace netsum::kernels
#endif  // HWY_ONCE
