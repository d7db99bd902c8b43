// Small numbers in fields of 32-bit lanes, so that those of N ranks add up without reaching a neighbour: a field has room for every
// sum, and a lane as many fields as fit. Lanes of all ranks together stay in the range of 32 bits (docs/numerics.md). With
// numbers from -31 to 31, the sums of 4 ranks need 8 bits, so 4 elements travel in a lane, as in 8-bit lanes.
//
// 64 lanes are a group, and so is what is left; the fields of a group lie as pack_fields() of src/kernels/levels.h says.
#ifndef NETSUM_SRC_COMPRESS_METHODS_FIELDS_H_
#define NETSUM_SRC_COMPRESS_METHODS_FIELDS_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "src/base/assert.h"
#include "src/kernels/levels.h"

namespace netsum::compress {

class Fields {
 public:
  // Of numbers from -most to most: the sums of negative ones borrow from the field above, which leaves all 32 bits.
  static Fields of_signed(uint32_t most, int ranks) {
    const uint64_t sums = uint64_t{most} * static_cast<uint64_t>(ranks);
    return {2 * sums, sums, 32};
  }
  // Of numbers from 0 to `most`: no lane may have the sign's bit.
  static Fields of_unsigned(uint32_t most, int ranks) {
    return {uint64_t{most} * static_cast<uint64_t>(ranks), 0, 31};
  }

  uint32_t bits() const { return bits_; }
  uint32_t per_lane() const { return per_lane_; }
  size_t lanes(size_t count) const { return (count + per_lane_ - 1) / per_lane_; }

  // fill(begin, n, codes) writes the numbers of the elements [begin, begin + n), in the order of the elements.
  template <class Fill>
  void pack(size_t count, int32_t* lanes, const Fill& fill) const {
    alignas(64) std::array<int32_t, kMostOfGroup> codes;
    for_each_group(count, [&](size_t begin, size_t n) {
      fill(begin, n, codes.data());
      kernels::pack_fields(codes.data(), n, bits_, per_lane_, lanes + begin / per_lane_);
    });
  }
  // take(begin, n, sums): of the elements [begin, begin + n). It may change the sums.
  template <class Take>
  void unpack(size_t count, const int32_t* lanes, const Take& take) const {
    alignas(64) std::array<int32_t, kMostOfGroup> sums;
    for_each_group(count, [&](size_t begin, size_t n) {
      kernels::unpack_fields(lanes + begin / per_lane_, n, bits_, per_lane_, offset_, sums.data());
      take(begin, n, sums.data());
    });
  }

 private:
  static constexpr size_t kGroupLanes = 64;
  static constexpr size_t kMostOfGroup = 32 * kGroupLanes;

  Fields(uint64_t range, uint64_t offset, uint32_t lane_bits)
      : bits_(static_cast<uint32_t>(std::bit_width(range))),
        per_lane_(bits_ == 0 ? 0 : lane_bits / bits_),
        offset_(static_cast<uint32_t>(offset)) {
    NETSUM_ASSERT(per_lane_ > 0);
  }
  template <class Body>
  void for_each_group(size_t count, const Body& body) const {
    const size_t group = kGroupLanes * per_lane_;
    for (size_t begin = 0; begin < count; begin += group) body(begin, std::min(group, count - begin));
  }

  uint32_t bits_;
  uint32_t per_lane_;
  uint32_t offset_;
};

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_METHODS_FIELDS_H_
