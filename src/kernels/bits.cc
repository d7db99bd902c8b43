// Which elements are not zero, and copying those that a bitmap names, vectorised.
#include "src/kernels/bits.h"

#include <algorithm>
#include <bit>
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

}  // namespace netsum::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum::kernels {
namespace {

HWY_EXPORT(nonzero_words);
HWY_EXPORT(compress32);

// Below so many set bits in a word, single copies are faster than vectors.
constexpr int kFewBits = 12;

template <size_t kBytes>
size_t pack_bits(const uint8_t* in, uint64_t word, uint8_t* out) {
  uint8_t* to = out;
  for (; word != 0; word &= word - 1, to += kBytes)
    std::memcpy(to, in + static_cast<size_t>(std::countr_zero(word)) * kBytes, kBytes);
  return static_cast<size_t>(to - out) / kBytes;
}

template <size_t kBytes>
size_t unpack_bits(const uint8_t* in, uint64_t word, uint8_t* out) {
  const uint8_t* from = in;
  for (; word != 0; word &= word - 1, from += kBytes)
    std::memcpy(out + static_cast<size_t>(std::countr_zero(word)) * kBytes, from, kBytes);
  return static_cast<size_t>(from - in) / kBytes;
}

}  // namespace

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

size_t pack(size_t element_bytes, const uint8_t* in, size_t n, uint64_t word, uint8_t* out) {
  if (word == ~uint64_t{0}) {
    std::memcpy(out, in, 64 * element_bytes);
    return 64;
  }
  switch (element_bytes) {
    case 2:
      return pack_bits<2>(in, word, out);
    case 4:
      if (n == 64 && std::popcount(word) > kFewBits) return HWY_DYNAMIC_DISPATCH(compress32)(in, word, out);
      return pack_bits<4>(in, word, out);
    default:
      return pack_bits<8>(in, word, out);
  }
}

size_t unpack(size_t element_bytes, const uint8_t* in, uint64_t word, uint8_t* out) {
  if (word == ~uint64_t{0}) {
    std::memcpy(out, in, 64 * element_bytes);
    return 64;
  }
  switch (element_bytes) {
    case 2:
      return unpack_bits<2>(in, word, out);
    case 4:
      return unpack_bits<4>(in, word, out);
    default:
      return unpack_bits<8>(in, word, out);
  }
}

}  // namespace netsum::kernels
#endif  // HWY_ONCE
