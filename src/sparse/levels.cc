#include "src/sparse/levels.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "src/base/assert.h"

namespace netsum::sparse {
namespace {

// The shift of the parent of the first level: more than all positions.
constexpr int kEverything = 62;

double power_of_two(int exponent) {
  return static_cast<double>(uint64_t{1} << exponent);
}

// Blocks of 2^shift positions.
double all_blocks(uint64_t positions, int shift) {
  return static_cast<double>((positions + (uint64_t{1} << shift) - 1) >> shift);
}

// The number of shifts that can be useful.
int shifts_for(uint64_t positions) {
  return std::clamp(static_cast<int>(std::bit_width(positions)), 1, kMaxShift + 1);
}

constexpr uint64_t kAll = ~uint64_t{0};

}  // namespace

void Occupancy::add(const BitSet& set) {
  std::array<uint64_t, kMaxShift + 1> found = {};
  kernels::count_blocks(set.words.data(), set.size(), found.data());
  std::array<uint64_t, kWordBits + 1> first_differs = {};  // by the bits of the difference to the word before
  for (size_t i = 0; i < set.size(); ++i) {
    const uint64_t difference = i == 0 ? ~uint64_t{0} : set.numbers[i] ^ set.numbers[i - 1];
    ++first_differs[static_cast<size_t>(std::bit_width(difference))];
  }
  uint64_t distinct = 0;
  for (int width = kWordBits; width > kMaxShift - kWordShift; --width)
    distinct += first_differs[static_cast<size_t>(width)];
  for (int s = kMaxShift; s >= kWordShift; --s) {
    found[static_cast<size_t>(s)] =
        distinct;  // words that differ from the one before in their number >> (s - 6)
    distinct += first_differs[static_cast<size_t>(s - kWordShift)];
  }
  for (size_t s = 0; s < found.size(); ++s) blocks[s] += static_cast<double>(found[s]);
}

Occupancy Occupancy::of_random_set(uint64_t positions, double count) {
  Occupancy occupancy;
  double set = positions == 0 ? 0 : std::min(count / static_cast<double>(positions), 1.0);
  for (int s = 0; s <= kMaxShift; ++s) {
    occupancy.blocks[static_cast<size_t>(s)] = set * all_blocks(positions, s);
    set = set * (2 - set);  // the probability that one of two halves is set
  }
  return occupancy;
}

Levels Levels::choose(uint64_t positions, const Occupancy& occupancy, double level_cost) {
  const int count = shifts_for(positions);
  // below[s]: the cost of all levels below one of shift s; next[s]: the shift of the first of them.
  std::array<double, kMaxShift + 1> below = {};
  std::array<int, kMaxShift + 1> next = {};
  int first = 0;
  double least = std::numeric_limits<double>::max();
  for (int s = 0; s < count; ++s) {
    const auto at = static_cast<size_t>(s);
    if (s > 0) below[at] = std::numeric_limits<double>::max();
    for (int child = 0; child < s; ++child) {
      const double cost =
          occupancy.blocks[at] * power_of_two(s - child) + level_cost + below[static_cast<size_t>(child)];
      if (cost < below[at]) {
        below[at] = cost;
        next[at] = child;
      }
    }
    const double cost = all_blocks(positions, s) + below[at];
    if (cost < least) {
      least = cost;
      first = s;
    }
  }
  Levels levels;
  for (int s = first; s > 0; s = next[static_cast<size_t>(s)]) levels.shifts.push_back(s);
  levels.shifts.push_back(0);
  return levels;
}

double Levels::bits(uint64_t positions, const Occupancy& occupancy) const {
  double bits = all_blocks(positions, shifts.front());
  for (size_t l = 1; l < shifts.size(); ++l)
    bits += occupancy.blocks[static_cast<size_t>(shifts[l - 1])] * power_of_two(shifts[l - 1] - shifts[l]);
  return bits;
}

Level::Level(uint64_t positions, int shift)
    : positions_(positions),
      is_first_(true),
      parent_shift_(kEverything),
      shift_(shift),
      fan_out_shift_(kEverything - shift),
      bits_((positions + (uint64_t{1} << shift) - 1) >> shift) {}

Level::Level(const Level& above, std::span<const uint64_t> parents, int shift)
    : positions_(above.positions_),
      parents_(parents),
      is_first_(false),
      parent_shift_(above.shift_),
      shift_(shift),
      fan_out_shift_(above.shift_ - shift),
      bits_(parents.size() << fan_out_shift_) {
  NETSUM_ASSERT(fan_out_shift_ > 0);
}

void Level::write(const BitSet& set, uint64_t* words) const {
  std::fill_n(words, words_for(bits_), 0);
  const uint64_t* blocks = set.words.data();  // of each word, from bit 0 on
  std::vector<uint64_t> memory;
  if (shift_ > 0) {
    memory.assign(set.size(), 1);
    if (shift_ < kWordShift) kernels::block_bits(set.words.data(), set.size(), shift_, memory.data());
    blocks = memory.data();
  }
  if (parent_shift_ < kWordShift) return write_parts_of_words(set, blocks, words);
  size_t i = 0;
  for (size_t k = 0; k < parent_count(); ++k) {
    const uint64_t first = parent(k) << parent_shift_;
    const uint64_t end = first + (uint64_t{1} << parent_shift_);
    const uint64_t at = static_cast<uint64_t>(k) << fan_out_shift_;
    while (i < set.size() && (set.numbers[i] + 1) << kWordShift <= first) ++i;
    for (; i < set.size() && set.numbers[i] << kWordShift < end; ++i) {
      const uint64_t bit = at + (((set.numbers[i] << kWordShift) - first) >> shift_);
      words[bit >> kWordShift] |= blocks[i] << (bit & (kWordBits - 1));
    }
  }
}

// Several parents lie in one word. Each word of a set lies in a parent, so the set's next word is at most one behind that of
// the next parent; for other sets, what is written has no meaning, and pack() notices that they lack positions.
void Level::write_parts_of_words(const BitSet& set, const uint64_t* blocks, uint64_t* words) const {
  const uint64_t mask = low_bits(uint64_t{1} << fan_out_shift_);
  if (is_dense()) {
    std::vector<uint64_t> all(words_for(positions_));
    for (size_t i = 0; i < set.size(); ++i) all[set.numbers[i]] = blocks[i];
    for (size_t k = 0; k < parents_.size(); ++k) {
      const uint64_t first = parents_[k] << parent_shift_;
      const uint64_t at = static_cast<uint64_t>(k) << fan_out_shift_;
      const uint64_t part = all[first >> kWordShift] >> ((first & (kWordBits - 1)) >> shift_) & mask;
      words[at >> kWordShift] |= part << (at & (kWordBits - 1));
    }
    return;
  }
  size_t i = 0;
  for (size_t k = 0; k < parents_.size() && i < set.size(); ++k) {
    const uint64_t first = parents_[k] << parent_shift_;
    const uint64_t number = first >> kWordShift;
    i += set.numbers[i] < number ? 1 : 0;  // without a branch, which would be mispredicted
    if (i == set.size()) break;
    const uint64_t own = set.numbers[i] == number ? blocks[i] : 0;
    const uint64_t part = own >> ((first & (kWordBits - 1)) >> shift_) & mask;
    const uint64_t at = static_cast<uint64_t>(k) << fan_out_shift_;
    words[at >> kWordShift] |= part << (at & (kWordBits - 1));
  }
}

// Then steps need not wait for each other, as they do where words are looked up and appended one after another.
bool Level::is_dense() const {
  return words_for(positions_) <= parents_.size();
}

bool Level::has_bits_behind(const uint64_t* words) const {
  const uint64_t rest = bits_ & (kWordBits - 1);
  return rest != 0 && words[bits_ >> kWordShift] >> rest != 0;
}

bool Level::read(const uint64_t* words, std::vector<uint64_t>* blocks) const {
  const uint64_t count = words_for(bits_);
  blocks->clear();
  if (has_bits_behind(words)) return false;
  blocks->resize(kernels::count_bits(words, count));
  uint64_t* to = blocks->data();
  const uint64_t child_mask = (uint64_t{1} << fan_out_shift_) - 1;
  for (uint64_t w = 0; w < count; ++w) {
    for_each_bit(words[w], [&](uint64_t bit) {
      const uint64_t index = (w << kWordShift) + bit;
      *to++ = parent(index >> fan_out_shift_) << fan_out_shift_ | (index & child_mask);
    });
  }
  // They ascend, as parents do.
  return blocks->empty() || blocks->back() < (positions_ + (uint64_t{1} << shift_) - 1) >> shift_;
}

bool Level::read(const uint64_t* words, BitSet* set) const {
  NETSUM_ASSERT(shift_ == 0);
  set->clear();
  const uint64_t count = words_for(bits_);
  if (fan_out_shift_ >= kWordShift) {
    const int words_shift = fan_out_shift_ - kWordShift;  // of a parent
    const uint64_t mask = (uint64_t{1} << words_shift) - 1;
    for (uint64_t w = 0; w < count; ++w)
      if (words[w] != 0) set->add_word(parent(w >> words_shift) << words_shift | (w & mask), words[w]);
  } else {
    if (has_bits_behind(words)) return false;
    const uint64_t mask = low_bits(uint64_t{1} << fan_out_shift_);
    const auto part_of = [&](size_t k) {
      const uint64_t at = static_cast<uint64_t>(k) << fan_out_shift_;
      return words[at >> kWordShift] >> (at & (kWordBits - 1)) & mask;
    };
    if (is_dense()) {
      std::vector<uint64_t> all(words_for(positions_));
      for (size_t k = 0; k < parents_.size(); ++k) {
        const uint64_t first = parents_[k] << fan_out_shift_;
        all[first >> kWordShift] |= part_of(k) << (first & (kWordBits - 1));
      }
      set->add_bitmap(0, all);
      return exists(*set);
    }
    // Each parent has a part of a word: more than there are words, if several lie in one.
    set->numbers.resize(parent_count());
    set->words.resize(parent_count());
    size_t end = 0;
    uint64_t last = kAll;
    for (size_t k = 0; k < parent_count(); ++k) {
      const uint64_t part = part_of(k);
      if (part == 0) continue;
      const uint64_t first = parent(k) << fan_out_shift_;
      const uint64_t number = first >> kWordShift;
      const uint64_t before = number == last ? set->words[end - 1] : 0;  // without a branch
      end += number == last ? 0 : 1;
      set->numbers[end - 1] = last = number;
      set->words[end - 1] = before | part << (first & (kWordBits - 1));
    }
    set->numbers.resize(end);
    set->words.resize(end);
  }
  return exists(*set);
}

bool Level::exists(const BitSet& set) const {
  if (set.size() == 0) return true;
  const uint64_t last = (set.numbers.back() << kWordShift) + kWordBits - 1 -
                        static_cast<uint64_t>(std::countl_zero(set.words.back()));
  return last < positions_;
}

}  // namespace netsum::sparse
