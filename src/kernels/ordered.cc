// Elements as unsigned words in the order of the elements.
#include <algorithm>
#include <cstring>
#include <limits>

#include "src/base/assert.h"
#include "src/kernels/half.h"
#include "src/kernels/kernels.h"

namespace netsum::kernels {
namespace {

template <typename Word>
constexpr Word kSign = static_cast<Word>(Word{1} << (std::numeric_limits<Word>::digits - 1));

// Calls map(word) for each of `n` words, which may have any alignment. `in` and `out` may be equal.
template <typename Word, typename Map>
void for_each_word(const void* in, size_t n, void* out, const Map& map) {
  const auto* from = static_cast<const uint8_t*>(in);
  auto* to = static_cast<uint8_t*>(out);
  for (size_t i = 0; i < n; ++i) {
    Word word;
    std::memcpy(&word, from + i * sizeof word, sizeof word);
    word = map(word);
    std::memcpy(to + i * sizeof word, &word, sizeof word);
  }
}

// The order of two's complement numbers.
template <typename Word>
void integers(bool complement, const void* in, size_t n, void* out) {
  const auto flip = complement ? static_cast<Word>(~kSign<Word>) : kSign<Word>;
  for_each_word<Word>(in, n, out, [=](Word word) { return static_cast<Word>(word ^ flip); });
}

// IEEE numbers: sign and magnitude. `infinity`: its bits.
template <typename Word>
void floats_to_words(Word infinity, bool complement, const void* in, size_t n, void* out) {
  const auto invert = complement ? static_cast<Word>(~Word{0}) : Word{0};
  for_each_word<Word>(in, n, out, [=](Word bits) {
    if ((bits & ~kSign<Word>) > infinity) return static_cast<Word>(~Word{0});
    const bool negative = (bits & kSign<Word>) != 0;
    return static_cast<Word>((negative ? ~bits : bits | kSign<Word>)^invert);
  });
}

template <typename Word>
void floats_from_words(Word infinity, Word nan, bool complement, const void* in, size_t n, void* out) {
  const auto invert = complement ? static_cast<Word>(~Word{0}) : Word{0};
  for_each_word<Word>(in, n, out, [=](Word word) {
    const auto ordered = static_cast<Word>(word ^ invert);
    const bool positive = (ordered & kSign<Word>) != 0;
    const auto bits = static_cast<Word>(positive ? ordered & ~kSign<Word> : ~ordered);
    return (bits & ~kSign<Word>) > infinity ? nan : bits;
  });
}

constexpr uint32_t kFloat32Infinity = 0x7F800000;
constexpr uint16_t kBFloat16Infinity = 0x7F80;
constexpr uint16_t kFloat16Infinity = 0x7C00;

}  // namespace

void to_ordered_words(DataType type, bool complement, const void* in, size_t n, uint8_t* words) {
  switch (type) {
    case DataType::kInt32:
      return integers<uint32_t>(complement, in, n, words);
    case DataType::kInt64:
      return integers<uint64_t>(complement, in, n, words);
    case DataType::kFloat32:
      return floats_to_words(kFloat32Infinity, complement, in, n, words);
    case DataType::kBFloat16:
      return floats_to_words(kBFloat16Infinity, complement, in, n, words);
    default:
      NETSUM_ASSERT(type == DataType::kFloat16);
      return floats_to_words(kFloat16Infinity, complement, in, n, words);
  }
}

void from_ordered_words(DataType type, bool complement, const uint8_t* words, size_t n, void* out) {
  switch (type) {
    case DataType::kInt32:
      return integers<uint32_t>(complement, words, n, out);
    case DataType::kInt64:
      return integers<uint64_t>(complement, words, n, out);
    case DataType::kFloat32:
      return floats_from_words(kFloat32Infinity, kNaNBits, complement, words, n, out);
    case DataType::kBFloat16:
      return floats_from_words(kBFloat16Infinity, kBFloat16NaNBits, complement, words, n, out);
    default:
      NETSUM_ASSERT(type == DataType::kFloat16);
      return floats_from_words(kFloat16Infinity, kFloat16NaNBits, complement, words, n, out);
  }
}

void invert(const void* in, size_t bytes, void* out) {
  for_each_word<uint64_t>(in, bytes / 8, out, [](uint64_t word) { return ~word; });
  const size_t done = bytes / 8 * 8;
  for_each_word<uint8_t>(static_cast<const uint8_t*>(in) + done, bytes - done,
                         static_cast<uint8_t*>(out) + done,
                         [](uint8_t byte) { return static_cast<uint8_t>(~byte); });
}

}  // namespace netsum::kernels
