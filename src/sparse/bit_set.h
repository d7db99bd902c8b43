// A set of positions, as the words of its bitmap that are not zero: small for sets of any density.
#ifndef NETSUM_SRC_SPARSE_BIT_SET_H_
#define NETSUM_SRC_SPARSE_BIT_SET_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/kernels/bits.h"

namespace netsum::sparse {

inline constexpr int kWordShift = 6;
inline constexpr uint64_t kWordBits = uint64_t{1} << kWordShift;

constexpr uint64_t words_for(uint64_t bits) {
  return (bits + kWordBits - 1) >> kWordShift;
}

// Bits [0, count); count <= 64.
constexpr uint64_t low_bits(uint64_t count) {
  return count >= kWordBits ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
}

// Calls visit(index) for each bit of `word`, ascending.
template <typename Visit>
void for_each_bit(uint64_t word, const Visit& visit) {
  for (; word != 0; word &= word - 1) visit(static_cast<uint64_t>(std::countr_zero(word)));
}

// Word i covers positions [64 * numbers[i], 64 * numbers[i] + 64).
struct BitSet {
  std::vector<uint64_t> numbers;  // ascending
  std::vector<uint64_t> words;    // none is zero
  std::vector<uint8_t>
      values;  // of the elements at the positions, if the tensor that has found them keeps them

  void clear() {
    numbers.clear();
    words.clear();
    values.clear();
  }
  size_t size() const { return words.size(); }
  // `number` is not below that of the last word.
  void add_word(uint64_t number, uint64_t word) {
    if (word == 0) return;
    if (!numbers.empty() && numbers.back() == number) {
      words.back() |= word;
      return;
    }
    numbers.push_back(number);
    words.push_back(word);
  }
  void add(uint64_t position) {
    add_word(position >> kWordShift, uint64_t{1} << (position & (kWordBits - 1)));
  }
  // Words of a bitmap, of which the first has number `first`, above those of all others.
  void add_bitmap(uint64_t first, const std::vector<uint64_t>& bitmap) {
    size_t end = size();
    numbers.resize(end + bitmap.size());
    words.resize(end + bitmap.size());
    for (size_t i = 0; i < bitmap.size(); ++i) {  // without a branch, which would be mispredicted
      numbers[end] = first + i;
      words[end] = bitmap[i];
      end += bitmap[i] != 0 ? 1 : 0;
    }
    numbers.resize(end);
    words.resize(end);
  }
  uint64_t count() const { return kernels::count_bits(words.data(), words.size()); }
  // From word `begin` on.
  kernels::SetWords view(size_t begin = 0) const {
    return {numbers.data() + begin, words.data() + begin, size() - begin};
  }
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (size_t i = 0; i < words.size(); ++i)
      for_each_bit(words[i], [&](uint64_t bit) { visit((numbers[i] << kWordShift) + bit); });
  }
};

// Calls visit(number, word of `whole`, word of `part`) for each word of `whole`. Returns false if `part` has positions that
// `whole` lacks.
template <typename Visit>
bool for_each_word(const BitSet& whole, const BitSet& part, const Visit& visit) {
  size_t next = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    uint64_t common = 0;
    if (next < part.size() && part.numbers[next] <= whole.numbers[i]) {
      if (part.numbers[next] != whole.numbers[i]) return false;
      common = part.words[next++];
    }
    if ((common & ~whole.words[i]) != 0) return false;
    visit(whole.numbers[i], whole.words[i], common);
  }
  return next == part.size();
}

}  // namespace netsum::sparse

#endif  // NETSUM_SRC_SPARSE_BIT_SET_H_
