// A set of positions as bitmaps of several levels, of which each describes only what the level above leaves open.
//
// A bit of level l stands for a block of 2^shifts[l] positions: it is set if any of them is. The first level has a bit for
// every block. Each other level has bits for those blocks only that lie in set blocks of the level above, in their order.
// The last level's blocks are single positions. Ranks combine one level after another by OR, so every rank knows which
// blocks the next level describes.
//
// Background and byte model: docs/sparse.md.
#ifndef NETSUM_SRC_SPARSE_LEVELS_H_
#define NETSUM_SRC_SPARSE_LEVELS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/sparse/bit_set.h"

namespace netsum::sparse {

// Positions are below 2^kMaxShift.
inline constexpr int kMaxShift = 40;

// How many blocks of each size hold a position of a set: blocks[s] is the number of blocks of 2^s positions.
struct Occupancy {
  std::array<double, kMaxShift + 1> blocks = {};

  // Adds those of a set, whose blocks are other ones than those added before.
  void add(const BitSet& set);
  // Of a random set of `count` positions below `positions`.
  static Occupancy of_random_set(uint64_t positions, double count);
};

struct Levels {
  std::vector<int> shifts;  // descending; the last is 0

  // Those with the fewest expected bits for a set with this occupancy. `level_cost`: what a level costs beside its bits,
  // in bits. Uses only arithmetic that gives the same result on every machine, so ranks choose alike.
  static Levels choose(uint64_t positions, const Occupancy& occupancy, double level_cost);
  // The expected number of bits.
  double bits(uint64_t positions, const Occupancy& occupancy) const;
};

// One level, given the set blocks of the level above.
class Level {
 public:
  // The first level of a set of positions below `positions`.
  Level(uint64_t positions, int shift);
  // The level below; `parents`: the set blocks of `above`, which must stay valid.
  Level(const Level& above, std::span<const uint64_t> parents, int shift);

  uint64_t bits() const { return bits_; }
  // Writes the bits of `set` to words_for(bits()) words.
  void write(const BitSet& set, uint64_t* words) const;
  // Reads set blocks. Returns false if the bits name positions that do not exist.
  bool read(const uint64_t* words, std::vector<uint64_t>* blocks) const;
  // The same for single positions: the level's shift is 0.
  bool read(const uint64_t* words, BitSet* set) const;

 private:
  uint64_t parent(uint64_t index) const { return parents_.empty() ? 0 : parents_[index]; }
  size_t parent_count() const { return is_first_ ? 1 : parents_.size(); }
  void write_parts_of_words(const BitSet& set, const uint64_t* blocks, uint64_t* words) const;
  // Whether there are no more words of positions than parents.
  bool is_dense() const;
  bool exists(const BitSet& set) const;  // all positions do
  // Whether words_for(bits()) words have a bit that does not exist.
  bool has_bits_behind(const uint64_t* words) const;

  uint64_t positions_;
  std::span<const uint64_t> parents_;
  bool is_first_;
  int parent_shift_;  // of the first level: one parent has all positions
  int shift_;
  int fan_out_shift_;
  uint64_t bits_;
};

}  // namespace netsum::sparse

#endif  // NETSUM_SRC_SPARSE_LEVELS_H_
