// The OR of bitmaps where ranks can only add: each bit becomes a field of a lane that is wide enough to count the ranks.
//
// A field has kFieldBits of the number of ranks, and a 32-bit lane as many fields as fit 31 bits, so that no sum is wide
// (docs/numerics.md). For 8 ranks a bit costs 4.6 bits.
#ifndef NETSUM_SRC_SPARSE_OR_BY_SUM_H_
#define NETSUM_SRC_SPARSE_OR_BY_SUM_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "src/sparse/bit_set.h"

namespace netsum::sparse {

class OrBySum {
 public:
  explicit OrBySum(int ranks)
      : field_bits_(static_cast<uint64_t>(std::bit_width(static_cast<unsigned>(ranks)))),
        fields_(31 / field_bits_) {}

  // Bits that travel for each bit of a bitmap.
  double expansion() const { return 32.0 / static_cast<double>(fields_); }
  uint64_t lanes(uint64_t bits) const { return (bits + fields_ - 1) / fields_; }

  // `lanes` are zeros.
  void spread(std::span<const uint64_t> words, int32_t* lanes) const {
    for (size_t w = 0; w < words.size(); ++w)
      for_each_bit(words[w], [&](uint64_t bit) {
        const uint64_t index = (w << kWordShift) + bit;
        lanes[index / fields_] |= int32_t{1} << (index % fields_ * field_bits_);
      });
  }
  // Of summed lanes. `words` are zeros.
  void collect(std::span<const int32_t> lanes, std::span<uint64_t> words) const {
    const uint32_t mask = (uint32_t{1} << field_bits_) - 1;
    for (size_t lane = 0; lane < lanes.size(); ++lane) {
      const auto sum = static_cast<uint32_t>(lanes[lane]);
      if (sum == 0) continue;
      for (uint64_t field = 0; field < fields_; ++field) {
        if ((sum >> (field * field_bits_) & mask) == 0) continue;
        const uint64_t index = lane * fields_ + field;
        if (index >> kWordShift < words.size())
          words[index >> kWordShift] |= uint64_t{1} << (index & (kWordBits - 1));
      }
    }
  }

 private:
  uint64_t field_bits_;
  uint64_t fields_;
};

}  // namespace netsum::sparse

#endif  // NETSUM_SRC_SPARSE_OR_BY_SUM_H_
